"""Mistral: llama's blocks; in the first version every layer sees a window.

llama.cpp's converter calls these checkpoints llama and forgets the window; such files are loaded as
what they say."""

from __future__ import annotations

from ggmodel import Model, Module, Tensor, gguf, kv, nn, register
from ggmodel.kvcache import Causal, Sliding
from ggmodel.ml import RopeType
from ggmodel.model import Batch
from ggmodel.nn import Embedding, Linear, RMSNorm, RopeConfig, Rotary


class Hyper(RopeConfig):
    layers: int = kv("block_count", hf="num_hidden_layers")
    hidden: int = kv("embedding_length", hf="hidden_size")
    ffn: int = kv("feed_forward_length", hf="intermediate_size")
    heads: int = kv("attention.head_count", hf="num_attention_heads")
    kv_heads: int = kv("attention.head_count_kv", hf="num_key_value_heads", default="heads")
    head_dim: int = kv("attention.key_length", hf="head_dim", default=lambda h: h.hidden // h.heads)
    value_dim: int = kv("attention.value_length", hf="head_dim", default="head_dim")
    eps: float = kv("attention.layer_norm_rms_epsilon", hf="rms_norm_eps", default=1e-5)
    context: int = kv("context_length", hf="max_position_embeddings", default=131072)
    window: int = kv("attention.sliding_window", hf="sliding_window", default=0)
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
    rotary: Rotary = gguf(hf="")

    def forward(self, x: Tensor, batch: Batch, cache) -> Tensor:
        h, rope = self.config, self.rotary.rope(RopeType.NEOX)
        q = rope(self.q(x).reshape(h.head_dim, h.heads, -1), batch.positions)
        k = rope(self.k(x).reshape(h.head_dim, h.kv_heads, -1), batch.positions)
        v = self.v(x).reshape(h.value_dim, h.kv_heads, -1)
        return self.out(nn.attention(q, k, v, cache, scale=h.head_dim**-0.5))


class FeedForward(Module):
    gate: Linear = gguf("ffn_gate", hf="gate_proj", shape=("hidden", "ffn"))
    up: Linear = gguf("ffn_up", hf="up_proj", shape=("hidden", "ffn"))
    down: Linear = gguf("ffn_down", hf="down_proj", shape=("ffn", "hidden"))

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.gate(x).silu(self.up(x)))


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


@register("mistral", hf="MistralForCausalLM")
class Mistral(Model):
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
