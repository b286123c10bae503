"""Granite 3 with experts, some of which all tokens may share."""

from __future__ import annotations

from ggmodel import gguf, kv, nn, register

from . import granitehybrid
from .granite import Granite, GraniteConfig
from .granitehybrid import SharedMLP


class GraniteMoeConfig(GraniteConfig):
    experts: int = kv("expert_count", hf="num_local_experts")
    experts_used: int = kv("expert_used_count", hf="num_experts_per_tok")
    shared_width: int = kv(
        "expert_shared_feed_forward_length", hf="shared_intermediate_size", default=0
    )


class Experts(granitehybrid.Experts):
    shared: SharedMLP | None = gguf(suffix="_shexp", hf="shared_mlp")


class Layer(nn.PreNormLayer):
    attn: nn.PermutedAttention
    ffn: Experts = gguf(hf="")


@register("granitemoe", hf=("GraniteMoeForCausalLM", "GraniteMoeSharedForCausalLM"))
class GraniteMoe(Granite):
    config: GraniteMoeConfig
    layers: list[Layer]
