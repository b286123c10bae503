"""BERT: embeddings of texts, all of whose tokens see each other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ggmodel import Config, DType, Model, Module, Tensor, gguf, kv, nn, register
from ggmodel.errors import ConfigError
from ggmodel.kvcache import Bidirectional
from ggmodel.model import Batch
from ggmodel.nn import Embedding, LayerNorm, Linear

ACTIVATIONS = {
    "gelu": Tensor.gelu_erf,
    "gelu_new": Tensor.gelu,
    "gelu_pytorch_tanh": Tensor.gelu,
    "relu": Tensor.relu,
    "silu": Tensor.silu,
}


def _activation(hf: Mapping[str, Any]) -> str | None:
    """Where it is not the usual one."""
    return None if hf["hidden_act"] == "gelu" else hf["hidden_act"]


def _positions(hf: Mapping[str, Any]) -> int:
    kind = hf.get("position_embedding_type", "absolute")
    if kind != "absolute":
        raise ConfigError(f"position_embedding_type {kind!r} is not there; there is absolute")
    return hf["max_position_embeddings"]


class Hyper(Config):
    layers: int = kv("block_count", hf="num_hidden_layers")
    hidden: int = kv("embedding_length", hf="hidden_size")
    ffn: int = kv("feed_forward_length", hf="intermediate_size")
    heads: int = kv("attention.head_count", hf="num_attention_heads", least=1)
    eps: float = kv("attention.layer_norm_epsilon", hf="layer_norm_eps", default=1e-12)
    context: int = kv("context_length", hf=_positions)
    causal: bool = kv("attention.causal", hf=lambda hf: hf.get("is_decoder", False), default=False)
    activation: str = kv("hidden_activation", hf=_activation, default="gelu")
    pooling: int | None = kv("pooling_type", hf="pooling_type")
    types: int = kv("tokenizer.ggml.token_type_count", hf="type_vocab_size", default=2)


class Attention(Module):
    config: Hyper
    q: Linear = gguf("attn_q", hf="self.query", shape=("hidden", "hidden"))
    k: Linear = gguf("attn_k", hf="self.key", shape=("hidden", "hidden"))
    v: Linear = gguf("attn_v", hf="self.value", shape=("hidden", "hidden"))
    out: Linear = gguf("attn_output", hf="output.dense", shape=("hidden", "hidden"))

    def forward(self, x: Tensor, cache) -> Tensor:
        h = self.config
        width = h.hidden // h.heads
        q, k, v = (p(x).reshape(width, h.heads, -1) for p in (self.q, self.k, self.v))
        return self.out(nn.attention(q, k, v, cache, scale=width**-0.5))


class FeedForward(Module):
    config: Hyper
    up: Linear = gguf("ffn_up", hf="intermediate.dense", shape=("hidden", "ffn"))
    down: Linear = gguf("ffn_down", hf="output.dense", shape=("ffn", "hidden"))

    def forward(self, x: Tensor) -> Tensor:
        return self.down(ACTIVATIONS[self.config.activation](self.up(x)))


class Layer(Module):
    attn: Attention = gguf(hf="attention")
    attn_norm: LayerNorm = gguf(
        "attn_output_norm", hf="attention.output.LayerNorm", shape=("hidden",)
    )
    ffn: FeedForward = gguf(hf="")
    norm: LayerNorm = gguf("layer_output_norm", hf="output.LayerNorm", shape=("hidden",))

    def forward(self, x: Tensor, cache, outputs: Tensor | None) -> Tensor:
        y = self.attn(x, cache)
        if outputs is not None:
            x, y = x.rows(outputs), y.rows(outputs)
        x = self.attn_norm(x + y)
        return self.norm(x + self.ffn(x))


def _table(name: str, hf: str, rows: str | None) -> Any:
    return gguf(name, hf=f"embeddings.{hf}_embeddings", shape=("hidden", rows))


class Text(Module):
    tokens: Embedding = _table("token_embd", "word", None)
    positions: Embedding = _table("position_embd", "position", "context")
    types: Embedding | None = _table("token_types", "token_type", "types")
    norm: LayerNorm = gguf("token_embd_norm", hf="embeddings.LayerNorm", shape=("hidden",))
    layers: list[Layer] = gguf("blk", hf="encoder.layer", n="layers")

    def forward(self, batch: Batch) -> Tensor:
        """Hidden states F32 [hidden, outputs]."""
        x = self.tokens(batch.inputs) + self.positions(batch.positions)
        if self.types is not None:  # a text is the first of a pair
            x = x + self.types.weight.slice(1, 0, 1).cast(DType.F32)
        x = self.norm(x)
        for layer, cache, outputs in batch.through(self.layers):
            x = layer(x, cache, outputs)
        return x


@register("bert", hf=("BertModel", "BertForMaskedLM"))
class Bert(Model):
    config: Hyper
    text: Text = gguf(hf=("", "bert"))
    # Heads for training; positions that older versions of transformers saved.
    ignore_hf = (
        *("pooler.dense.*", "bert.pooler.dense.*", "cls.predictions.*", "cls.seq_relationship.*"),
        *("embeddings.position_ids", "bert.embeddings.position_ids"),
    )

    def validate(self) -> None:
        h = self.config
        if h.causal:
            raise ConfigError("a BERT whose tokens see only earlier ones is not there")
        if h.hidden % h.heads:
            raise ConfigError(f"{h.heads} heads do not divide {h.hidden} hidden elements")
        if h.activation not in ACTIVATIONS:
            known = ", ".join(ACTIVATIONS)
            raise ConfigError(f"no hidden_activation {h.activation!r}; there is {known}")

    def caches(self) -> list[Bidirectional]:
        return [Bidirectional()] * self.config.layers

    def hidden(self, ctx, batch: Batch) -> Tensor:
        return self.text(batch)
