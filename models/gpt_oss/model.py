"""gpt-oss: attention with sinks, every other layer in a window; experts, published in MXFP4."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ggmodel import Module, Tensor, gguf, kv, nn, register
from ggmodel.errors import ConfigError
from ggmodel.kvcache import Causal, Sliding
from ggmodel.ml import RopeType
from ggmodel.model import Interleaved, MXFP4Blocks, Transpose
from ggmodel.nn import ExpertLinear, Linear, RMSNorm

ALPHA, LIMIT = 1.702, 7.0  # of the clamped SwiGLU; files do not have them


def _width(hf: Mapping[str, Any]) -> int:
    swiglu = hf.get("swiglu_alpha", ALPHA), hf.get("swiglu_limit", LIMIT)
    if swiglu != (ALPHA, LIMIT):
        raise ConfigError(f"swiglu_alpha and swiglu_limit {swiglu}; supported: {ALPHA} and {LIMIT}")
    return hf["intermediate_size"]


def _pattern(hf: Mapping[str, Any]) -> list[bool] | None:
    """The local layers, unless they are every other one from the first on."""
    local = nn.sliding_layers(hf)
    return None if local == [i % 2 == 0 for i in range(hf["num_hidden_layers"])] else local


def _truncate(hf: Mapping[str, Any]) -> bool | None:
    scaling = hf.get("rope_scaling", {})
    return True if scaling.get("rope_type") == "yarn" and scaling.get("truncate", True) else None


class GptOssConfig(nn.DecoderConfig):
    unread = ("dense_ffn",)

    head_dim: int = kv("attention.key_length", hf="head_dim", default=64)
    eps: float = kv("attention.layer_norm_rms_epsilon", hf="rms_norm_eps", default=1e-5)
    window: int = kv("attention.sliding_window", hf="sliding_window")
    pattern: list = kv("attention.sliding_window_pattern", hf=_pattern, default=[2])
    ffn: int = kv("expert_feed_forward_length", "feed_forward_length", hf=_width)
    dense_ffn: int = kv("feed_forward_length", hf="intermediate_size", default="ffn")
    experts: int = kv("expert_count", hf="num_local_experts")
    experts_used: int = kv("expert_used_count", hf="num_experts_per_tok")
    # llama.cpp always rounds, and its files lack the key; the model was trained without rounding.
    yarn_truncate: bool = kv("rope.scaling.yarn_truncate", hf=_truncate, default=False)


class Attention(nn.Attention):
    sinks: Tensor = gguf("attn_sinks.weight", hf="sinks", shape=("heads",))


def _fused(index: int) -> tuple[Any, Any]:
    """Weight and bias of the experts' `gate` (0) or `up` (1), interleaved in checkpoints."""
    blocks, numbers = MXFP4Blocks("gate_up_proj", index, 2), Interleaved("gate_up_proj", index, 2)
    bias = gguf("bias", hf=Interleaved("gate_up_proj_bias", index, 2))
    return gguf("weight", hf=(blocks, numbers), op=Transpose()), bias


class Gate(ExpertLinear):
    weight, bias = _fused(0)


class Up(ExpertLinear):
    weight, bias = _fused(1)


class Down(ExpertLinear):
    weight = gguf("weight", hf=(MXFP4Blocks("down_proj"), "down_proj"), op=Transpose())
    bias = gguf("bias", hf="down_proj_bias")


class Experts(Module):
    config: GptOssConfig
    router: Linear = gguf("ffn_gate_inp", hf="router", shape=("width", "experts"))
    gate: Gate = gguf("ffn_gate_exps", hf="experts", shape=("width", "ffn", "experts"))
    up: Up = gguf("ffn_up_exps", hf="experts", shape=("width", "ffn", "experts"))
    down: Down = gguf("ffn_down_exps", hf="experts", shape=("ffn", "width", "experts"))

    def forward(self, x: Tensor) -> Tensor:
        ids, weights = nn.choose_experts(self.router(x), self.config.experts_used)
        x = x.reshape(x.dim(0), 1, -1)
        y = self.gate(x, ids).silu_alpha_limit(self.up(x, ids), ALPHA, LIMIT)
        return nn.sum_experts(self.down(y, ids) * weights)


class Layer(nn.PreNormLayer):
    attn: Attention
    ffn_norm: RMSNorm = gguf("post_attention_norm", hf="post_attention_layernorm", shape=("width",))
    ffn: Experts


@register("gpt-oss", hf="GptOssForCausalLM")
class GptOss(nn.Decoder):
    config: GptOssConfig
    layers: list[Layer]

    def caches(self) -> list[Causal | Sliding]:
        h = self.config
        return Sliding.where(h.local, h.window, self.rotary.rope(RopeType.NEOX))
