"""An encoder of text: every token of a text sees all of it, and nothing is remembered."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..errors import ConfigError
from ..ml import Context, DType, Tensor
from ..model.batch import Batch, Step
from ..model.cache import LayerMemory
from ..model.config import Config
from ..model.model import Model
from ..model.module import Module, gguf, kv
from ..model.operations import LastRows
from .decoder import attention, keep_rows
from .heads import EncoderHead, head_activation, head_labels, head_per_token, head_pooling
from .layers import Embedding, LayerNorm, Linear, activate, activation, check_activation


class EncoderConfig(Config):
    """The usual hyperparameters of an encoder, in the spellings of checkpoints of the BERT family;
    a subclass redeclares those that differ.

    Attributes:
        labels: of the head, in order of its results.
        per_token: the head labels tokens, not whole texts.
        head_pools: how its input is pooled: 1 the mean, 2 the first token's row, 3 the last's.
    """

    fixed = {"sinusoidal_pos_embds": ..., "is_causal": ...}

    layers: int = kv("block_count", hf=("num_hidden_layers", "n_layers"))
    width: int = kv("embedding_length", hf=("hidden_size", "dim"))
    ffn: int = kv("feed_forward_length", hf=("intermediate_size", "hidden_dim"))
    heads: int = kv(
        "attention.head_count", hf=("num_attention_heads", "n_heads"), least=1, divides="width"
    )
    eps: float = kv(
        "attention.layer_norm_epsilon", hf=("layer_norm_eps", lambda hf: 1e-12), default=1e-12
    )
    context: int = kv("context_length", hf="max_position_embeddings")
    causal: bool = kv("attention.causal", hf=lambda hf: hf.get("is_decoder", False), default=False)
    activation: str = activation("gelu")
    pooling: int | None = kv("pooling_type", hf=("pooling_type", head_pooling))
    types: int = kv("tokenizer.ggml.token_type_count", hf="type_vocab_size", default=2)
    labels: list | None = kv("classifier.output_labels", hf=head_labels)
    per_token: bool = kv("classifier.per_token", hf=head_per_token, default=False)
    head_pools: int = kv("classifier.pooling_type", hf=lambda hf: None, default=2, least=1, most=3)
    head_act: str = kv("classifier.activation", hf=head_activation, default="tanh")
    token_width = property(lambda h: h.width)  # of embeddings
    head_dim = property(lambda h: h.width // h.heads)
    qkv_width = property(lambda h: 3 * h.width)
    ffn_both = property(lambda h: 2 * h.ffn)


class _Attention(Module):
    """The parts that both kinds of attention have."""

    config: Any
    out: Linear = gguf(
        "attn_output",
        hf=("output.dense", "out_lin", "attn.o", "o_proj", "out_proj", "Wo"),
        shape=("width", "width"),
    )

    def project(self, x: Tensor) -> tuple[Tensor, ...]:
        """x [width, n] → queries, keys and values [head_dim, heads, n], not yet rotated."""
        raise NotImplementedError

    def forward(
        self, x: Tensor, batch: Batch, cache: LayerMemory, bias: Tensor | None = None
    ) -> Tensor:
        """x [width, n] → [width, n] F32.

        Args:
            bias: F32 [n, n, heads], added to the scores of keys (dim 0) for queries (dim 1).
        """
        q, k, v = self.project(x)
        if cache.rope is not None:
            q, k = cache.rotate(q, batch.positions), cache.rotate(k, batch.positions)
        scale = self.config.head_dim**-0.5
        return self.out(attention(q, k, v, cache, scale=scale, bias=bias))


class EncoderAttention(_Attention):
    """Attention of all tokens to all, rotated where the layer's memory has a rope. Reads the
    config's `width`, `heads` and `head_dim`."""

    q: Linear = gguf("attn_q", hf=("self.query", "q_lin", "attn.q", "q_proj"), shape=("width",) * 2)
    k: Linear = gguf("attn_k", hf=("self.key", "k_lin", "attn.k", "k_proj"), shape=("width",) * 2)
    v: Linear = gguf("attn_v", hf=("self.value", "v_lin", "attn.v", "v_proj"), shape=("width",) * 2)

    def project(self, x: Tensor) -> tuple[Tensor, ...]:
        h = self.config
        return tuple(p(x).reshape(h.head_dim, h.heads, -1) for p in (self.q, self.k, self.v))


