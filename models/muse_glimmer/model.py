"""Muse Glimmer: gated attention, norms of queries and keys without weights, norms on both sides
of each part, local layers alone with rotary positions, capped logits. The tower is left out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ggmodel import Context, Tensor, gguf, kv, nn, register
from ggmodel.errors import ConfigError
from ggmodel.kvcache import Causal, Sliding
from ggmodel.model import AddConstant, Batch, Computed, LayerMemory
from ggmodel.nn import Linear, RMSNorm


def _usual(hf: Mapping[str, Any]) -> list[bool]:
    """Every fourth layer, counted from the last, sees everything and does not rotate."""
    last = hf["num_hidden_layers"] - 1
    return [(last - i) % 4 != 0 for i in range(last + 1)]


def _pattern(hf: Mapping[str, Any]) -> list[bool]:
    return nn.sliding_layers(hf) or _usual(hf)


def _rotated(hf: Mapping[str, Any]) -> list[bool] | None:
    """Layer → whether it rotates; None where these are the local ones."""
    bases, base = hf.get("layer_rope_theta"), hf.get("rope_theta", 10000.0)
    if bases is not None and not {*bases} <= {0, base}:
        raise ConfigError(f"layer_rope_theta has other bases than 0 and {base}, the rope's")
    rotated = _usual(hf) if bases is None else [bool(base) for base in bases]
    return None if rotated == _pattern(hf) and hf.get("sliding_window") else rotated


TOWER = (
    "layer_norm_eps layer_types hidden_act hidden_size intermediate_size merge_size patch_size "
    "num_attention_heads num_hidden_layers patch_temporal pos_emb_height pos_emb_width"
).split()
PROJECTOR = ("out_hidden_size", "projector_hidden_act", "projector_hidden_size")


class MuseGlimmerConfig(nn.DecoderConfig):
    unread = ("query_scale",)
    fixed = dict.fromkeys((*PROJECTOR, *(f"vision_config.{key}" for key in TOWER)), ...)

    # The norm of queries has it as its weight.
    query_scale: float = kv("attention.query_scale", hf="qk_scale_factor", default=1.0)
    window: int = kv("attention.sliding_window", hf="sliding_window", default=0)
    pattern: list = kv("attention.sliding_window_pattern", hf=_pattern, default=[4])
    # Neither is a key of llama.cpp, which rotates local layers, and has this constant.
    rotated: list = kv("rope.layers", hf=_rotated, default="local")
    post_eps: float = kv(
        "attention.post_norm_rms_epsilon", hf=nn.unless(1e-8, "post_norm_eps"), default=1e-8
    )
    logit_scale: float = kv("logit_scale", hf="output_multiplier")
    logit_cap: float = kv("final_logit_softcapping", hf="final_logit_softcapping", default=0.0)
    activation: str = nn.activation("silu", "hidden_activation")


def _head_norm(name: str, scale: Callable[[Mapping[str, Any]], float]) -> Tensor:
    """The weight of a norm of queries or keys, which checkpoints lack."""
    weight = Computed(lambda hf, h: np.full(hf["head_dim"], scale(hf), np.float32))
    return gguf(f"{name}.weight", hf=weight, shape=("head_dim",))


class Attention(nn.PermutedAttention):
    q_scale: Tensor = _head_norm("attn_q_norm", lambda hf: hf["qk_scale_factor"])
    k_scale: Tensor = _head_norm("attn_k_norm", lambda hf: 1.0)
    gate: Linear = gguf("attn_gate", hf="gate_proj", shape=("width", "out_width"))

    def forward(self, x: Tensor, batch: Batch, cache: LayerMemory) -> Tensor:
        h = self.config
        q, k, v = self.project(x)
        q, k = q.rms_norm(self.q_scale, h.eps), k.rms_norm(self.k_scale, h.eps)
        if cache.rope is not None:
            q, k = cache.rotate(q, batch.positions), cache.rotate(k, batch.positions)
        return self.out(nn.attention(q, k, v, cache, scale=h.scale) * self.gate(x).sigmoid())


class PostNorm(RMSNorm):
    def forward(self, x: Tensor, eps: float | None = None) -> Tensor:
        return super().forward(x, self.config.post_eps)


def _post_norm(name: str, hf: str) -> PostNorm:
    return gguf(name, hf=hf, op=AddConstant(1), shape=("width",))


class Layer(nn.SandwichLayer):
    attn: Attention
    attn_post_norm: PostNorm = _post_norm("post_attention_norm", "post_attention_layernorm")
    ffn_post_norm: PostNorm = _post_norm("post_ffw_norm", "post_feedforward_layernorm")


@register("muse-glimmer", hf="MuseGlimmerForConditionalGeneration")
class MuseGlimmer(nn.Decoder, text="model.language_model"):
    ignore_hf = tuple(f"model.vision_{part}.*" for part in ("tower", "adapter", "projection"))

    config: MuseGlimmerConfig
    layers: list[Layer]

    def embedded(self, batch: Batch) -> Tensor:
        return self.embed(batch.inputs).rms_norm(eps=self.config.eps)

    def caches(self) -> list[Causal | Sliding]:
        h, rope = self.config, self.rotary.rope()
        if len(h.rotated) != h.layers:
            raise ConfigError(f"rope.layers has {len(h.rotated)} flags for {h.layers} layers")
        return Sliding.where(h.local, h.window, [rope if flag else None for flag in h.rotated])

    def forward(self, ctx: Context, batch: Batch) -> Tensor:
        return nn.softcap(super().forward(ctx, batch), self.config.logit_cap)
