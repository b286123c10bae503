"""MPT: no positions, no biases; scores fall with the distance (ALiBi), projections are bounded."""

from __future__ import annotations

from ggmodel import Tensor, gguf, kv, nn, register
from ggmodel.kvcache import Causal
from ggmodel.nn import Embedding, LayerNorm, Linear


class MPTConfig(nn.LayerNormConfig):
    fixed = {
        "expansion_ratio": 4,
        "logit_scale": None,
        **dict.fromkeys(("learned_pos_emb", "no_bias", "norm_type"), ...),  # the tensors tell
        "attn_config.alibi": True,
        "attn_config.attn_type": "multihead_attention",
        "attn_config.prefix_lm": False,
        "attn_config.qk_ln": False,
        **dict.fromkeys(("attn_config.attn_impl", "attn_config.attn_uses_sequence_id"), ...),
    }

    layers: int = kv("block_count", hf=("n_layers", "num_hidden_layers"))
    width: int = kv("embedding_length", hf=("d_model", "hidden_size"))
    ffn: int = kv("feed_forward_length", hf=lambda hf: 4 * hf.get("d_model", 2048))
    heads: int = kv("attention.head_count", hf=("n_heads", "num_attention_heads"))
    context: int = kv("context_length", hf=("max_seq_len", "max_position_embeddings"))
    scale: float = kv(
        "attention.scale", hf="attn_config.softmax_scale", default=lambda h: h.head_dim**-0.5
    )
    clamp: float = kv("attention.clamp_kqv", hf="attn_config.clip_qkv", default=0.0, least=0)
    # transformers computes with 8, whatever `alibi_bias_max` says.
    max_bias: float = kv("attention.max_alibi_bias", hf=lambda hf: 8.0, default=0.0, least=0)
    activation: str = nn.activation("gelu")


class Attention(nn.FusedAttention):
    qkv: Linear = gguf("attn_qkv", hf="Wqkv", shape=("width", "qkv_width"))
    out: Linear = gguf("attn_output", hf="out_proj", shape=("out_width", "width"))

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = super().project(x)
        most = self.config.clamp
        return (
            (q.clamp(-most, most), k.clamp(-most, most), v.clamp(-most, most))
            if most
            else (q, k, v)
        )


class Layer(nn.LayerNormLayer):
    attn_norm: LayerNorm = gguf("attn_norm", hf="norm_1", shape=("width",))
    attn: Attention = gguf(hf="attn")
    ffn_norm: LayerNorm = gguf("ffn_norm", hf="norm_2", shape=("width",))
    ffn: nn.MLP = gguf(hf="ffn")


@register("mpt", hf="MptForCausalLM")
class MPT(nn.LayerNormDecoder):
    config: MPTConfig
    embed: Embedding = gguf("token_embd", hf=("transformer.wte", "wte"), shape=("width", None))
    layers: list[Layer] = gguf("blk", hf=("transformer.blocks", "blocks"), n="layers")
    norm: LayerNorm = gguf("output_norm", hf=("transformer.norm_f", "norm_f"), shape=("width",))

    def caches(self) -> list[Causal]:
        return [Causal(max_bias=self.config.max_bias)] * self.config.layers
