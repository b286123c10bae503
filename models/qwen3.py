"""Qwen 3, dense and with experts: llama's blocks with a norm on each query and key."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ggmodel import Model, Module, Tensor, gguf, kv, nn, register
from ggmodel.kvcache import Causal, Sliding
from ggmodel.ml import RopeType
from ggmodel.model import Batch, Stack
from ggmodel.nn import Embedding, ExpertLinear, Linear, RMSNorm, RopeConfig, Rotary


def _experts(hf: Mapping[str, Any]) -> int | None:
    return hf.get("num_experts") or hf.get("num_local_experts")


def _window(hf: Mapping[str, Any]) -> int | None:
    return hf.get("sliding_window", 4096) if hf.get("use_sliding_window") else None


def _pattern(hf: Mapping[str, Any]) -> list[bool] | None:
    """Lower layers see everything, but of models with experts none does."""
    if not hf.get("use_sliding_window"):
        return None
    first, layers = hf.get("max_window_layers", 28), range(hf["num_hidden_layers"])
    return nn.sliding_layers(hf) or [bool(_experts(hf)) or i >= first for i in layers]


class Hyper(RopeConfig):
    layers: int = kv("block_count", hf="num_hidden_layers")
    hidden: int = kv("embedding_length", hf="hidden_size")
    ffn: int = kv("feed_forward_length", hf="intermediate_size")
    heads: int = kv("attention.head_count", hf="num_attention_heads")
    kv_heads: int = kv("attention.head_count_kv", hf="num_key_value_heads", default="heads")
    head_dim: int = kv("attention.key_length", hf="head_dim", default=lambda h: h.hidden // h.heads)
    value_dim: int = kv("attention.value_length", hf="head_dim", default="head_dim")
    eps: float = kv("attention.layer_norm_rms_epsilon", hf="rms_norm_eps", default=1e-6)
    context: int = kv("context_length", hf="max_position_embeddings", default=32768)
    window: int = kv("attention.sliding_window", hf=_window, default=0)
    pattern: list = kv("attention.sliding_window_pattern", hf=_pattern, default=[1])
    experts: int = kv("expert_count", hf=_experts, default=0)
    experts_used: int = kv("expert_used_count", hf="num_experts_per_tok", default=0)
    expert_ffn: int = kv("expert_feed_forward_length", hf="moe_intermediate_size", default=0)
    # Files by llama.cpp's converter do not say so: all that are published normalize.
    normalize: bool = kv("expert_weights_norm", hf="norm_topk_prob", default=True)
    q_width = property(lambda h: h.heads * h.head_dim)
    k_width = property(lambda h: h.kv_heads * h.head_dim)
    v_width = property(lambda h: h.kv_heads * h.value_dim)
    out_width = property(lambda h: h.heads * h.value_dim)


class Attention(Module):
    config: Hyper
    q: Linear = gguf("attn_q", hf="q_proj", shape=("hidden", "q_width"))
    k: Linear = gguf("attn_k", hf="k_proj", shape=("hidden", "k_width"))
    v: Linear = gguf("attn_v", hf="v_proj", shape=("hidden", "v_width"))
    out: Linear = gguf("attn_output", hf="o_proj", shape=("out_width", "hidden"))
    q_norm: RMSNorm = gguf("attn_q_norm", hf="q_norm", shape=("head_dim",))
    k_norm: RMSNorm = gguf("attn_k_norm", hf="k_norm", shape=("head_dim",))
    rotary: Rotary = gguf(hf="")

    def forward(self, x: Tensor, batch: Batch, cache) -> Tensor:
        h, rope = self.config, self.rotary.rope(RopeType.NEOX)
        q = self.q_norm(self.q(x).reshape(h.head_dim, h.heads, -1))
        k = self.k_norm(self.k(x).reshape(h.head_dim, h.kv_heads, -1))
        v = self.v(x).reshape(h.value_dim, h.kv_heads, -1)
        q, k = rope(q, batch.positions), rope(k, batch.positions)
        return self.out(nn.attention(q, k, v, cache, scale=h.head_dim**-0.5))


class Dense(Module):
    gate: Linear = gguf("ffn_gate", hf="gate_proj", shape=("hidden", "ffn"))
    up: Linear = gguf("ffn_up", hf="up_proj", shape=("hidden", "ffn"))
    down: Linear = gguf("ffn_down", hf="down_proj", shape=("ffn", "hidden"))

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.gate(x).silu(self.up(x)))


def _stack(name: str, *shape: str) -> ExpertLinear:
    source = Stack(f"experts.{{}}.{name}_proj", "experts")
    return gguf(f"ffn_{name}_exps", hf=source, shape=(*shape, "experts"))


class Experts(Module):
    config: Hyper
    router: Linear = gguf("ffn_gate_inp", hf="gate", shape=("hidden", "experts"))
    gate: ExpertLinear = _stack("gate", "hidden", "expert_ffn")
    up: ExpertLinear = _stack("up", "hidden", "expert_ffn")
    down: ExpertLinear = _stack("down", "expert_ffn", "hidden")

    def forward(self, x: Tensor) -> Tensor:
        h = self.config
        ids, weights = nn.choose_experts(self.router(x), h.experts_used, h.normalize)
        x = x.reshape(x.dim(0), 1, -1)
        y = self.down(self.gate(x, ids).silu(self.up(x, ids)), ids) * weights
        return nn.sum_experts(y)


class Layer(Module):
    attn_norm: RMSNorm = gguf("attn_norm", hf="input_layernorm", shape=("hidden",))
    attn: Attention = gguf(hf="self_attn")
    ffn_norm: RMSNorm = gguf("ffn_norm", hf="post_attention_layernorm", shape=("hidden",))
    ffn: Dense | Experts = gguf(hf="mlp")

    def forward(self, x: Tensor, batch: Batch, cache, outputs: Tensor | None) -> Tensor:
        y = self.attn(self.attn_norm(x), batch, cache)
        if outputs is not None:
            x, y = x.rows(outputs), y.rows(outputs)
        x = x + y
        return x + self.ffn(self.ffn_norm(x))


@register("qwen3", hf="Qwen3ForCausalLM")
class Qwen3(Model):
    config: Hyper
    embed: Embedding = gguf("token_embd", hf="model.embed_tokens", shape=("hidden", None))
    layers: list[Layer] = gguf("blk", hf="model.layers", n="layers")
    norm: RMSNorm = gguf("output_norm", hf="model.norm", shape=("hidden",))
    head: Linear = gguf("output", "token_embd", hf="lm_head", shape=("hidden", None))

    def caches(self) -> list[Causal | Sliding]:
        h = self.config
        local = nn.local_layers(h.pattern, h.layers, h.window)
        ropes = [layer.attn.rotary.rope(RopeType.NEOX) for layer in self.layers]
        return Sliding.where(local, h.window, ropes)

    def hidden(self, ctx, batch: Batch) -> Tensor:
        x = self.embed(batch.inputs)
        for layer, cache, outputs in batch.through(self.layers):
            x = layer(x, batch, cache, outputs)
        return self.norm(x)


@register("qwen3moe", hf="Qwen3MoeForCausalLM")
class Qwen3Moe(Qwen3):
    """The same with experts in most layers; files have a name of their own for it."""
