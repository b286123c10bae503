"""Scores for the distance of two tokens, and T5's layers, which know positions by these alone."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from ..ml import Tensor
from ..model.batch import Batch
from ..model.cache import LayerMemory
from ..model.config import Config
from ..model.module import Module, gguf, kv
from .decoder import attention, keep_rows
from .encoder_decoder import one_table
from .layers import Embedding, Linear, RMSNorm, activate, check_activation, unless

FARTHEST = 128
_TABLES = ("shared.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight")


def relative_buckets(
    distances: np.ndarray, count: int, farthest: int = FARTHEST, ahead: bool = True
) -> np.ndarray:
    """The number of the score of each distance (key − query), int32 of the same shape: one for each
    near one, from half of a side on by logarithm up to `farthest`.

    As T5's (arXiv 1910.10683), transformers, modeling_t5, `_relative_position_bucket`.

    Args:
        count: scores in all.
        farthest: distances from here on have one score.
        ahead: the second half of the scores is for keys behind the query; without, these count as
            the query's own place.
    """
    side = count // 2 if ahead else count
    exact = side // 2
    far = np.abs(distances) if ahead else np.maximum(-distances, 0)
    with np.errstate(divide="ignore"):
        logs = np.log(far.astype(np.float32) / np.float32(exact)) / np.float32(
            math.log(farthest / exact)
        )
    large = np.minimum(exact + (np.maximum(logs, 0) * (side - exact)).astype(np.int32), side - 1)
    numbers = np.where(far < exact, far, large).astype(np.int32)
    return numbers + np.int32(side) * (ahead and distances > 0)


def _activation(hf: Mapping[str, Any]) -> str | None:
    """The activation of a T5's config, unless files need not say it."""
    kind = hf.get("feed_forward_proj", "relu")
    name = "gelu_new" if kind == "gated-gelu" else kind.split("-")[-1]
    name = hf.get("dense_act_fn", name)
    gated = hf.get("is_gated_act", kind.startswith("gated-"))
    check_activation(name, "feed_forward_proj")
    return None if name == ("gelu_new" if gated else "relu") else name


class RelativeConfig(Config):
    """The hyperparameters of T5's layers.

    Attributes:
        farthest: the distance from which on all have one score.
        activation: None in files of the usual kind, "relu", or "gelu_new" with a gate.
    """

    unread = ("value_dim", "norm_eps")
    fixed = {
        **dict.fromkeys(("is_decoder", "is_encoder_decoder", "tie_word_embeddings"), ...),
        "num_decoder_layers": ...,  # of an encoder alone
    }

    layers: int = kv("block_count", hf="num_layers")
    width: int = kv("embedding_length", hf="d_model")
    ffn: int = kv("feed_forward_length", hf="d_ff")
    heads: int = kv("attention.head_count", hf="num_heads", least=1)
    head_dim: int = kv("attention.key_length", hf="d_kv", least=1)
    value_dim: int = kv("attention.value_length", hf="d_kv", default="head_dim")
    eps: float = kv("attention.layer_norm_rms_epsilon", hf="layer_norm_epsilon", default=1e-6)
    norm_eps: float = kv("attention.layer_norm_epsilon", hf="layer_norm_epsilon", default="eps")
    buckets: int = kv(
        "attention.relative_buckets_count",
        hf=("relative_attention_num_buckets", lambda hf: 32),
        least=4,
    )
    farthest: int = kv(
        "attention.relative_max_distance",
        hf=unless(FARTHEST, "relative_attention_max_distance"),
        default=FARTHEST,
    )
    context: int = kv("context_length", hf=("n_positions", lambda hf: 512), default=512)
    activation: str | None = kv("hidden_activation", hf=_activation)
    inner = property(lambda h: h.heads * h.head_dim)

    @classmethod
    def from_hf(cls, hf: Mapping[str, Any]) -> dict[str, Any]:
        one_table(hf, *_TABLES)
        return super().from_hf(hf)


