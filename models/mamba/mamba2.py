"""Mamba-2."""

from __future__ import annotations

from ggmodel import gguf, kv, nn, register
from ggmodel.kvcache import Recurrent
from ggmodel.nn import Embedding, RMSNorm


class Mamba2Config(nn.Mamba2Config):
    # The tensors tell the same, or training alone reads it.
    fixed = {
        **dict.fromkeys(("use_bias", "use_conv_bias", "residual_in_fp32", "chunk_size"), ...),
        **dict.fromkeys(("rescale_prenorm_residual", "time_step_rank"), ...),
        **{f"time_step_{key}": ... for key in ("min", "max", "floor")},
    }
    unread = ("ffn", "heads")

    layers: int = kv("block_count", hf="num_hidden_layers")
    width: int = kv("embedding_length", hf="hidden_size")
    eps: float = kv("attention.layer_norm_rms_epsilon", hf="layer_norm_epsilon")
    context: int = kv("context_length", hf=lambda hf: 2**20)  # there is no limit
    ffn: int = kv("feed_forward_length", hf=lambda hf: 0, default=0)
    heads: int = kv("attention.head_count", hf=lambda hf: 0, default=0)


class Layer(nn.MixerLayer):
    mixer: nn.Mamba2


@register("mamba2", hf="Mamba2ForCausalLM")
class Mamba2Model(nn.PlainDecoder):
    config: Mamba2Config
    embed: Embedding = gguf("token_embd", hf="backbone.embeddings", shape=("width", None))
    layers: list[Layer] = gguf("blk", hf="backbone.layers", n="layers")
    norm: RMSNorm = gguf("output_norm", hf="backbone.norm_f", shape=("width",))

    def caches(self) -> list[Recurrent]:
        return [self.config.states] * self.config.layers