class FusedEncoderAttention(_Attention):
    """The same with one matrix for queries, keys and values, as ModernBERT's and Nomic's files have
    it."""

    qkv: Linear = gguf("attn_qkv", hf="Wqkv", shape=("width", "qkv_width"))

    def project(self, x: Tensor) -> tuple[Tensor, ...]:
        h = self.config
        parts = self.qkv(x).chunk(0, h.width)
        return tuple(part.contiguous().reshape(h.head_dim, h.heads, -1) for part in parts)


class EncoderMLP(Module):
    """down(activation(up(x))), or with a gate down(activation(gate(x)) · up(x)). Reads the config's
    `width`, `ffn` and `activation`."""

    config: Any
    gate: Linear | None = gguf("ffn_gate", hf=("gate_proj", "fc12"), shape=("width", "ffn"))
    up: Linear = gguf(
        "ffn_up",
        hf=("intermediate.dense", "lin1", "up_proj", "fc11", "fc1"),
        shape=("width", "ffn"),
    )
    down: Linear = gguf(
        "ffn_down", hf=("output.dense", "lin2", "down_proj", "fc2"), shape=("ffn", "width")
    )

    def forward(self, x: Tensor) -> Tensor:
        """x [width, n] → [width, n]."""
        act, up = self.config.activation, self.up(x)
        return self.down(
            activate(act, up) if self.gate is None else activate(act, self.gate(x), up)
        )


class FusedEncoderMLP(Module):
    """down(activation(a) · b), a and b being the halves of up(x), as ModernBERT has it. Reads the
    config's `width`, `ffn`, `ffn_both` (twice that) and `activation`."""

    config: Any
    up: Linear = gguf("ffn_up", hf="Wi", shape=("width", "ffn_both"))
    down: Linear = gguf("ffn_down", hf="Wo", shape=("ffn", "width"))

    def forward(self, x: Tensor) -> Tensor:
        """x [width, n] → [width, n]."""
        a, b = (half.contiguous() for half in self.up(x).chunk(0, self.config.ffn))
        return self.down(activate(self.config.activation, a, b))


class PostNormLayer(Module):
    """norm(x + attn(x)), then norm(x + ffn(x)), as BERT has it. A subclass annotates `attn` and
    `ffn` if it has others."""

    attn: EncoderAttention | FusedEncoderAttention = gguf(
        hf=("attention", "self_attn", "attn", "mixer")
    )
    attn_norm: LayerNorm = gguf(
        "attn_output_norm",
        hf=(
            *("attention.output.LayerNorm", "sa_layer_norm", "attention.LayerNorm"),
            *("post_attention_layernorm", "norm1"),
        ),
        shape=("width",),
    )
    ffn: EncoderMLP = gguf(hf=("", "ffn", "mlp"))
    norm: LayerNorm = gguf(
        "layer_output_norm",
        hf=("output.LayerNorm", "output_layer_norm", "post_mlp_layernorm", "norm2"),
        shape=("width",),
    )

    def forward(
        self, x: Tensor, batch: Batch, cache: LayerMemory, outputs: Tensor | None, *more: Any
    ) -> Tensor:
        """x [width, n] → [width, n], or the rows `outputs` of it. `more` goes to `attn`."""
        x, y = keep_rows(outputs, x, self.attn(x, batch, cache, *more))
        x = self.attn_norm(x + y)
        return self.norm(x + self.ffn(x))


def distances(step: Step) -> np.ndarray:
    """How far each key (columns) lies behind each query (rows), int32 [n, n]; for `Batch.feed`."""
    return step.positions - step.positions[:, None]


def segments(step: Step) -> np.ndarray:
    """Which text of a pair each token belongs to, int32 [n]; for `Batch.feed`."""
    return np.zeros(len(step.tokens), np.int32) if step.segments is None else step.segments


