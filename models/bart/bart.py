"""BART: an encoder of the prompt and a decoder that attends to it, learned positions, norms behind
each part."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ggmodel import Config, Module, Tensor, gguf, kv, nn, register
from ggmodel.kvcache import CacheSpec, Causal, LayerObjects
from ggmodel.ml import Context
from ggmodel.model import (
    Batch,
    Input,
    LastRows,
    LayerMemory,
    MultimodalEmbedding,
    Reshape,
)
from ggmodel.models.whisper import attention as whisper
from ggmodel.nn import Embedding, LayerNorm, Linear

Caches = tuple[LayerMemory, LayerObjects]
EPS = 1e-5  # of all norms; no key says it
TABLES = ("model.shared", "model.encoder.embed_tokens", "model.decoder.embed_tokens")


def said(key: str) -> tuple[str, str]:
    """Newer checkpoints have it in generation_config.json."""
    return key, f"generation:{key}"


def _scale(hf: Mapping[str, Any]) -> float:
    return hf["d_model"] ** 0.5 if hf.get("scale_embedding") else 1.0


class BartConfig(Config):
    fixed = {
        "num_hidden_layers": lambda hf: hf["encoder_layers"],
        "decoder_ffn_dim": lambda hf: hf["encoder_ffn_dim"],
        "tie_word_embeddings": ...,  # of the tables, see `from_hf`; of the head, its tensor
        "is_decoder": False,
        "is_encoder_decoder": ...,
    }

    layers: int = kv("block_count", hf="encoder_layers")
    decoder_layers: int = kv("decoder_block_count", hf="decoder_layers", default="layers")
    width: int = kv("embedding_length", hf="d_model")
    ffn: int = kv("feed_forward_length", hf="encoder_ffn_dim")
    heads: int = kv("attention.head_count", hf="encoder_attention_heads", least=1, divides="width")
    decoder_heads: int = kv(
        "decoder_head_count",
        hf="decoder_attention_heads",
        default="heads",
        least=1,
        divides="width",
    )
    context: int = kv("context_length", hf=("max_position_embeddings", lambda hf: 1024))
    activation: str = nn.activation("gelu", "activation_function")
    embedding_scale: float = kv("embedding_scale", hf=_scale, default=1.0)
    start: int = kv("decoder_start_token_id", hf=(*said("decoder_start_token_id"), lambda hf: 2))
    # The token that every answer begins with, if any; of languages, where a model has several.
    forced: int | None = kv("forced_bos_token_id", hf=said("forced_bos_token_id"))

    @classmethod
    def from_hf(cls, hf: Mapping[str, Any]) -> dict[str, Any]:
        nn.one_table(hf, *(f"{name}.weight" for name in TABLES))
        return super().from_hf(hf)


class Attention(whisper.Attention):
    def forward(self, x: Tensor, cache: LayerMemory | None = None) -> Tensor:
        """x [width, n] → [width, n]; without a cache all rows see each other."""
        q, k, v = (self.heads(part(x)) for part in (self.q, self.k, self.v))
        scale = q.dim(0) ** -0.5
        if cache is not None:
            return self.out(nn.attention(q, k, v, cache, scale=scale))
        y = q.scaled_dot_product_attention(k, v, scale=scale)
        return self.out(y.reshape(self.config.width, -1))


class DecoderAttention(Attention):
    def heads(self, x: Tensor) -> Tensor:
        h: Any = self.config
        return x.reshape(h.width // h.decoder_heads, h.decoder_heads, -1)


class CrossAttention(whisper.CrossAttention):
    heads = DecoderAttention.heads


class EncoderLayer(Module):
    attn: Attention = gguf(hf="self_attn")
    attn_norm: LayerNorm = gguf("attn_output_norm", hf="self_attn_layer_norm", shape=("width",))
    ffn: nn.EncoderMLP = gguf(hf="")
    norm: LayerNorm = gguf("layer_output_norm", hf="final_layer_norm", shape=("width",))

    def forward(self, x: Tensor) -> Tensor:
        x = self.attn_norm(x + self.attn(x), EPS)
        return self.norm(x + self.ffn(x), EPS)


class DecoderLayer(EncoderLayer):
    attn: DecoderAttention = gguf(hf="self_attn")
    cross: CrossAttention = gguf(prefix="cross_", hf="encoder_attn")
    cross_norm: LayerNorm = gguf(
        "cross_attn_output_norm", hf="encoder_attn_layer_norm", shape=("width",)
    )

    def forward(self, x: Tensor, batch: Batch, caches: Caches, outputs: Tensor | None) -> Tensor:
        own, source = caches
        x = self.attn_norm(x + self.attn(x, own), EPS)
        if not source.skipped:
            y = self.cross_norm(x + self.cross(x, batch.multimodal, source), EPS)
            x = x + (y - x) * source.seen  # rows without a source stay as they are
        (x,) = nn.keep_rows(outputs, x)
        return self.norm(x + self.ffn(x), EPS)


class Side(Module):
    """The positions of an encoder or a decoder. Tables begin with two rows that no token has."""

    config: BartConfig
    places: Embedding = gguf(
        "position_embd",
        hf="embed_positions",
        op=LastRows("context", 2),
        shape=("width", "context"),
    )
    embed_norm: LayerNorm = gguf("token_embd_norm", hf="layernorm_embedding", shape=("width",))


class Encoder(Side):
    layers: list[EncoderLayer] = gguf("blk", hf="layers", n="layers")


class Decoder(Side):
    layers: list[DecoderLayer] = gguf("blk", hf="layers", n="decoder_layers")


@register("bart", hf="BartForConditionalGeneration")
class Bart(nn.EncoderDecoder):
    ignore_hf = ("*coder.embed_tokens.weight", "*coder.version")

    config: BartConfig
    embed: Embedding = gguf("token_embd", hf=TABLES, shape=("width", None))
    encoder: Encoder = gguf("enc", hf="model.encoder")
    decoder: Decoder = gguf("dec", hf="model.decoder")
    head: Linear = gguf("output", "token_embd", hf="lm_head", shape=("width", None))
    bias: Tensor | None = gguf(
        "output_bias", hf="final_logits_bias", op=Reshape((-1,), (1, -1)), shape=(None,)
    )

    def caches(self) -> list[tuple[CacheSpec, ...]]:
        return [(Causal(absolute=True), self.source_cache())] * self.config.decoder_layers

    def embedded(self, ids: Tensor) -> Tensor:
        return self.embed(ids).scale(self.config.embedding_scale)

    def encode(self, ctx: Context, ids: Tensor) -> Tensor:
        places = self.encoder.places(ctx.constant(np.arange(ids.dim(0))))
        x = self.encoder.embed_norm(self.embedded(ids) + places, EPS)
        for layer in self.encoder.layers:
            x = layer(x)
        return x

    def hidden(self, ctx: Context, batch: Batch) -> Tensor:
        x = self.embedded(batch.inputs) + self.decoder.places(batch.positions)
        x = self.decoder.embed_norm(x, EPS)
        for layer, caches, outputs in batch.through(self.decoder.layers):
            x = layer(x, batch, caches, outputs)
        return x

    def forward(self, ctx: Context, batch: Batch) -> Tensor:
        logits = super().forward(ctx, batch)
        return logits if self.bias is None else logits + self.bias

    def source_inputs(self, source: list[MultimodalEmbedding]) -> list[Input]:
        forced = self.config.forced
        return [*super().source_inputs(source), *([] if forced is None else [Input(forced)])]
