"""BERT: embeddings of texts; all tokens of a text see each other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ggmodel import Config, DType, Model, Module, Tensor, gguf, kv, nn, register
from ggmodel.errors import ConfigError
from ggmodel.kvcache import Bidirectional
from ggmodel.ml import Context
from ggmodel.model import Batch, LayerMemory
from ggmodel.nn import Embedding, LayerNorm, Linear


def _positions(hf: Mapping[str, Any]) -> int:
    kind = hf.get("position_embedding_type", "absolute")
    if kind != "absolute":
        raise ConfigError(f"position_embedding_type {kind!r} is unsupported; supported: absolute")
    return hf["max_position_embeddings"]


class BertConfig(Config):
    layers: int = kv("block_count", hf="num_hidden_layers")
    width: int = kv("embedding_length", hf="hidden_size")
    ffn: int = kv("feed_forward_length", hf="intermediate_size")
    heads: int = kv("attention.head_count", hf="num_attention_heads", least=1, divides="width")
    eps: float = kv("attention.layer_norm_epsilon", hf="layer_norm_eps", default=1e-12)
    context: int = kv("context_length", hf=_positions)
    causal: bool = kv("attention.causal", hf=lambda hf: hf.get("is_decoder", False), default=False)
    activation: str = nn.activation("gelu")
    pooling: int | None = kv("pooling_type", hf="pooling_type")
    types: int = kv("tokenizer.ggml.token_type_count", hf="type_vocab_size", default=2)


class Attention(Module):
    config: BertConfig
    q: Linear = gguf("attn_q", hf="self.query", shape=("width", "width"))
    k: Linear = gguf("attn_k", hf="self.key", shape=("width", "width"))
    v: Linear = gguf("attn_v", hf="self.value", shape=("width", "width"))
    out: Linear = gguf("attn_output", hf="output.dense", shape=("width", "width"))

    def forward(self, x: Tensor, cache: LayerMemory) -> Tensor:
        h = self.config
        head_dim = h.width // h.heads
        q, k, v = (p(x).reshape(head_dim, h.heads, -1) for p in (self.q, self.k, self.v))
        return self.out(nn.attention(q, k, v, cache, scale=head_dim**-0.5))


class FeedForward(Module):
    config: BertConfig
    up: Linear = gguf("ffn_up", hf="intermediate.dense", shape=("width", "ffn"))
    down: Linear = gguf("ffn_down", hf="output.dense", shape=("ffn", "width"))

    def forward(self, x: Tensor) -> Tensor:
        return self.down(nn.activate(self.config.activation, self.up(x)))


class Layer(Module):
    attn: Attention = gguf(hf="attention")
    attn_norm: LayerNorm = gguf(
        "attn_output_norm", hf="attention.output.LayerNorm", shape=("width",)
    )
    ffn: FeedForward = gguf(hf="")
    norm: LayerNorm = gguf("layer_output_norm", hf="output.LayerNorm", shape=("width",))

    def forward(self, x: Tensor, cache: LayerMemory, outputs: Tensor | None) -> Tensor:
        x, y = nn.keep_rows(outputs, x, self.attn(x, cache))
        x = self.attn_norm(x + y)
        return self.norm(x + self.ffn(x))


def _table(name: str, hf: str, rows: str | None) -> Any:
    return gguf(name, hf=f"embeddings.{hf}_embeddings", shape=("width", rows))


class Text(Module):
    tokens: Embedding = _table("token_embd", "word", None)
    positions: Embedding = _table("position_embd", "position", "context")
    types: Embedding | None = _table("token_types", "token_type", "types")
    norm: LayerNorm = gguf("token_embd_norm", hf="embeddings.LayerNorm", shape=("width",))
    layers: list[Layer] = gguf("blk", hf="encoder.layer", n="layers")

    def forward(self, batch: Batch) -> Tensor:
        """Hidden states F32 [width, outputs]."""
        x = self.tokens(batch.inputs) + self.positions(batch.positions)
        if self.types is not None:  # every text is the first of a pair
            x = x + self.types.weight.slice(1, 0, 1).cast(DType.F32)
        x = self.norm(x)
        for layer, cache, outputs in batch.through(self.layers):
            x = layer(x, cache, outputs)
        return x


@register("bert", hf=("BertModel", "BertForMaskedLM"))
class Bert(Model):
    config: BertConfig
    text: Text = gguf(hf=("", "bert"))
    # Heads for training; positions that older versions of transformers saved.
    ignore_hf = (
        *("pooler.dense.*", "bert.pooler.dense.*", "cls.predictions.*", "cls.seq_relationship.*"),
        *("embeddings.position_ids", "bert.embeddings.position_ids"),
    )

    def validate(self) -> None:
        h = self.config
        if h.causal:
            raise ConfigError("a BERT with causal attention; only bidirectional ones are supported")
        nn.check_activation(h.activation)

    def caches(self) -> list[Bidirectional]:
        return [Bidirectional()] * self.config.layers

    def hidden(self, ctx: Context, batch: Batch) -> Tensor:
        return self.text(batch)
