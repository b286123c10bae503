"""MiniMax M2: norms on whole queries and keys, heads rotated in part, a router by sigmoids."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ggmodel import Tensor, gguf, kv, nn, register
from ggmodel.kvcache import Causal
from ggmodel.ml import RopeType
from ggmodel.models.olmo.olmo2 import Attention
from ggmodel.nn import ExpertLinear


def _rope_dims(hf: Mapping[str, Any]) -> int:
    share, dims = hf.get("partial_rotary_factor", 1.0), hf.get("rotary_dim")
    return dims or int(hf["head_dim"] * share)


class MinimaxM2Config(nn.ExpertsConfig):
    unread = ("dense_layers", "ffn")  # experts are as wide

    rope_dims: int = kv("rope.dimension_count", hf=_rope_dims)
    expert_ffn: int = kv("expert_feed_forward_length", hf="intermediate_size", default="ffn")
    gating: int = kv("expert_gating_func", hf=lambda hf: nn.SIGMOID, default=nn.SIGMOID)
    normalize: Any = True


class Experts(nn.GatedExperts):
    bias: Tensor = nn.selection_bias("e_score_correction_bias")
    gate: ExpertLinear = nn.stacked("gate", "w1")
    up: ExpertLinear = nn.stacked("up", "w3")
    down: ExpertLinear = nn.stacked("down", "w2")


class Layer(nn.PreNormLayer):
    attn: Attention
    ffn: Experts = gguf(hf=("block_sparse_moe", "mlp"))


@register("minimax-m2", hf="MiniMaxM2ForCausalLM")
class MinimaxM2(nn.Decoder):
    config: MinimaxM2Config
    layers: list[Layer]

    def caches(self) -> list[Causal]:
        return [Causal(self.rotary.rope(RopeType.NEOX))] * self.config.layers
