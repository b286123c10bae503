"""The right results of an encoder cache: sequences of text and objects, and who sees which."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from ggmodel.kvcache import Cache, EncoderCache, WrapperCache
from ggmodel.model import MultimodalEmbedding, Span, Step

HEADS, QUERIES = 2, 4  # heads of keys and values, and of queries
SCALE = 0.25  # of scores


@dataclass(frozen=True)
class Thing:
    """An object of some rows; with another layer or number come other rows."""

    number: int
    rows: int
    unused: int = 0

    def embedding(self) -> MultimodalEmbedding:
        shape = self.rows + self.unused, 3
        return MultimodalEmbedding(np.full(shape, self.number, np.float32), used=self.rows)

    def keys(self, layer: int, d: int) -> np.ndarray:
        return _numbers(self.number, layer, 0, self.rows, HEADS, d)

    def values(self, layer: int, dv: int) -> np.ndarray:
        return _numbers(self.number, layer, 1, self.rows, HEADS, dv)


Sequence = list["Thing | None"]  # by position; None is text


def seen_things(sequence: Sequence) -> list[list[Thing]]:
    """For each position the objects it sees, the earliest first.

    From the objects' side: each is seen from its own position to the next object; a run of
    neighbours, each from its own position, to where its last one ends.
    """
    at = [i for i, thing in enumerate(sequence) if thing is not None]
    until = [*at, len(sequence)][1:]
    for i in reversed(range(len(at) - 1)):
        if until[i] == at[i] + 1:
            until[i] = until[i + 1]
    seen: list[list[Thing]] = [[] for _ in sequence]
    for begin, end in zip(at, until, strict=True):
        thing = sequence[begin]
        assert thing is not None
        for row in seen[begin:end]:
            row.append(thing)
    return seen


def next_sees(sequence: Sequence) -> list[Thing]:
    """The objects that a following text sees."""
    return seen_things([*sequence, None])[-1]


def query(sequence: int, position: int, layer: int, d: int) -> np.ndarray:
    return _numbers(sequence, position, 7 + layer, 1, QUERIES, d)[0]


def attended(q: np.ndarray, things: list[Thing], layer: int, dv: int) -> np.ndarray:
    """Attention of a query [QUERIES, d] to the objects it sees: [QUERIES, dv], 0 without any."""
    if not things:
        return np.zeros((QUERIES, dv))
    keys = np.concatenate([t.keys(layer, q.shape[1]) for t in things])
    values = np.concatenate([t.values(layer, dv) for t in things])
    out = np.empty((QUERIES, dv))
    for h in range(QUERIES):
        weights = np.exp(SCALE * keys[:, h * HEADS // QUERIES] @ q[h])
        out[h] = weights @ values[:, h * HEADS // QUERIES] / weights.sum()
    return out


Row = tuple[int, int, "Thing | None"]  # sequence, position, the object that is put there
Rows = list[Row]


def step_of(rows: Iterable[Row]) -> Step:
    rows = list(rows)
    spans = tuple(
        Span(i, thing.embedding(), 0, thing.rows)
        for i, (_, _, thing) in enumerate(rows)
        if thing is not None
    )
    sequences, positions = (np.array([r[i] for r in rows], np.int32) for i in (0, 1))
    zeros = np.zeros(len(rows), np.int32)
    return Step(zeros, positions, sequences, zeros[:0], spans=spans)


def attend(cache: Cache, rows: Rows, step: Step, d: int, dv: int) -> dict[int, np.ndarray]:
    """Stores the objects of a placed step, and attends: by layer [n, QUERIES, dv]; no layers where
    they are skipped."""
    encoder = encoder_of(cache)
    backend = encoder.stored.backend
    with backend.new_context() as ctx, ctx.trace():
        layers = {i: layer for i, layer in encoder.layers(ctx, step).items() if not layer.skipped}
        if not layers:
            return {}
        outs = {}
        for i, layer in layers.items():
            if things := [thing for *_, thing in rows if thing is not None]:
                k = ctx.input().from_floats(np.concatenate([t.keys(i, d) for t in things]))
                v = ctx.input().from_floats(np.concatenate([t.values(i, dv) for t in things]))
                layer.put(k, v)
            q = ctx.input().from_floats(np.stack([query(s, p, i, d) for s, p, _ in rows]))
            out = layer.spread(q).scaled_dot_product_attention(
                *layer.get(), scale=SCALE, cache_config_applied=True
            )
            out = layer.spread(out)
            outs[i] = out
            assert layer.seen.ne == (1, len(rows), 1, 1)
            ctx.forward(out)
        executable = backend.compile(ctx.graph, tuple(outs.values()))
        try:
            executable.run(step)
            return {i: executable.value(out)[0].copy() for i, out in outs.items()}
        finally:
            executable.close()


def encoder_of(cache: Cache) -> EncoderCache:
    caches = cache.caches if isinstance(cache, WrapperCache) else [cache]
    return next(c for c in caches if isinstance(c, EncoderCache))


def snapshot(cache: Cache) -> list:
    """All bookkeeping: two that are equal behave alike."""
    encoder = encoder_of(cache)
    objects = [
        [(p, o and (id(o), o.cells.tolist())) for p, o in objects.items()]
        for objects in encoder.objects
    ]
    return [objects, encoder.lengths.tolist()]


def _numbers(a: int, b: int, c: int, *shape: int) -> np.ndarray:
    return np.random.default_rng([a, b, c]).standard_normal(shape)
