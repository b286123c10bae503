"""Phi 3.5 MoE: layer norms, biases, two experts a token, whose weights SparseMixer gives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ggmodel import Tensor, gguf, kv, nn, register
from ggmodel.errors import Unsupported
from ggmodel.kvcache import Causal, Sliding
from ggmodel.ml import RopeType
from ggmodel.nn import ExpertLinear, LayerNorm, Linear, Rope

USED = 2


def _magnitude(hf: Mapping[str, Any]) -> float | None:
    if (kind := nn.scaling_kind(hf)) not in ("", "longrope"):
        raise Unsupported(f"rope scaling {kind!r} is unsupported here; supported: longrope")
    return hf["rope_scaling"].get("short_mscale") if kind else None


class PhiMoEConfig(nn.DecoderConfig):
    fixed = {
        "num_experts_per_tok": USED,
        "rope_scaling.long_mscale": _magnitude,  # transformers takes it for longer texts
        **dict.fromkeys(("attention_bias", "lm_head_bias"), ...),  # the tensors tell
        **dict.fromkeys(("input_jitter_noise", "rope_scaling.factor"), ...),  # training's; unread
    }

    eps: float = kv("attention.layer_norm_rms_epsilon", hf="rms_norm_eps", default=1e-5)
    window: int = kv("attention.sliding_window", hf="sliding_window", default=0)
    experts: int = kv("expert_count", hf="num_local_experts")
    experts_used: int = kv("expert_used_count", hf=lambda hf: USED, default=USED)
    expert_ffn: Any = property(lambda h: h.ffn)
    attn_factor: float = kv("rope.scaling.attn_factor", hf=_magnitude, default=1.0)
    jitter: float = kv("expert_router_jitter", hf="router_jitter_noise", default=0.01, least=0)


class Experts(nn.GatedExperts):
    gate: ExpertLinear = nn.stacked("gate", "w1")
    up: ExpertLinear = nn.stacked("up", "w3")
    down: ExpertLinear = nn.stacked("down", "w2")

    def choose(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = self.config
        return nn.sparse_mixer(self.router(x), h.experts_used, 2 * h.jitter)


class Layer(nn.PreNormLayer):
    attn_norm: LayerNorm = gguf("attn_norm", hf="input_layernorm", shape=("width",))
    attn: nn.Attention
    ffn_norm: LayerNorm = gguf("ffn_norm", hf="post_attention_layernorm", shape=("width",))
    ffn: Experts = gguf(hf="block_sparse_moe")


class Rotary(nn.Rotary):
    """LongRoPE's short factors for texts of any length, as transformers has it."""

    def rope(self, type: RopeType = RopeType.NORM, sections: Any = ()) -> Rope:
        return replace(super().rope(type, sections), factors=self.short)

    def left_out(self) -> str:
        return ""


@register("phimoe", hf="PhimoeForCausalLM")
class PhiMoE(nn.LayerNormDecoder):
    config: PhiMoEConfig
    layers: list[Layer]
    head: Linear = gguf("output", "token_embd", hf="lm_head", shape=("width", None))
    rotary: Rotary

    def caches(self) -> list[Causal | Sliding]:
        h = self.config
        return Sliding.where([h.window != 0] * h.layers, h.window, self.rotary.rope(RopeType.NEOX))
