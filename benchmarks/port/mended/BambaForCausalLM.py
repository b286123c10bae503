"""Bamba: Mamba-2 in most layers, attention in those that the configuration lists."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ggmodel import gguf, kv, nn, register
from ggmodel.nn import RMSNorm


def _kv_heads(hf: Mapping[str, Any]) -> list[int]:
    heads, attention = hf["num_key_value_heads"], hf.get("attn_layer_indices") or ()
    return [heads if i in attention else 0 for i in range(hf["num_hidden_layers"])]


def _rotated(hf: Mapping[str, Any]) -> int:
    return int(hf["hidden_size"] // hf["num_attention_heads"] * hf["partial_rotary_factor"])


class BambaConfig(nn.Mamba2Config, nn.HybridConfig):
    # The tensors tell the same, or no part has it.
    fixed = {
        **{f"mamba_{key}": ... for key in ("rms_norm", "conv_bias", "proj_bias", "use_mlp")},
        **dict.fromkeys(("mamba_chunk_size", "projectors_bias"), ...),
    }

    each_kv_heads: list = kv("attention.head_count_kv", hf=_kv_heads)
    rope_dims: int = kv("rope.dimension_count", hf=_rotated)


class Layer(nn.PreNormLayer):
    attn: nn.Attention | nn.Mamba2 = gguf(hf=("self_attn", "mamba"))
    ffn_norm: RMSNorm = gguf("ffn_norm", hf="pre_ff_layernorm", shape=("width",))
    ffn: nn.GatedMLP = gguf(hf="feed_forward")


@register("bamba", hf="BambaForCausalLM")
class Bamba(nn.HybridDecoder):
    config: BambaConfig
    layers: list[Layer]
    norm: RMSNorm = gguf("output_norm", hf="model.final_layernorm", shape=("width",))
