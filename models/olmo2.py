"""OLMo 2: norms stand behind attention and feed-forward, and on whole queries and keys.

OLMo 3 is the same with windows; files have one name for both."""

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
    eps: float = kv("attention.layer_norm_rms_epsilon", hf="rms_norm_eps", default=1e-5)
    context: int = kv("context_length", hf="max_position_embeddings", default=4096)
    window: int = kv("attention.sliding_window", hf="sliding_window", default=0)
    pattern: list = kv("attention.sliding_window_pattern", hf=nn.sliding_layers, default=[4])
    head_dim = property(lambda h: h.hidden // h.heads)
    k_width = property(lambda h: h.kv_heads * h.head_dim)
    local = property(lambda h: nn.local_layers(h.pattern, h.layers, h.window))


class Attention(Module):
    config: Hyper
    q: Linear = gguf("attn_q", hf="q_proj", shape=("hidden", "hidden"))
    k: Linear = gguf("attn_k", hf="k_proj", shape=("hidden", "k_width"))
    v: Linear = gguf("attn_v", hf="v_proj", shape=("hidden", "k_width"))
    out: Linear = gguf("attn_output", hf="o_proj", shape=("hidden", "hidden"))
    q_norm: RMSNorm = gguf("attn_q_norm", hf="q_norm", shape=("hidden",))
    k_norm: RMSNorm = gguf("attn_k_norm", hf="k_norm", shape=("k_width",))
    rotary: Rotary = gguf(hf="")

    def rope(self, local: bool) -> nn.Rope:
        """What is near needs no scaling of positions."""
        h = self.config
        if local:
            return nn.Rope(h.rope_dims, h.rope_base, type=RopeType.NEOX)
        return self.rotary.rope(RopeType.NEOX)

    def forward(self, x: Tensor, batch: Batch, cache, local: bool) -> Tensor:
        h, rope = self.config, self.rope(local)
        q = self.q_norm(self.q(x)).reshape(h.head_dim, h.heads, -1)
        k = self.k_norm(self.k(x)).reshape(h.head_dim, h.kv_heads, -1)
        v = self.v(x).reshape(h.head_dim, h.kv_heads, -1)
        q, k = rope(q, batch.positions), rope(k, batch.positions)
        return self.out(nn.attention(q, k, v, cache, scale=h.head_dim**-0.5))


class FeedForward(Module):
    gate: Linear = gguf("ffn_gate", hf="gate_proj", shape=("hidden", "ffn"))
    up: Linear = gguf("ffn_up", hf="up_proj", shape=("hidden", "ffn"))
    down: Linear = gguf("ffn_down", hf="down_proj", shape=("ffn", "hidden"))

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.gate(x).silu(self.up(x)))


class Layer(Module):
    attn: Attention = gguf(hf="self_attn")
    attn_norm: RMSNorm = gguf(
        "post_attention_norm", hf="post_attention_layernorm", shape=("hidden",)
    )
    ffn: FeedForward = gguf(hf="mlp")
    ffn_norm: RMSNorm = gguf("post_ffw_norm", hf="post_feedforward_layernorm", shape=("hidden",))

    def forward(self, x: Tensor, batch: Batch, cache, local, outputs: Tensor | None) -> Tensor:
        y = self.attn(x, batch, cache, local)
        if outputs is not None:
            x, y = x.rows(outputs), y.rows(outputs)
        x = x + self.attn_norm(y)
        return x + self.ffn_norm(self.ffn(x))


@register("olmo2", hf=("Olmo2ForCausalLM", "Olmo3ForCausalLM"))
class OLMo2(Model):
    config: Hyper
    embed: Embedding = gguf("token_embd", hf="model.embed_tokens", shape=("hidden", None))
    layers: list[Layer] = gguf("blk", hf="model.layers", n="layers")
    norm: RMSNorm = gguf("output_norm", hf="model.norm", shape=("hidden",))
    head: Linear = gguf("output", "token_embd", hf="lm_head", shape=("hidden", None))

    def caches(self) -> list[Causal | Sliding]:
        h = self.config
        each = zip(h.local, self.layers, strict=True)
        ropes = [layer.attn.rope(local) for local, layer in each]
        return Sliding.where(h.local, h.window, ropes)

    def hidden(self, ctx, batch: Batch) -> Tensor:
        x = self.embed(batch.inputs)
        each = zip(batch.through(self.layers), self.config.local, strict=True)
        for (layer, cache, outputs), local in each:
            x = layer(x, batch, cache, local, outputs)
        return self.norm(x)
