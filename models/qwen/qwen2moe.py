"""Qwen 1.5 and 2 with experts: Qwen 2's attention, and an expert that all tokens share, gated."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ggmodel import gguf, kv, nn, register
from ggmodel.nn import Linear

from .qwen2 import Qwen2, Qwen2Config


def _pattern(hf: Mapping[str, Any]) -> list[bool] | None:
    """Every other layer, of the first ones, is local, unless the config lists them."""
    if not hf.get("use_sliding_window"):
        return None
    if hf.get("layer_types"):
        return nn.sliding_layers(hf)
    return [i % 2 == 0 and i < hf["max_window_layers"] for i in range(hf["num_hidden_layers"])]


class Qwen2MoeConfig(Qwen2Config, nn.SharedExpertsConfig):
    # The tensors tell which layers have experts, and biases.
    fixed = {"mlp_only_layers": ..., "decoder_sparse_step": ..., "qkv_bias": ...}

    pattern: list = kv("attention.sliding_window_pattern", hf=_pattern, default=[1])


class Experts(nn.GatedExperts):
    shared: nn.SharedExpert = gguf(hf="shared_expert")
    share: Linear = gguf("ffn_gate_inp_shexp", hf="shared_expert_gate", shape=("width", 1))


class Layer(nn.PreNormLayer):
    attn: nn.Attention
    ffn: nn.GatedMLP | Experts


@register("qwen2moe", hf="Qwen2MoeForCausalLM")
class Qwen2Moe(Qwen2):
    config: Qwen2MoeConfig
    layers: list[Layer]
