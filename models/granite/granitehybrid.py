"""Granite 4: Mamba-2 in most layers, attention in others, usually without positions; dense, or
experts with one that all tokens share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ggmodel import Module, Tensor, gguf, kv, nn, register
from ggmodel.kvcache import Causal
from ggmodel.model import Part
from ggmodel.nn import ExpertLinear, Linear

from .granite import GraniteConfig


def _ffn(hf: Mapping[str, Any]) -> int:
    return hf["intermediate_size" if hf.get("num_local_experts") else "shared_intermediate_size"]


def _shared(hf: Mapping[str, Any]) -> int | None:
    return hf["shared_intermediate_size"] if hf.get("num_local_experts") else None


class GraniteHybridConfig(nn.Mamba2Config, nn.HybridConfig, GraniteConfig):
    # The tensors tell the same, or no part has it.
    fixed = {
        "mamba_conv_bias": ...,
        "mamba_proj_bias": ...,
        "mamba_chunk_size": ...,
        "intermediate_size": ...,
    }

    ffn: int = kv("feed_forward_length", hf=_ffn)
    experts: int = kv("expert_count", hf="num_local_experts", default=0)
    experts_used: int = kv("expert_used_count", hf="num_experts_per_tok", default=0)
    shared_ffn: int = kv("expert_shared_feed_forward_length", hf=_shared, default=0)
    shared_width = property(lambda h: h.shared_ffn or h.ffn)
    rotates: bool = kv(
        "rope.scaling.finetuned",
        hf=lambda hf: hf.get("position_embedding_type") == "rope",
        default=True,
    )


def _half(index: int, width: str) -> Part:
    """Gate and up are one tensor in checkpoints."""
    return Part("input_linear.weight", index, (width, width), axis=-2)


class Gate(Linear):
    weight: Tensor = gguf("weight", hf=_half(0, "shared_width"))


class Up(Linear):
    weight: Tensor = gguf("weight", hf=_half(1, "shared_width"))


class SharedMLP(nn.GatedMLP):
    gate: Gate = gguf("ffn_gate", hf="", shape=("width", "shared_width"))
    up: Up = gguf("ffn_up", hf="", shape=("width", "shared_width"))
    down: Linear = gguf("ffn_down", hf="output_linear", shape=("shared_width", "width"))


class Dense(Module):
    shared: SharedMLP = gguf(hf="shared_mlp")

    def forward(self, x: Tensor) -> Tensor:
        return self.shared(x)


class ExpertGate(ExpertLinear):
    weight: Tensor = gguf("weight", hf=_half(0, "ffn"))


class ExpertUp(ExpertLinear):
    weight: Tensor = gguf("weight", hf=_half(1, "ffn"))


class Experts(nn.GatedExperts):
    router: Linear = gguf(
        "ffn_gate_inp", hf="block_sparse_moe.router.layer", shape=("width", "experts")
    )
    gate: ExpertGate = gguf(
        "ffn_gate_exps", hf="block_sparse_moe", shape=("width", "ffn", "experts")
    )
    up: ExpertUp = gguf("ffn_up_exps", hf="block_sparse_moe", shape=("width", "ffn", "experts"))
    down: ExpertLinear = gguf(
        "ffn_down_exps", hf="block_sparse_moe.output_linear", shape=("ffn", "width", "experts")
    )
    shared: SharedMLP = gguf(suffix="_shexp", hf="shared_mlp")


class Layer(nn.PreNormLayer):
    attn: nn.PermutedAttention | nn.Mamba2 = gguf(hf=("self_attn", "mamba"))
    ffn: Experts | Dense = gguf(hf="")


@register("granitehybrid", hf="GraniteMoeHybridForCausalLM")
class GraniteHybrid(nn.HybridDecoder):
    config: GraniteHybridConfig
    layers: list[Layer]

    def attention_memory(self) -> Causal:
        return Causal(self.rotary.rope() if self.config.rotates else None)
