"""Computed results of a file and its checkpoint: KL divergence of the next token, and each module.

Both run through the same declaration, one after the other, so that only the weights and
hyperparameters differ.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ...loading import load
from ...ml.node import Node
from ...ml.tensor import to_float32
from ...runner import LoadedModel
from ...runner.loading.sources import Source
from ..activations import errors
from ..compare import compared
from ..observe import Recording, See, watch_text
from ..text_statistics import read_tokens
from .report import Certificate

TEXT = (
    "The first lighthouse keeper wrote the weather into a book every evening: wind, rain, the "
    "number of ships, and once, in 1871, a whale. 12 × 7 = 84. def add(a, b): return a + b"
)
TOKENS = 128  # of a text; their logits are kept


def compare_behaviour(
    file: Source,
    folder: Path,
    text: str | None,
    models: str | Path | None,
    modules: bool,
    found: Certificate,
) -> None:
    """Adds the divergence, and the errors of modules, to what was found.

    Raises:
        TokenizerError, Unsupported, PromptError: the model gives the text's tokens no
            probabilities.
    """
    with loaded(folder, models) as model:
        ids = read_tokens(model, text or TEXT)[:TOKENS]
        kept = _Results() if modules else None
        theirs = watch_text(model, ids, kept.begin if kept else _unwatched)
    with loaded(file, models) as model:
        beside = _Beside(kept) if kept else None
        ours = watch_text(model, ids, beside.begin if beside else _unwatched)
    if beside is not None:
        found.modules = beside.rows
    found.checked["behaviour"] = f"{len(ids)} tokens of a text"
    found.divergence = divergence(ours, theirs)


def loaded(source: Source, models: str | Path | None) -> LoadedModel:
    """A model on the CPU, computed as exactly as its weights allow."""
    return load(
        source, kv_type="f32", flash_attention="off", models=models, rpc=(),
        context_length=TOKENS, batch_size=TOKENS, gpu_layers=0, optimize="memory",
    )  # fmt: skip


def divergence(ours: np.ndarray, theirs: np.ndarray) -> dict[str, float]:
    """KL divergence of the next token from the checkpoint's, in nats, mean and largest; and how
    often both take the same token for the likeliest.

    Args:
        ours, theirs: logits [n, vocabulary].

    Raises:
        ComputeError: a logit is NaN.
    """
    scores = compared(theirs, ours, np.zeros(len(ours), np.int32))
    return {
        "mean": _short(float(scores.divergences.mean())),
        "largest": _short(float(scores.divergences.max())),
        "same_top": _short(float(scores.same_top.mean())),
    }


def _short(value: float) -> float:
    """Four digits: sums in another order change the rest."""
    return float(f"{value:.3e}")


def _unwatched(_: Recording) -> See:
    return lambda node, value: None


class _Results:
    """The results of modules by their paths, float32."""

    def __init__(self) -> None:
        self.of: dict[str, np.ndarray] = {}

    def begin(self, recording: Recording) -> See:
        paths: dict[int, list[str]] = {}
        for call in recording.calls:
            if call.result is not None:
                paths.setdefault(call.result.uid, []).append(call.module.path)

        def see(node: Node, value: np.ndarray) -> None:
            for path in paths.get(node.uid, ()):
                self.take(path, to_float32(value, node.dtype, node.ne).reshape(node.shape[::-1]))

        return see

    def take(self, path: str, value: np.ndarray) -> None:
        self.of.setdefault(path, value.copy())


class _Beside(_Results):
    """Errors of modules' results beside those of another model."""

    def __init__(self, theirs: _Results):
        super().__init__()
        self._theirs = theirs.of
        self.rows: list[dict[str, str | float]] = []

    def take(self, path: str, value: np.ndarray) -> None:
        theirs = self._theirs.pop(path, None)
        if theirs is not None and theirs.shape == value.shape:
            error = errors(value, theirs)
            self.rows.append({"module": path or "the model", "nmse": _short(error.nmse)})