class RelativeBias(Embedding):
    """A score for each head and bucket. As a field: shape=(heads, buckets)."""

    def forward(self, numbers: Tensor, keys: int) -> Tensor:
        """Buckets I32 [keys · n] → scores F32 [keys, n, heads]."""
        scores = self.weight.rows(numbers)
        return scores.reshape(scores.dim(0), keys, -1).permute(2, 0, 1).contiguous()


class RelativeAttention(Module):
    """Attention without scale. Reads the config's `width`, `inner`, `heads`, `head_dim` and
    `buckets`."""

    config: Any
    q: Linear = gguf("attn_q", hf="q", shape=("width", "inner"))
    k: Linear = gguf("attn_k", hf="k", shape=("width", "inner"))
    v: Linear = gguf("attn_v", hf="v", shape=("width", "inner"))
    out: Linear = gguf("attn_o", hf="o", shape=("inner", "width"))
    bias: RelativeBias | None = gguf(
        "attn_rel_b", hf="relative_attention_bias", shape=("heads", "buckets")
    )

    def forward(self, x: Tensor, scores: Tensor | None, cache: LayerMemory | None = None) -> Tensor:
        """x [width, n] → [width, n].

        Args:
            scores: F32 [m, n, heads], added to those of keys for queries.
            cache: None for rows that all see each other.
        """
        h = self.config
        q, k, v = (p(x).reshape(h.head_dim, h.heads, -1) for p in (self.q, self.k, self.v))
        if cache is not None:
            return self.out(attention(q, k, v, cache, scale=1.0, bias=scores))
        y = q.scaled_dot_product_attention(k, v, scale=1.0, bias=scores)
        return self.out(y.reshape(h.inner, -1))


class RelativeMLP(Module):
    """down(activation(up(x))), or with a gate down(activation(gate(x)) · up(x))."""

    config: Any
    gate: Linear | None = gguf("ffn_gate", hf="wi_0", shape=("width", "ffn"))
    up: Linear = gguf("ffn_up", hf=("wi_1", "wi"), shape=("width", "ffn"))
    down: Linear = gguf("ffn_down", hf="wo", shape=("ffn", "width"))

    def forward(self, x: Tensor) -> Tensor:
        """x [width, n] → [width, n]."""
        name, up = self.config.activation, self.up(x)
        if self.gate is None:
            return self.down(activate(name or "relu", up))
        return self.down(activate(name or "gelu_new", self.gate(x), up))


class RelativeLayer(Module):
    """x + attn(norm(x)), then x + ffn(norm(x))."""

    attn_norm: RMSNorm = gguf("attn_norm", hf="layer.0.layer_norm", shape=("width",))
    attn: RelativeAttention = gguf(hf="layer.0.SelfAttention")
    ffn_norm: RMSNorm = gguf("ffn_norm", hf="layer.1.layer_norm", shape=("width",))
    ffn: RelativeMLP = gguf(hf="layer.1.DenseReluDense")

    def forward(
        self, x: Tensor, scores: Tensor | None, cache: LayerMemory | None, outputs: Tensor | None
    ) -> Tensor:
        """x [width, n] → [width, n], or the rows `outputs` of it."""
        x, y = keep_rows(outputs, x, self.attn(self.attn_norm(x), scores, cache))
        x = x + y
        return x + self.ffn(self.ffn_norm(x))


class RelativeEncoder(Module):
    """T5's encoder: layers, of which the first has the scores of all, and a norm."""

    layers: list[RelativeLayer] = gguf("blk", hf="block", n="layers")
    norm: RMSNorm = gguf("output_norm", hf="final_layer_norm", shape=("width",))

    def forward(self, x: Tensor, numbers: Tensor, batch: Batch | None = None) -> Tensor:
        """x [width, n] → [width, n], or the outputs of a batch.

        Args:
            numbers: I32 [n · n], the bucket of each key for each query.
        """
        scores: Tensor | None = None
        layers = ((layer, None, None) for layer in self.layers)
        for layer, cache, outputs in layers if batch is None else batch.through(self.layers):
            if layer.attn.bias is not None:
                scores = layer.attn.bias(numbers, x.dim(1))
            x = layer(x, scores, cache, outputs)
        return self.norm(x)
