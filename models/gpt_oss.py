"""gpt-oss: attention with sinks, every other layer in a window; experts, published in MXFP4."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ggmodel import Model, Module, Tensor, gguf, kv, nn, register
from ggmodel.errors import ConfigError
from ggmodel.kvcache import Causal, Sliding
from ggmodel.ml import RopeType
from ggmodel.model import Batch, Interleaved, MXFP4Blocks, Transpose
from ggmodel.nn import Embedding, ExpertLinear, Linear, RMSNorm, Rotary

ALPHA, LIMIT = 1.702, 7.0  # of the clamped SwiGLU; files do not say them


def _width(hf: Mapping[str, Any]) -> int:
    swiglu = hf.get("swiglu_alpha", ALPHA), hf.get("swiglu_limit", LIMIT)
    if swiglu != (ALPHA, LIMIT):
        raise ConfigError(f"a SwiGLU of alpha and limit {swiglu}; files can only say 1.702 and 7")
    return hf["intermediate_size"]


def _pattern(hf: Mapping[str, Any]) -> list[bool] | None:
    """Where it is not every other layer, the first included."""
    local = nn.sliding_layers(hf)
    return None if local == [i % 2 == 0 for i in range(hf["num_hidden_layers"])] else local


def _truncate(hf: Mapping[str, Any]) -> bool | None:
    scaling = hf.get("rope_scaling", {})
    return True if scaling.get("rope_type") == "yarn" and scaling.get("truncate", True) else None


class Hyper(nn.RopeConfig):
    layers: int = kv("block_count", hf="num_hidden_layers")
    hidden: int = kv("embedding_length", hf="hidden_size")
    heads: int = kv("attention.head_count", hf="num_attention_heads")
    kv_heads: int = kv("attention.head_count_kv", hf="num_key_value_heads")
    head_dim: int = kv("attention.key_length", hf="head_dim", default=64)
    value_dim: int = kv("attention.value_length", hf="head_dim", default="head_dim")
    eps: float = kv("attention.layer_norm_rms_epsilon", hf="rms_norm_eps", default=1e-5)
    context: int = kv("context_length", hf="max_position_embeddings")
    window: int = kv("attention.sliding_window", hf="sliding_window")
    pattern: list = kv("attention.sliding_window_pattern", hf=_pattern, default=[2])
    ffn: int = kv("expert_feed_forward_length", "feed_forward_length", hf=_width)
    dense_ffn: int = kv("feed_forward_length", hf="intermediate_size", default="ffn")
    experts: int = kv("expert_count", hf="num_local_experts")
    experts_used: int = kv("expert_used_count", hf="num_experts_per_tok")
    # llama.cpp always rounds, and its files do not say; the model was trained without rounding.
    yarn_truncate: bool = kv("rope.scaling.yarn_truncate", hf=_truncate, default=False)
    q_width = property(lambda h: h.heads * h.head_dim)
    k_width = property(lambda h: h.kv_heads * h.head_dim)
    v_width = property(lambda h: h.kv_heads * h.value_dim)
    out_width = property(lambda h: h.heads * h.value_dim)
    local = property(lambda h: nn.local_layers(h.pattern, h.layers, h.window))


class Attention(Module):
    config: Hyper
    q: Linear = gguf("attn_q", hf="q_proj", shape=("hidden", "q_width"))
    k: Linear = gguf("attn_k", hf="k_proj", shape=("hidden", "k_width"))
    v: Linear = gguf("attn_v", hf="v_proj", shape=("hidden", "v_width"))
    out: Linear = gguf("attn_output", hf="o_proj", shape=("out_width", "hidden"))
    sinks: Tensor = gguf("attn_sinks.weight", hf="sinks", shape=("heads",))
    rotary: Rotary

    def forward(self, x: Tensor, batch: Batch, cache) -> Tensor:
        h, rope = self.config, self.rotary.rope(RopeType.NEOX)
        q = rope(self.q(x).reshape(h.head_dim, h.heads, -1), batch.positions)
        k = rope(self.k(x).reshape(h.head_dim, h.kv_heads, -1), batch.positions)
        v = self.v(x).reshape(h.value_dim, h.kv_heads, -1)
        scale = h.head_dim**-0.5
        return self.out(nn.attention(q, k, v, cache, scale=scale, sinks=self.sinks))


def _fused(index: int) -> tuple[Any, Any]:
    """Weight and bias of the experts' gates, 0, or of what goes up, 1."""
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
    config: Hyper
    router: Linear = gguf("ffn_gate_inp", hf="router", shape=("hidden", "experts"))
    gate: Gate = gguf("ffn_gate_exps", hf="experts", shape=("hidden", "ffn", "experts"))
    up: Up = gguf("ffn_up_exps", hf="experts", shape=("hidden", "ffn", "experts"))
    down: Down = gguf("ffn_down_exps", hf="experts", shape=("ffn", "hidden", "experts"))

    def forward(self, x: Tensor) -> Tensor:
        ids, weights = nn.choose_experts(self.router(x), self.config.experts_used)
        x = x.reshape(x.dim(0), 1, -1)
        y = self.gate(x, ids).silu_alpha_limit(self.up(x, ids), ALPHA, LIMIT)
        return nn.sum_experts(self.down(y, ids) * weights)


class Layer(Module):
    attn_norm: RMSNorm = gguf("attn_norm", hf="input_layernorm", shape=("hidden",))
    attn: Attention = gguf(hf="self_attn")
    ffn_norm: RMSNorm = gguf(
        "post_attention_norm", hf="post_attention_layernorm", shape=("hidden",)
    )
    ffn: Experts = gguf(hf="mlp")

    def forward(self, x: Tensor, batch: Batch, cache, outputs: Tensor | None) -> Tensor:
        y = self.attn(self.attn_norm(x), batch, cache)
        if outputs is not None:
            x, y = x.rows(outputs), y.rows(outputs)
        x = x + y
        return x + self.ffn(self.ffn_norm(x))


@register("gpt-oss", hf="GptOssForCausalLM")
class GptOss(Model):
    config: Hyper
    embed: Embedding = gguf("token_embd", hf="model.embed_tokens", shape=("hidden", None))
    layers: list[Layer] = gguf("blk", hf="model.layers", n="layers")
    norm: RMSNorm = gguf("output_norm", hf="model.norm", shape=("hidden",))
    head: Linear = gguf("output", "token_embd", hf="lm_head", shape=("hidden", None))

    def caches(self) -> list[Causal | Sliding]:
        h, ropes = self.config, [x.attn.rotary.rope(RopeType.NEOX) for x in self.layers]
        return Sliding.where(h.local, h.window, ropes)

    def hidden(self, ctx, batch: Batch) -> Tensor:
        x = self.embed(batch.inputs)
        for layer, cache, outputs in batch.through(self.layers):
            x = layer(x, batch, cache, outputs)
        return self.norm(x)
