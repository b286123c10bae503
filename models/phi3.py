"""Phi 3 and 4: llama's blocks, with queries, keys and values in one matrix, gate and up in one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ggmodel import Model, Module, Tensor, gguf, kv, nn, register
from ggmodel.kvcache import Causal, Sliding
from ggmodel.ml import RopeType
from ggmodel.model import Batch
from ggmodel.nn import Embedding, Linear, RMSNorm, RopeConfig, Rotary


def _rope_dims(hf: Mapping[str, Any]) -> int | None:
    """Only a part of each head may be rotated."""
    head_dim = hf["hidden_size"] // hf["num_attention_heads"]
    return int(head_dim * hf.get("partial_rotary_factor", 1.0))


class Hyper(RopeConfig):
    layers: int = kv("block_count", hf="num_hidden_layers")
    hidden: int = kv("embedding_length", hf="hidden_size")
    ffn: int = kv("feed_forward_length", hf="intermediate_size")
    heads: int = kv("attention.head_count", hf="num_attention_heads")
    kv_heads: int = kv("attention.head_count_kv", hf="num_key_value_heads", default="heads")
    eps: float = kv("attention.layer_norm_rms_epsilon", hf="rms_norm_eps", default=1e-5)
    context: int = kv("context_length", hf="max_position_embeddings", default=4096)
    rope_dims: int = kv("rope.dimension_count", hf=_rope_dims, default="head_dim")
    window: int = kv("attention.sliding_window", hf="sliding_window", default=0)
    head_dim = property(lambda h: h.hidden // h.heads)
    qkv_width = property(lambda h: (h.heads + 2 * h.kv_heads) * h.head_dim)
    up_width = property(lambda h: 2 * h.ffn)


class Attention(Module):
    config: Hyper
    qkv: Linear = gguf("attn_qkv", hf="qkv_proj", shape=("hidden", "qkv_width"))
    out: Linear = gguf("attn_output", hf="o_proj", shape=("hidden", "hidden"))
    rotary: Rotary = gguf(hf="")

    def forward(self, x: Tensor, batch: Batch, cache) -> Tensor:
        h, rope = self.config, self.rotary.rope(RopeType.NEOX)
        x = self.qkv(x).reshape(h.head_dim, h.heads + 2 * h.kv_heads, -1)
        q, k, v = x.chunk_sections(1, h.heads, h.kv_heads, h.kv_heads)
        q, k = rope(q, batch.positions), rope(k, batch.positions)
        return self.out(nn.attention(q, k, v, cache, scale=h.head_dim**-0.5))


class FeedForward(Module):
    config: Hyper
    up: Linear = gguf("ffn_up", hf="gate_up_proj", shape=("hidden", "up_width"))
    down: Linear = gguf("ffn_down", hf="down_proj", shape=("ffn", "hidden"))

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.up(x).chunk(0, self.config.ffn)
        return self.down(gate.silu(up))


class Layer(Module):
    attn_norm: RMSNorm = gguf("attn_norm", hf="input_layernorm", shape=("hidden",))
    attn: Attention = gguf(hf="self_attn")
    ffn_norm: RMSNorm = gguf("ffn_norm", hf="post_attention_layernorm", shape=("hidden",))
    ffn: FeedForward = gguf(hf="mlp")

    def forward(self, x: Tensor, batch: Batch, cache, outputs: Tensor | None) -> Tensor:
        y = self.attn(self.attn_norm(x), batch, cache)
        if outputs is not None:
            x, y = x.rows(outputs), y.rows(outputs)
        x = x + y
        return x + self.ffn(self.ffn_norm(x))


@register("phi3", hf="Phi3ForCausalLM")
class Phi3(Model):
    config: Hyper
    embed: Embedding = gguf("token_embd", hf="model.embed_tokens", shape=("hidden", None))
    layers: list[Layer] = gguf("blk", hf="model.layers", n="layers")
    norm: RMSNorm = gguf("output_norm", hf="model.norm", shape=("hidden",))
    head: Linear = gguf("output", "token_embd", hf="lm_head", shape=("hidden", None))

    def caches(self) -> list[Causal | Sliding]:
        h = self.config
        ropes = [layer.attn.rotary.rope(RopeType.NEOX) for layer in self.layers]
        return Sliding.where([bool(h.window)] * h.layers, h.window, ropes)

    def hidden(self, ctx, batch: Batch) -> Tensor:
        x = self.embed(batch.inputs)
        for layer, cache, outputs in batch.through(self.layers):
            x = layer(x, batch, cache, outputs)
        return self.norm(x)
