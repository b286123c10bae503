"""GPT-2: learned positions, layer norms, queries, keys and values in one matrix."""

from __future__ import annotations

from ggmodel import Tensor, gguf, kv, nn, register
from ggmodel.kvcache import Causal
from ggmodel.model import Batch, Transpose
from ggmodel.nn import Embedding, LayerNorm, Linear


class GPT2Config(nn.LayerNormConfig):
    fixed = {
        "add_cross_attention": False,
        "reorder_and_upcast_attn": ...,  # of half precision
        "scale_attn_by_inverse_layer_idx": False,
        "scale_attn_weights": True,
    }

    layers: int = kv("block_count", hf="n_layer")
    width: int = kv("embedding_length", hf="n_embd")
    ffn: int = kv("feed_forward_length", hf=lambda hf: hf.get("n_inner") or 4 * hf["n_embd"])
    heads: int = kv("attention.head_count", hf="n_head")
    context: int = kv("context_length", hf=("n_positions", "n_ctx"))
    activation: str = nn.activation("gelu_new", "activation_function")


class Attention(nn.FusedAttention):
    qkv: Linear = gguf("attn_qkv", hf="c_attn", op=Transpose(), shape=("width", "qkv_width"))
    out: Linear = gguf("attn_output", hf="c_proj", op=Transpose(), shape=("out_width", "width"))


class FeedForward(nn.MLP):
    up: Linear = gguf("ffn_up", hf="c_fc", op=Transpose(), shape=("width", "ffn"))
    down: Linear = gguf("ffn_down", hf="c_proj", op=Transpose(), shape=("ffn", "width"))


class Layer(nn.LayerNormLayer):
    attn: Attention
    ffn: FeedForward


@register("gpt2", hf="GPT2LMHeadModel")
class GPT2(nn.LayerNormDecoder):
    ignore_hf = ("*.attn.bias", "*.attn.masked_bias")  # masks that older versions saved
    config: GPT2Config
    embed: Embedding = gguf("token_embd", hf=("transformer.wte", "wte"), shape=("width", None))
    places: Embedding = gguf(
        "position_embd", hf=("transformer.wpe", "wpe"), shape=("width", "context")
    )
    layers: list[Layer] = gguf("blk", hf=("transformer.h", "h"), n="layers")
    norm: LayerNorm = gguf("output_norm", hf=("transformer.ln_f", "ln_f"), shape=("width",))

    def caches(self) -> list[Causal]:
        return [Causal(absolute=True)] * self.config.layers

    def embedded(self, batch: Batch) -> Tensor:
        return super().embedded(batch) + self.places(batch.positions)
