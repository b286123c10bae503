"""Llama, and what shares its blocks: Mixtral's experts, SmolLM."""

from __future__ import annotations

from ggmodel import Model, Module, Tensor, gguf, kv, nn, register
from ggmodel.kvcache import Causal
from ggmodel.model import Batch, PermuteRope, Stack
from ggmodel.nn import Embedding, ExpertLinear, Linear, RMSNorm


class Hyper(nn.RopeConfig):
    layers: int = kv("block_count", hf="num_hidden_layers")
    hidden: int = kv("embedding_length", hf="hidden_size")
    vocab: int | None = kv("vocab_size", hf="vocab_size")  # other programs ask for it
    ffn: int = kv("feed_forward_length", hf="intermediate_size")
    heads: int = kv("attention.head_count", hf="num_attention_heads")
    kv_heads: int = kv("attention.head_count_kv", hf="num_key_value_heads", default="heads")
    head_dim: int = kv("attention.key_length", hf="head_dim", default=lambda h: h.hidden // h.heads)
    value_dim: int = kv("attention.value_length", hf="head_dim", default="head_dim")
    eps: float = kv("attention.layer_norm_rms_epsilon", hf="rms_norm_eps")
    context: int = kv("context_length", hf="max_position_embeddings", default=2048)
    rope_dims: int = kv("rope.dimension_count", hf="head_dim", default="head_dim")
    experts: int = kv("expert_count", hf="num_local_experts", default=0)
    experts_used: int = kv("expert_used_count", hf="num_experts_per_tok", default=0)
    q_width = property(lambda h: h.heads * h.head_dim)
    k_width = property(lambda h: h.kv_heads * h.head_dim)
    v_width = property(lambda h: h.kv_heads * h.value_dim)
    out_width = property(lambda h: h.heads * h.value_dim)


class Attention(Module):
    config: Hyper
    q: Linear = gguf("attn_q", hf="q_proj", op=PermuteRope("heads"), shape=("hidden", "q_width"))
    k: Linear = gguf("attn_k", hf="k_proj", op=PermuteRope("kv_heads"), shape=("hidden", "k_width"))
    v: Linear = gguf("attn_v", hf="v_proj", shape=("hidden", "v_width"))
    out: Linear = gguf("attn_output", hf="o_proj", shape=("out_width", "hidden"))
    rotary: nn.Rotary

    def forward(self, x: Tensor, batch: Batch, cache) -> Tensor:
        h, rope = self.config, self.rotary.rope()
        q = rope(self.q(x).reshape(h.head_dim, h.heads, -1), batch.positions)
        k = rope(self.k(x).reshape(h.head_dim, h.kv_heads, -1), batch.positions)
        v = self.v(x).reshape(h.value_dim, h.kv_heads, -1)
        return self.out(nn.attention(q, k, v, cache, scale=h.head_dim**-0.5))


class Dense(Module):
    gate: Linear = gguf("ffn_gate", hf="mlp.gate_proj", shape=("hidden", "ffn"))
    up: Linear = gguf("ffn_up", hf="mlp.up_proj", shape=("hidden", "ffn"))
    down: Linear = gguf("ffn_down", hf="mlp.down_proj", shape=("ffn", "hidden"))

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.gate(x).silu(self.up(x)))


def _experts(name: str, hf: str, *shape: str) -> ExpertLinear:
    source = Stack(f"block_sparse_moe.experts.{{}}.{hf}", "experts")
    return gguf(name, hf=source, shape=(*shape, "experts"))


class Experts(Module):
    config: Hyper
    router: Linear = gguf("ffn_gate_inp", hf="block_sparse_moe.gate", shape=("hidden", "experts"))
    gate: ExpertLinear = _experts("ffn_gate_exps", "w1", "hidden", "ffn")
    up: ExpertLinear = _experts("ffn_up_exps", "w3", "hidden", "ffn")
    down: ExpertLinear = _experts("ffn_down_exps", "w2", "ffn", "hidden")

    def forward(self, x: Tensor) -> Tensor:
        ids, weights = nn.choose_experts(self.router(x), self.config.experts_used)
        x = x.reshape(x.dim(0), 1, -1)
        y = self.down(self.gate(x, ids).silu(self.up(x, ids)), ids) * weights
        return nn.sum_experts(y)


class Layer(Module):
    attn_norm: RMSNorm = gguf("attn_norm", hf="input_layernorm", shape=("hidden",))
    attn: Attention = gguf(hf="self_attn")
    ffn_norm: RMSNorm = gguf("ffn_norm", hf="post_attention_layernorm", shape=("hidden",))
    ffn: Dense | Experts = gguf(hf="")

    def forward(self, x: Tensor, batch: Batch, cache, outputs: Tensor | None) -> Tensor:
        y = self.attn(self.attn_norm(x), batch, cache)
        if outputs is not None:
            x, y = x.rows(outputs), y.rows(outputs)
        x = x + y
        return x + self.ffn(self.ffn_norm(x))


@register("llama", hf=("LlamaForCausalLM", "MixtralForCausalLM"))
class Llama(Model):
    config: Hyper
    embed: Embedding = gguf("token_embd", hf="model.embed_tokens", shape=("hidden", None))
    layers: list[Layer] = gguf("blk", hf="model.layers", n="layers")
    norm: RMSNorm = gguf("output_norm", hf="model.norm", shape=("hidden",))
    head: Linear = gguf("output", "token_embd", hf="lm_head", shape=("hidden", None))

    def caches(self) -> list[Causal]:
        return [Causal(layer.attn.rotary.rope()) for layer in self.layers]

    def hidden(self, ctx, batch: Batch) -> Tensor:
        x = self.embed(batch.inputs)
        for layer, cache, outputs in batch.through(self.layers):
            x = layer(x, batch, cache, outputs)
        return self.norm(x)
