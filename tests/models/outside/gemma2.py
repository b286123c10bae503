"""Gemma 2: every other layer sees a window, norms on both sides of each part, capped scores."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ggmodel import Model, Module, Tensor, gguf, kv, nn, register
from ggmodel.errors import Unsupported
from ggmodel.kvcache import Causal, Sliding
from ggmodel.ml import RopeType
from ggmodel.model import AddConstant, Batch
from ggmodel.nn import Embedding, Linear, RMSNorm, RopeConfig, Rotary


def _causal(hf: Mapping[str, Any]) -> bool | None:
    return False if hf.get("use_bidirectional_attention") else None


class Hyper(RopeConfig):
    layers: int = kv("block_count", hf="num_hidden_layers")
    hidden: int = kv("embedding_length", hf="hidden_size")
    ffn: int = kv("feed_forward_length", hf="intermediate_size")
    heads: int = kv("attention.head_count", hf="num_attention_heads")
    kv_heads: int = kv("attention.head_count_kv", hf="num_key_value_heads", default="heads")
    head_dim: int = kv("attention.key_length", hf="head_dim", default=256)
    value_dim: int = kv("attention.value_length", hf="head_dim", default="head_dim")
    scale: float = kv(
        "attention.scale",
        hf=lambda hf: hf.get("query_pre_attn_scalar", 256) ** -0.5,
        # The published 27B, with 46 layers, is the exception, and files do not say so.
        default=lambda h: (h.hidden // h.heads if h.layers == 46 else h.head_dim) ** -0.5,
    )
    # Configs name both; where they say null nothing is capped.
    score_cap: float = kv(
        "attn_logit_softcapping", hf=lambda hf: hf.get("attn_logit_softcapping", 0.0), default=50.0
    )
    logit_cap: float = kv(
        "final_logit_softcapping",
        hf=lambda hf: hf.get("final_logit_softcapping", 0.0),
        default=30.0,
    )
    eps: float = kv("attention.layer_norm_rms_epsilon", hf="rms_norm_eps", default=1e-6)
    context: int = kv("context_length", hf="max_position_embeddings", default=8192)
    window: int = kv("attention.sliding_window", hf="sliding_window", default=4096)
    pattern: list = kv("attention.sliding_window_pattern", hf=nn.sliding_layers, default=[2])
    causal: bool = kv("attention.causal", hf=_causal, default=True)
    q_width = property(lambda h: h.heads * h.head_dim)
    k_width = property(lambda h: h.kv_heads * h.head_dim)
    v_width = property(lambda h: h.kv_heads * h.value_dim)
    out_width = property(lambda h: h.heads * h.value_dim)


def _norm(name: str, hf: str) -> RMSNorm:
    """In checkpoints it multiplies by 1 + weight."""
    return gguf(name, hf=hf, op=AddConstant(1), shape=("hidden",))


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
        return self.out(nn.attention(q, k, v, cache, scale=h.scale, softcap=h.score_cap))


class FeedForward(Module):
    gate: Linear = gguf("ffn_gate", hf="gate_proj", shape=("hidden", "ffn"))
    up: Linear = gguf("ffn_up", hf="up_proj", shape=("hidden", "ffn"))
    down: Linear = gguf("ffn_down", hf="down_proj", shape=("ffn", "hidden"))

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.gate(x).gelu(self.up(x)))


class Layer(Module):
    attn_norm: RMSNorm = _norm("attn_norm", "input_layernorm")
    attn: Attention = gguf(hf="self_attn")
    attn_post_norm: RMSNorm = _norm("post_attention_norm", "post_attention_layernorm")
    ffn_norm: RMSNorm = _norm("ffn_norm", "pre_feedforward_layernorm")
    ffn: FeedForward = gguf(hf="mlp")
    ffn_post_norm: RMSNorm = _norm("post_ffw_norm", "post_feedforward_layernorm")

    def forward(self, x: Tensor, batch: Batch, cache, outputs: Tensor | None) -> Tensor:
        y = self.attn(self.attn_norm(x), batch, cache)
        if outputs is not None:
            x, y = x.rows(outputs), y.rows(outputs)
        x = x + self.attn_post_norm(y)
        return x + self.ffn_post_norm(self.ffn(self.ffn_norm(x)))


@register("gemma2", hf="Gemma2ForCausalLM")
class Gemma2(Model):
    config: Hyper
    embed: Embedding = gguf("token_embd", hf="model.embed_tokens", shape=("hidden", None))
    layers: list[Layer] = gguf("blk", hf="model.layers", n="layers")
    norm: RMSNorm = _norm("output_norm", "model.norm")
    head: Linear = gguf("output", "token_embd", hf="lm_head", shape=("hidden", None))

    def validate(self) -> None:
        if not self.config.causal:
            raise Unsupported("a Gemma 2 whose tokens see later ones; only causal ones are there")

    def caches(self) -> list[Causal | Sliding]:
        h = self.config
        local = nn.local_layers(h.pattern, h.layers, h.window)
        ropes = [layer.attn.rotary.rope(RopeType.NEOX) for layer in self.layers]
        return Sliding.where(local, h.window, ropes)

    def hidden(self, ctx, batch: Batch) -> Tensor:
        x = self.embed(batch.inputs).scale(self.config.hidden**0.5)
        for layer, cache, outputs in batch.through(self.layers):
            x = layer(x, batch, cache, outputs)
        return self.norm(x)

    def forward(self, ctx, batch: Batch) -> Tensor:
        logits, cap = self.head(self.states(ctx, batch)), self.config.logit_cap
        return logits.scale(1 / cap).tanh().scale(cap) if cap else logits
