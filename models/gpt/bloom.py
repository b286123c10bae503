"""BLOOM: GPT's blocks without positions: scores fall with the distance (ALiBi)."""

from __future__ import annotations

from ggmodel import Tensor, gguf, kv, nn, register
from ggmodel.kvcache import Causal
from ggmodel.model import Batch, PartsOfHeads
from ggmodel.nn import Embedding, LayerNorm, Linear

MAX_BIAS = 8.0


class BloomConfig(nn.LayerNormConfig):
    fixed = {
        "apply_residual_connection_post_layernorm": False,
        **dict.fromkeys(("pretraining_tp", "slow_but_exact"), ...),  # the order of sums
    }

    layers: int = kv("block_count", hf=("n_layer", "num_hidden_layers"))
    width: int = kv("embedding_length", hf=("n_embed", "hidden_size"))
    ffn: int = kv("feed_forward_length", hf=lambda hf: 4 * (hf.get("n_embed") or hf["hidden_size"]))
    heads: int = kv("attention.head_count", hf=("n_head", "num_attention_heads"))
    context: int = kv("context_length", hf=("seq_length", lambda hf: 2048))
    activation: str = nn.activation("gelu_new")


class Attention(nn.FusedAttention):
    qkv: Linear = gguf(
        "attn_qkv", hf="query_key_value", op=PartsOfHeads("heads"), shape=("width", "qkv_width")
    )


class Layer(nn.LayerNormLayer):
    attn: Attention
    ffn: nn.MLP


@register("bloom", hf="BloomForCausalLM")
class Bloom(nn.LayerNormDecoder):
    config: BloomConfig
    embed: Embedding = gguf(
        "token_embd", hf=("transformer.word_embeddings", "word_embeddings"), shape=("width", None)
    )
    embed_norm: LayerNorm = gguf(
        "token_embd_norm",
        hf=("transformer.word_embeddings_layernorm", "word_embeddings_layernorm"),
        shape=("width",),
    )
    layers: list[Layer] = gguf("blk", hf=("transformer.h", "h"), n="layers")
    norm: LayerNorm = gguf("output_norm", hf=("transformer.ln_f", "ln_f"), shape=("width",))

    def caches(self) -> list[Causal]:
        return [Causal(max_bias=MAX_BIAS)] * self.config.layers

    def embedded(self, batch: Batch) -> Tensor:
        return self.embed_norm(super().embedded(batch))
