"""Heads that label, classify or rank: of encoders and of decoders."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..ml import Tensor
from ..model.module import Module, gguf
from .layers import LayerNorm, Linear, activate

RANK = 4  # the value of `pooling_type` of a model with a head for whole texts
_TEXT, _TOKEN = "ForSequenceClassification", "ForTokenClassification"
# Classes of transformers whose heads have another activation than tanh.
_ACTIVATIONS = {"DistilBert": "relu", "Electra": "gelu"}


def _head_of(hf: Mapping[str, Any], *kinds: str) -> str:
    """The first class of a config that is one with a head of these kinds, without the end of its
    name; or ""."""
    names = [str(n) for n in hf.get("architectures") or ()]
    return next((n.removesuffix(k) for n in names for k in kinds if n.endswith(k)), "")


def head_labels(hf: Mapping[str, Any]) -> list[str] | None:
    """For `kv(hf=…)`: the labels of a checkpoint's head in order of its rows, from `id2label`; None
    for a checkpoint without a head."""
    if not _head_of(hf, _TEXT, _TOKEN):
        return None
    named, count = hf.get("id2label"), hf.get("num_labels")
    if not isinstance(named, Mapping):
        return [f"LABEL_{i}" for i in range(count if isinstance(count, int) else 2)]
    return [str(named[i]) for i in sorted(named, key=int)]


def head_per_token(hf: Mapping[str, Any]) -> bool | None:
    """For `kv(hf=…)`: True for a checkpoint whose head labels tokens; None for others."""
    return bool(_head_of(hf, _TOKEN)) or None


def head_pooling(hf: Mapping[str, Any]) -> int | None:
    """For `kv(hf=…)`: the `pooling_type` of a checkpoint with a head for whole texts; None for
    others."""
    return RANK if _head_of(hf, _TEXT) else None


def head_activation(hf: Mapping[str, Any]) -> str | None:
    """For `kv(hf=…)`: the activation of a checkpoint's head where it is not tanh."""
    return hf.get("classifier_activation") or _ACTIVATIONS.get(_head_of(hf, _TEXT))


class EncoderHead(Module):
    """The head of an encoder: out(norm(activation(dense(x)))). Reads the config's `width`,
    `head_act` and `per_token`."""

    config: Any
    # Absolute, so that it makes no head alone: BERT's pooler is there without one, too.
    dense: Linear | None = gguf(
        "cls",
        hf=("classifier.dense", "pre_classifier", "bert.pooler.dense", "head.dense"),
        shape=("width", "width"),
        root=True,
    )
    norm: LayerNorm | None = gguf("cls.norm", hf="head.norm", shape=("width",))
    out: Linear = gguf(
        "cls.output", hf=("classifier.out_proj", "classifier"), shape=("width", None)
    )

    @property
    def labels(self) -> int:
        """Their number."""
        return self.out.weight.dim(1)

    def forward(self, x: Tensor) -> Tensor:
        """Pooled hidden states [width, texts], or those of tokens → [labels, texts or tokens],
        before a softmax or a sigmoid."""
        # BERT's pooler takes no part in labels of tokens, though a checkpoint may have it.
        pooler = self.config.per_token and self.norm is None
        if self.dense is not None and not pooler:
            x = activate(self.config.head_act, self.dense(x))
        return self.out(x if self.norm is None else self.norm(x))


class DecoderHead(Module):
    """The head of a decoder that ranks or classifies texts by their last token. Reads the config's
    `width`."""

    config: Any
    out: Linear = gguf("cls.output", hf="score", shape=("width", None))

    @property
    def labels(self) -> int:
        """Their number."""
        return self.out.weight.dim(1)

    def forward(self, x: Tensor) -> Tensor:
        """Hidden states of last tokens [width, texts] → [labels, texts]."""
        return self.out(x)
