"""AFMoE, Arcee's Trinity: gated attention, norms on both sides of each part, local layers alone
with rotary positions, a router by sigmoids."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ggmodel import Tensor, gguf, kv, nn, register
from ggmodel.kvcache import Causal, Sliding
from ggmodel.ml import RopeType
from ggmodel.model import Batch, LayerMemory
from ggmodel.nn import Linear, RMSNorm


def _pattern(hf: Mapping[str, Any]) -> list[bool]:
    every, local = hf.get("global_attn_every_n_layers", 4), nn.sliding_layers(hf)
    return local or nn.local_layers([every], hf["num_hidden_layers"], 1)


def _scale(hf: Mapping[str, Any]) -> float:
    return hf["hidden_size"] ** 0.5 if hf.get("mup_enabled") else 1.0


class AfmoeConfig(nn.SharedExpertsConfig):
    fixed = {"attention_bias": ...}  # the tensors tell

    # Not a key of llama.cpp, which always scales.
    embedding_scale: float = kv("embedding_scale", hf=_scale, default=lambda h: h.width**0.5)
    window: int = kv("attention.sliding_window", hf="sliding_window", default=0)
    pattern: list = kv("attention.sliding_window_pattern", hf=_pattern, default=[4])
    gating: int = kv("expert_gating_func", hf=lambda hf: nn.SIGMOID, default=nn.SIGMOID)
    normalize: bool = kv("expert_weights_norm", hf=lambda hf: True, default=False)
    expert_scale: float = kv("expert_weights_scale", hf="route_scale", default=1.0)


class Attention(nn.NormedAttention):
    gate: Linear = gguf("attn_gate", hf="gate_proj", shape=("width", "out_width"))

    def forward(self, x: Tensor, batch: Batch, cache: LayerMemory) -> Tensor:
        q, k, v = self.project(x)
        if cache.rope is not None:
            q, k = cache.rotate(q, batch.positions), cache.rotate(k, batch.positions)
        y = nn.attention(q, k, v, cache, scale=self.config.scale)
        return self.out(y * self.gate(x).sigmoid())


class Experts(nn.GatedExperts):
    router: Linear = gguf("ffn_gate_inp", hf="router.gate", shape=("width", "experts"))
    bias: Tensor = nn.selection_bias("expert_bias")
    shared: nn.SharedExpert | None = gguf(hf="shared_experts")


def _norm(name: str, hf: str) -> RMSNorm:
    return gguf(name, hf=hf, shape=("width",))


class Layer(nn.SandwichLayer):
    attn_norm: RMSNorm = _norm("attn_norm", "input_layernorm")
    attn: Attention
    attn_post_norm: RMSNorm = _norm("post_attention_norm", "post_attention_layernorm")
    ffn_norm: RMSNorm = _norm("ffn_norm", "pre_mlp_layernorm")
    ffn: nn.GatedMLP | Experts
    ffn_post_norm: RMSNorm = _norm("post_ffw_norm", "post_mlp_layernorm")


@register("afmoe", hf="AfmoeForCausalLM")
class Afmoe(nn.Decoder):
    config: AfmoeConfig
    layers: list[Layer]

    def caches(self) -> list[Causal | Sliding]:
        h, rope = self.config, self.rotary.rope(RopeType.NEOX)
        return Sliding.where(h.local, h.window, [rope if near else None for near in h.local])
