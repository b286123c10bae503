"""Jamba: Mamba in most layers, attention without positions in others, experts in every other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ggmodel import gguf, kv, nn, register
from ggmodel.kvcache import Causal
from ggmodel.model import Stack
from ggmodel.nn import ExpertLinear, Linear, RMSNorm


def _kv_heads(hf: Mapping[str, Any]) -> list[int]:
    heads = hf.get("num_key_value_heads") or hf["num_attention_heads"]
    period, first = hf["attn_layer_period"], hf["attn_layer_offset"]
    return [heads if i % period == first else 0 for i in range(hf["num_hidden_layers"])]


class JambaConfig(nn.MambaConfig, nn.HybridConfig):
    # The tensors tell the same, or training alone reads it.
    fixed = {
        **{f"expert_layer_{key}": ... for key in ("period", "offset")},
        **{f"mamba_{key}": ... for key in ("conv_bias", "proj_bias")},
        **dict.fromkeys(("use_mamba_kernels", "use_mambapy", "use_associative_scan"), ...),
    }

    each_kv_heads: list = kv("attention.head_count_kv", hf=_kv_heads)
    experts: int = kv("expert_count", hf="num_experts", default=0)
    experts_used: int = kv("expert_used_count", hf="num_experts_per_tok", default=0)
    normalize: Any = False


class Mamba(nn.Mamba):
    dt_norm: RMSNorm = gguf("ssm_dt_norm", hf="dt_layernorm", shape=("rank",))
    b_norm: RMSNorm = gguf("ssm_b_norm", hf="b_layernorm", shape=("state",))
    c_norm: RMSNorm = gguf("ssm_c_norm", hf="c_layernorm", shape=("state",))


def _stack(name: str, *shape: str) -> ExpertLinear:
    source = Stack(f"experts.{{}}.{name}_proj", "experts")
    return gguf(f"ffn_{name}_exps", hf=source, shape=(*shape, "experts"))


class Experts(nn.GatedExperts):
    router: Linear = gguf("ffn_gate_inp", hf="router", shape=("width", "experts"))
    gate: ExpertLinear = _stack("gate", "width", "ffn")
    up: ExpertLinear = _stack("up", "width", "ffn")
    down: ExpertLinear = _stack("down", "ffn", "width")


class Layer(nn.PreNormLayer):
    attn: nn.Attention | Mamba = gguf(hf=("self_attn", "mamba"))
    ffn_norm: RMSNorm = gguf("ffn_norm", hf="pre_ff_layernorm", shape=("width",))
    ffn: nn.GatedMLP | Experts = gguf(hf="feed_forward")


@register("jamba", hf="JambaForCausalLM")
class Jamba(nn.HybridDecoder):
    config: JambaConfig
    layers: list[Layer]
    norm: RMSNorm = gguf("output_norm", hf="model.final_layernorm", shape=("width",))

    def attention_memory(self) -> Causal:
        return Causal()
