"""Hunyuan with experts: the dense model's attention, a softmax over the experts chosen, one expert
that all tokens share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ggmodel import gguf, kv, nn, register
from ggmodel.errors import Unsupported
from ggmodel.nn import Linear

from .hunyuan_dense import Attention, Hunyuan, HunyuanConfig


def _used(hf: Mapping[str, Any]) -> Any:
    """`moe_topk`: a number, or one for each layer."""
    value = hf.get("moe_topk", hf.get("num_experts_per_tok"))
    if isinstance(value, list) and len(set(value)) != 1:
        raise Unsupported(f"moe_topk is {value!r:.40}; supported: one number for all layers")
    return value[0] if isinstance(value, list) else value


class HunyuanMoEConfig(HunyuanConfig, nn.ExpertsConfig):
    experts_used: int = kv("expert_used_count", hf=_used)
    expert_ffn: int = kv("expert_feed_forward_length", hf="intermediate_size")
    shared_ffn: int = kv(
        "expert_shared_feed_forward_length", hf="intermediate_size", default="expert_ffn"
    )
    normalize: Any = property(lambda h: True)


class Experts(nn.GatedExperts):
    router: Linear = gguf("ffn_gate_inp", hf="gate.wg", shape=("width", "experts"))
    shared: nn.SharedExpert = gguf(hf="shared_mlp")


class Layer(nn.PreNormLayer):
    attn: Attention
    ffn: Experts


@register("hunyuan-moe", hf="HunYuanMoEV1ForCausalLM")
class HunyuanMoE(Hunyuan):
    config: HunyuanMoEConfig
    layers: list[Layer]