def _first_types(step: Step) -> np.ndarray:
    """The type of tokens where there is one, int32 [n]."""
    return np.zeros(len(step.tokens), np.int32)


_WORDS = "embeddings.{}_embeddings"


def position_table() -> Any:
    """A field: the embedding of positions, of which the last `context` count."""
    return gguf(
        "position_embd",
        hf=_WORDS.format("position"),
        op=LastRows("context"),
        shape=("token_width", "context"),
    )


# Names of the body within checkpoints with a head.
BODIES = ("", "bert", "roberta", "distilbert", "electra", "mpnet", "nomic_bert", "model")


class EncoderText(Module):
    """The embeddings of tokens and their types, and layers. A subclass annotates `layers` if they
    are no `PostNormLayer`.

    Attributes:
        positions: the embedding of positions; None for encoders that rotate, or have a `bias`. A
            subclass declares the field, `position_table()`.
        project: from a width of embeddings to that of layers; None where they are one.
    """

    config: Any
    tokens: Embedding = gguf("token_embd", hf=_WORDS.format("word"), shape=("token_width", None))
    positions: Any = None
    project: Any = None
    types: Embedding | None = gguf(
        "token_types", hf=_WORDS.format("token_type"), shape=("token_width", "types")
    )
    norm: LayerNorm = gguf(
        "token_embd_norm", hf=("embeddings.LayerNorm", "emb_ln"), shape=("token_width",)
    )
    layers: list[PostNormLayer] = gguf(
        "blk", hf=("encoder.layer", "transformer.layer", "layers", "encoder.layers"), n="layers"
    )

    def embedded(self, batch: Batch) -> Tensor:
        """F32 [width, n] that enters the first layer."""
        x = self.tokens(batch.inputs)
        if self.positions is not None:
            x = x + self.positions(batch.positions)
        if self.types is not None:
            parts = segments if self.types.weight.dim(1) > 1 else _first_types
            x = x + self.types(batch.feed(parts, DType.I32, batch.size))
        x = self.norm(x)
        return x if self.project is None else self.project(x)

    def bias(self, batch: Batch) -> Tensor | None:
        """F32 [n, n, heads], added to scores of attention in all layers; None adds none."""
        return None

    def forward(self, batch: Batch) -> Tensor:
        """Hidden states F32 [width, outputs]."""
        x, bias = self.embedded(batch), self.bias(batch)
        more = () if bias is None else (bias,)
        for layer, cache, outputs in batch.through(self.layers):
            x = layer(x, batch, cache, outputs, *more)
        return x


class Encoder(Model):
    """The body, and the head of a checkpoint that has one. A subclass writes `caches`, and
    annotates `config` and `text` if it has others."""

    config: EncoderConfig
    text: EncoderText = gguf(hf=BODIES)
    classifier: EncoderHead | None
    # Heads for training, and positions that older versions of transformers saved.
    ignore_hf = (
        *("*pooler.dense.*", "cls.*", "lm_head.*", "vocab_*", "*embeddings.position_ids"),
        *("discriminator_predictions.*", "generator_predictions.*", "generator_lm_head.*"),
    )

    def validate(self) -> None:
        """
        Raises:
            ConfigError: causal attention, an unknown activation, or other labels than the head has.
        """
        h = self.config
        if h.causal:
            raise ConfigError(
                f"{self.architecture} with causal attention; only bidirectional is supported"
            )
        check_activation(h.activation)
        check_activation(h.head_act, "classifier.activation")
        rows = 0 if self.classifier is None else self.classifier.labels
        if rows and h.labels is not None and len(h.labels) != rows:
            raise ConfigError(f"{len(h.labels)} labels of a head with {rows} results")

    def hidden(self, ctx: Context, batch: Batch) -> Tensor:
        return self.text(batch)

    def classify(self, ctx: Context, pooled: Tensor) -> Tensor:
        return super().classify(ctx, pooled) if self.classifier is None else self.classifier(pooled)
