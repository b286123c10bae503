"""How a file makes rows of texts: prompts, pooling, and the layers behind it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from ...errors import ConfigError, LoadError, PromptError, Unsupported
from ...gguf_file import TensorSource
from ...gguf_file.values import KeyValues
from ...ml.tensor import to_float32

# Ways of pooling hidden states; "rank" gives the scores of a head instead.
POOLINGS = ("mean", "cls", "last", "max", "weightedmean", "mean_sqrt_len_tokens")
_NAMES = {**dict(zip(POOLINGS, POOLINGS, strict=True)), "lasttoken": "last", "rank": "rank"}
# The values of `pooling_type` in GGUF; 0 is none.
BY_NUMBER = {0: "mean", 1: "mean", 2: "cls", 3: "last", 4: "rank"}
_erf: Any = np.frompyfunc(math.erf, 1, 1)
_ACTIVATIONS = {
    "identity": lambda x: x,
    "tanh": np.tanh,
    "relu": lambda x: np.maximum(x, 0),
    "gelu": lambda x: x * (1 + _erf(x / math.sqrt(2)).astype(x.dtype)) / 2,
    "silu": lambda x: x / (1 + np.exp(-x)),
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
}
# Tensors of further heads, which no architecture declares; see docs/embeddings.md.
_HEADS = ("sparse_linear.weight", "sparse_linear.bias")
_HEADS += ("colbert_linear.weight", "colbert_linear.bias")
_EPS = 1e-5  # of torch's LayerNorm


def poolings_of(pooling: str | list[str] | tuple[str, ...]) -> tuple[str, ...]:
    """The ways of pooling by their names.

    Raises:
        ConfigError: there is no such way, or "rank" is one of several.
    """
    names = (pooling,) if isinstance(pooling, str) else tuple(pooling)
    wrong = [name for name in names if name not in _NAMES]
    if wrong or not names or (len(names) > 1 and "rank" in names):
        raise ConfigError(
            f"there is no pooling {(wrong or [pooling])[0]!r}; there is "
            f"{', '.join(POOLINGS)}, a list of these, or rank alone"
        )
    return tuple(_NAMES[name] for name in names)


def beyond(source: TensorSource) -> tuple[str, ...]:
    """Patterns of the tensors that no architecture declares: of layers behind the pooling, and of
    further heads."""
    layers = KeyValues(source.metadata, source.name).get("embedding.layers", list) or ()
    names = [str(layer).partition(" ")[0] for layer in layers]
    each = [(f"{name}.weight", f"{name}.bias", f"{name}_residual.weight") for name in names]
    return (*(name for some in each for name in some), *_HEADS)


@dataclass
class Readout:
    """The settings of a file.

    Attributes:
        poolings: the ways of pooling, whose rows are joined.
        include_prompt: the tokens of a prompt are pooled, too.
        layers: those behind the pooling, as in the key `embedding.layers`.
        prompts: texts that are put before others, by name.
        default_prompt: the name of the one that is, unless another is asked for.
        similarity: "cosine", "dot", "euclidean" or "manhattan".
        dimensions: the first of each row that are kept; None: all.
        max_tokens: tokens of a text that `truncate` keeps; None: as many as the context holds.
        score_activation: of a head's scores, "identity" or "sigmoid"; None: not known.
    """

    source: TensorSource
    poolings: tuple[str, ...] = ("mean",)
    include_prompt: bool = True
    layers: tuple[str, ...] = ()
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt: str | None = None
    similarity: str = "cosine"
    dimensions: int | None = None
    max_tokens: int | None = None
    score_activation: str | None = None

    @classmethod
    def of(cls, source: TensorSource) -> Readout:
        """The settings of a source.

        Raises:
            ConfigError: a key has a value that makes no sense.
        """
        keys = KeyValues(source.metadata, source.name)
        names = keys.get("embedding.prompt_names", list) or []
        texts = keys.get("embedding.prompts", list) or []
        if len(names) != len(texts):
            raise ConfigError(f"embedding.prompts has {len(texts)} texts for {len(names)} names")
        include = keys.get("embedding.include_prompt", bool)
        return cls(
            source,
            _poolings(keys),
            True if include is None else include,
            tuple(map(str, keys.get("embedding.layers", list) or ())),
            dict(zip(map(str, names), map(str, texts), strict=True)),
            keys.get("embedding.default_prompt", str),
            keys.get("embedding.similarity", str) or "cosine",
            keys.get("embedding.dimensions", int),
            keys.get("embedding.max_tokens", int),
            keys.get("classifier.score_activation", str),
        )

    def prompt(self, prompt: str | None, name: str | None) -> str:
        """The text that is put before others: this one, that of a name, or the file's default.

        Raises:
            PromptError: the file has no prompt of that name.
        """
        if prompt is not None:
            return prompt
        name = self.default_prompt if name is None else name
        if name is None:
            return ""
        if name not in self.prompts:
            listed = ", ".join(map(repr, self.prompts)) or "none"
            raise PromptError(f"there is no prompt {name!r:.80}; the file's are: {listed}")
        return self.prompts[name]

    def finish(self, rows: np.ndarray) -> np.ndarray:
        """Rows float32 [texts, width] after the layers behind the pooling.

        Raises:
            Unsupported: a layer is unknown, or does not fit rows of this pooling.
            LoadError: its tensors are missing.
        """
        for layer in self._layers:
            rows = layer(rows)
        return rows

    @cached_property
    def _layers(self) -> list[Any]:
        return [self._layer(*layer.split()) for layer in self.layers]

    def _layer(self, name: str, *settings: str) -> Any:
        if name == "normalize":
            return normalized
        if name.startswith("norm_"):
            weight, bias = self.tensor(f"{name}.weight"), self.tensor(f"{name}.bias")
            return lambda rows: _layer_norm(_fitting(rows, len(weight), name), weight, bias)
        unknown = [s for s in settings if s not in (*_ACTIVATIONS, "residual")]
        if not name.startswith("dense_") or unknown:
            raise Unsupported(
                f"embedding.layers has {' '.join((name, *settings))!r:.80}, which is unsupported; "
                "convert the model again, or take a newer ggmodel"
            )
        weight, bias = self.tensor(f"{name}.weight"), self.tensor(f"{name}.bias", False)
        other = self.tensor(f"{name}_residual.weight", False)
        activate = _ACTIVATIONS[next((s for s in settings if s != "residual"), "identity")]

        def dense(rows: np.ndarray) -> np.ndarray:
            out = _fitting(rows, weight.shape[1], name) @ weight.T
            out = activate(out if bias is None else out + bias)
            if "residual" in settings:
                out = out + (rows if other is None else rows @ other.T)
            return out.astype(np.float32)

        return dense

    def tensor(self, name: str, required: bool = True) -> Any:
        """A tensor of the file as float32, in numpy's order; None if it is absent.

        Raises:
            LoadError: it is required and absent.
        """
        info = self.source.tensors.get(name)
        if info is None:
            if not required:
                return None
            raise LoadError(f"{self.source.name} has no tensor {name}; convert the model again")
        raw = np.frombuffer(self.source.data(name), np.uint8)
        if info.dtype.numpy is not None:
            raw = raw.view(info.dtype.numpy)
        return to_float32(raw, info.dtype, tuple(info.shape)).copy()  # of a file that may close


def _poolings(keys: KeyValues) -> tuple[str, ...]:
    listed = keys.get("embedding.pooling", list)
    if listed:
        return poolings_of([str(one) for one in listed])
    number = keys.get("pooling_type", int) or 0
    return (BY_NUMBER.get(number, f"pooling_type {number}"),)


def _fitting(rows: np.ndarray, width: int, name: str) -> np.ndarray:
    if rows.shape[1] != width:
        raise Unsupported(
            f"{name} takes rows of {width} numbers, and this pooling gives {rows.shape[1]}; leave "
            "pooling out"
        )
    return rows


def _layer_norm(rows: np.ndarray, weight: np.ndarray, bias: np.ndarray) -> np.ndarray:
    x = rows.astype(np.float64)
    x = x - x.mean(axis=1, keepdims=True)
    x /= np.sqrt((x * x).mean(axis=1, keepdims=True) + _EPS)
    return (x * weight + bias).astype(np.float32)


def normalized(rows: np.ndarray) -> np.ndarray:
    """Rows of length 1, float32 [n, width]; those that are zero stay so."""
    lengths = np.linalg.norm(rows.astype(np.float64), axis=1, keepdims=True)
    return (rows / np.where(lengths > 0, lengths, 1)).astype(np.float32)


def shortened(rows: np.ndarray, dimensions: int | None, usual: int | None) -> np.ndarray:
    """The first `dimensions` of each row: None takes as many as is usual, 0 all.

    Raises:
        ConfigError: a row has fewer.
    """
    if dimensions is None:
        return rows[:, :usual]
    if not 0 <= dimensions <= rows.shape[1]:
        raise ConfigError(f"dimensions is {dimensions}; rows of this model have {rows.shape[1]}")
    return rows[:, : dimensions or None]
