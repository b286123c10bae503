"""Embeddings: texts in common batches, the hidden states of their tokens pooled by text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ...errors import ComputeError, ConfigError, PromptError, Unsupported
from ...gguf_file.metadata import KeyValues
from ...model import Step
from ..engine.apart import Apart

if TYPE_CHECKING:
    from ..engine.engine import Engine
    from ..engine.graphs import Graphs
    from .prompts import Prompts

Pooling = Literal["mean", "cls", "last"]

_POOLINGS: tuple[Pooling, ...] = ("mean", "cls", "last")
# The values of `pooling_type` in GGUF; 0 is none, with 4 a model ranks documents.
_BY_NUMBER: dict[int, Pooling] = {0: "mean", 1: "mean", 2: "cls", 3: "last"}


def pooling_of(metadata: Mapping[str, Any], wanted: str | None) -> Pooling:
    """The pooling that is wanted, or else the file's; the mean where it names none.

    Raises:
        ConfigError: no pooling has that name.
        Unsupported: the file's pooling is of another kind.
    """
    for pooling in _POOLINGS:
        if wanted == pooling:
            return pooling
    if wanted is not None:
        raise ConfigError(f"there is no pooling {wanted!r}; there is {', '.join(_POOLINGS)}")
    number = KeyValues(metadata).get("pooling_type", int) or 0
    if number not in _BY_NUMBER:
        raise Unsupported(
            f"the file's pooling_type {number} is unsupported; give pooling= one of "
            f"{', '.join(_POOLINGS)}"
        )
    return _BY_NUMBER[number]


def read_texts(prompts: Prompts, texts: Iterable[str | Sequence[int]]) -> list[np.ndarray]:
    """The token ids of texts, int32 [n] each.

    Raises:
        PromptError: no list of texts, no texts, or one is empty, too long, or holds an image.
    """
    if isinstance(texts, str):
        raise PromptError("texts is one string; give a list: embed([text])")
    if not isinstance(texts, Iterable):
        raise PromptError(f"texts is a list of texts, not {type(texts).__name__}")
    ids: list[np.ndarray] = []
    for i, text in enumerate(texts):
        try:
            ids.append(prompts.read(text))
            if (ids[-1] < 0).any():
                raise PromptError("it holds an image; only texts are embedded")
        except PromptError as error:
            raise PromptError(f"text {i}: {error}") from None
    if not ids:
        raise PromptError("there are no texts; give at least one")
    return ids


def embed(engine: Engine, texts: Sequence[np.ndarray], pooling: Pooling) -> np.ndarray:
    """One row a text, float32 [texts, width].

    Texts of similar length share a step, as many as the batch size has room for; a longer text
    takes several. Each step has a cache of its own, and between two of them requests go on.

    Args:
        texts: token ids, int32 [n] each, that `Prompts.read` gave.

    Raises:
        Unsupported: the architecture has no embeddings.
        PromptError: a text has to be computed at once and does not fit the batch size.
        ComputeError: the model's hidden states are not finite.
    """
    if engine.single_step:
        for i, text in enumerate(texts):
            if len(text) > engine.batch_size:
                raise PromptError(
                    f"text {i} has {len(text)} tokens, the batch {engine.batch_size}; this model "
                    "reads a text at once: load it with a larger batch_size, or shorten the text"
                )
    rows: dict[int, np.ndarray] = {}
    rest = sorted(range(len(texts)), key=lambda i: len(texts[i]), reverse=True)
    while rest:
        longest = len(texts[rest[0]])
        count = max(1, engine.batch_size // longest)
        together, rest = rest[:count], rest[count:]
        rows |= engine.call(partial(_embed, engine, {i: texts[i] for i in together}, pooling))
    return np.stack([rows[i] for i in range(len(texts))])


def _embed(
    engine: Engine, texts: Mapping[int, np.ndarray], pooling: Pooling
) -> dict[int, np.ndarray]:
    """Rows float32 [width] of texts that are computed together, by number; in the engine's
    thread."""
    longest = max(len(text) for text in texts.values())
    with Apart(engine).graphs(engine.model.states, len(texts), longest) as graphs:
        pooled = _pool(engine, graphs, list(texts.values()), pooling)
    for i, row in zip(texts, pooled, strict=True):
        if not np.isfinite(row).all():
            raise ComputeError(f"the model's hidden states of text {i} are not finite")
    return dict(zip(texts, _project(engine, pooled), strict=True))


def _pool(
    engine: Engine, graphs: Graphs, texts: Sequence[np.ndarray], pooling: Pooling
) -> np.ndarray:
    """Pooled hidden states, float32 [texts, width]. Several texts fit a step together."""
    sums: np.ndarray | None = None
    counts = np.zeros((len(texts), 1))
    last = np.array([len(text) - 1 for text in texts])
    for start in range(0, int(last.max()) + 1, engine.batch_size):
        pieces = [text[start : start + engine.batch_size] for text in texts]
        sequences = np.repeat(np.arange(len(texts), dtype=np.int32), [len(p) for p in pieces])
        positions = np.concatenate([np.arange(len(p), dtype=np.int32) for p in pieces]) + start
        wanted = {
            "mean": positions >= 0,
            "cls": positions == 0,
            "last": positions == last[sequences],
        }
        outputs = np.flatnonzero(wanted[pooling]).astype(np.int32)
        tokens = np.concatenate(pieces)
        step = Step(tokens, positions, sequences, outputs)
        if graphs.histories is not None:
            step.components = graphs.histories.components(tokens, positions, sequences)
        graphs.cache.start_forward(step)
        states = graphs.run(step)
        if sums is None:
            sums = np.zeros((len(texts), states.shape[1]))
        np.add.at(sums, sequences[outputs], states)
        np.add.at(counts, sequences[outputs], 1)
    assert sums is not None
    return (sums / counts).astype(np.float32)


def _project(engine: Engine, pooled: np.ndarray) -> np.ndarray:
    """Pooled rows after the architecture's last layers, float32 [texts, width]."""
    with engine.backend.new_context() as ctx, ctx.trace():
        before = ctx.input().from_floats(pooled)
        after = engine.model.embeddings(ctx, before)
        if after is before:
            return pooled
        ctx.compute(after)
        return after.numpy().reshape(len(pooled), -1)


def normalized(rows: np.ndarray) -> np.ndarray:
    """Rows of length 1, float32 [n, width]; those that are zero stay so."""
    lengths = np.linalg.norm(rows.astype(np.float64), axis=1, keepdims=True)
    return (rows / np.where(lengths > 0, lengths, 1)).astype(np.float32)
