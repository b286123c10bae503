"""The right results of caches, recomputed from the whole history without cells."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ggmodel.kvcache import Cache, Causal, CausalCache, Chunked, Sliding, WrapperCache
from ggmodel.ml import DType
from ggmodel.model import Step

HEADS = 2
Spec = Causal | Sliding | Chunked

# Squared error over squared values; a wrong mask makes 0.1 and more of it. Halves have 11 bits,
# Q8_0 and Q4_0 8 and 4; attention rounds queries as it does keys, a shift rounds keys once more.
BOUND = {DType.F32: 1e-10, DType.F16: 1e-5, DType.Q8_0: 5e-4, DType.Q4_0: 8e-2}


@dataclass(eq=False)
class Token:
    """A token as the cache keeps it: once, even where several sequences share it."""

    number: int
    group: int
    position: int

    def key(self, layer: int, width: int) -> np.ndarray:
        return np.random.default_rng([self.number, layer, 0]).standard_normal((HEADS, width))

    def value(self, layer: int, width: int) -> np.ndarray:
        return np.random.default_rng([self.number, layer, 1]).standard_normal((HEADS, width))


@dataclass
class History:
    """Sequences of tokens, and which of them windowed layers may have lost."""

    specs: list[Spec]
    sequences: int
    lists: list[list[Token]] = field(default_factory=list)
    lost: dict[tuple[int, int], set[Token]] = field(default_factory=dict)
    made: int = 0

    def __post_init__(self):
        self.lists = [[] for _ in range(self.sequences)]
        self.lost = {(s, i): set() for s in range(self.sequences) for i in range(len(self.specs))}

    def length(self, sequence: int) -> int:
        return max((t.position + 1 for t in self.lists[sequence]), default=0)

    def distinct(self) -> int:
        return len({t for tokens in self.lists for t in tokens})

    def append(self, sequence: int, group: int) -> Token:
        self.made += 1
        token = Token(self.made, group, self.length(sequence))
        self.lists[sequence].append(token)
        return token

    def forget_what_may_be_evicted(self) -> None:
        """The tokens before the span that is kept for the next position."""
        for (s, i), lost in self.lost.items():
            end = self.length(s)
            lost |= {t for t in self.lists[s] if t.position < first_kept(self.specs[i], end)}

    def surely_resumable(self, sequence: int, position: int) -> bool:
        """Whether nothing that `position` sees can have been lost."""
        return all(
            token not in self.lost[sequence, i]
            for i, spec in enumerate(self.specs)
            for token in self.lists[sequence]
            if token.position < position and sees(spec, position, token.position)
        ) and {t.position for t in self.lists[sequence]} >= set(range(position))

    def copy_prefix(self, source: int, target: int, n: int) -> None:
        self.lists[target] = [t for t in self.lists[source] if t.position < n]
        for i in range(len(self.specs)):
            self.lost[target, i] = set(self.lost[source, i])

    def shares_what_moves(self, sequence: int, begin: int, end: int) -> bool:
        moving = {t for t in self.lists[sequence] if t.position >= end > begin}
        return any(moving & set(other) for s, other in enumerate(self.lists) if s != sequence)

    def remove(self, sequence: int, begin: int, end: int) -> None:
        if end <= begin:
            return
        kept = [t for t in self.lists[sequence] if not begin <= t.position < end]
        for token in kept:
            if token.position >= end:
                token.position -= end - begin
        self.lists[sequence] = kept

    def attention(self, sequence: int, token: Token, layer: int, d: int, dv: int) -> np.ndarray:
        """The result of the layer's attention in the token's row: [heads, dv]."""
        spec = self.specs[layer]
        past = [
            t
            for t in self.lists[sequence]
            if sees(spec, token.position, t.position, 0 < t.group == token.group)
        ]
        query = rotated(token.key(layer, d), token.position, spec.rope)
        stored = layer if spec.shares is None else spec.shares
        keys = np.stack([rotated(t.key(stored, d), t.position, spec.rope) for t in past])
        values = np.stack([t.value(stored, dv) for t in past])
        scores = 0.5 * np.einsum("hd,nhd->hn", query, keys)
        if isinstance(spec, Causal) and spec.max_bias:
            far = np.array([abs(t.position - token.position) for t in past])
            scores -= 2.0 ** (-spec.max_bias * np.arange(1, HEADS + 1) / HEADS)[:, None] * far
        weights = np.exp(scores)
        weights /= weights.sum(1, keepdims=True)
        return np.einsum("hn,nhd->hd", weights, values)


def sees(spec: Spec, p: int, q: int, together: bool = False) -> bool:
    """Whether position p sees q; together: of one group, which looks ahead."""
    if q > p and not (together and spec.ahead):
        return False
    if isinstance(spec, Sliding):
        return q > p - spec.window
    return not isinstance(spec, Chunked) or q // spec.size >= p // spec.size


def first_kept(spec: Spec, p: int) -> int:
    """The first position that has to be there when p comes next."""
    if isinstance(spec, Sliding):
        return p - (spec.memory or spec.window) + 1
    return p // spec.size * spec.size if isinstance(spec, Chunked) else 0


def rotated(x: np.ndarray, position: int, rope: Any) -> np.ndarray:
    """Pairs of neighbours turned: [heads, d] → [heads, d]."""
    if rope is None:
        return x
    d = x.shape[1]
    angles = position * rope.base ** (-np.arange(0, d, 2) / d)
    turned = (x[:, ::2] + 1j * x[:, 1::2]) * np.exp(1j * angles)
    return np.stack([turned.real, turned.imag], -1).reshape(x.shape)


def attend(cache: Cache, batch: Step, tokens: list[Token], specs: list[Spec], d: int, dv: int):
    """Stores the tokens' keys and values in a placed step, attends with the keys as queries:
    [layers, n, heads, dv]."""
    backend = parts(cache)[0].stored.backend
    with backend.new_context() as ctx, ctx.trace():
        outs = []
        at = ctx.input().from_ints(batch.positions)
        for i, layer in sorted(cache.layers(ctx, batch).items()):
            keys = ctx.input().from_floats(np.stack([t.key(i, d) for t in tokens]))
            rope = specs[i].rope
            keys = keys if rope is None else rope(keys, at)
            if specs[i].shares is None:
                layer.put(keys, ctx.input().from_floats(np.stack([t.value(i, dv) for t in tokens])))
            cached = layer.get()
            out = layer.spread(keys).scaled_dot_product_attention(
                *cached,
                scale=0.5,
                cache_config_applied=True,
                max_bias=layer.max_bias,
            )
            out = layer.spread(out)
            outs.append(out)
            ctx.forward(out)
        executable = backend.compile(ctx.graph, tuple(outs))
        try:
            executable.run(batch)
            return np.stack([executable.value(out)[0].copy() for out in outs])
        finally:
            executable.close()


def parts(cache: Cache) -> list[CausalCache]:
    """The caches behind a face."""
    caches = cache.caches if isinstance(cache, WrapperCache) else [cache]
    return [c for c in caches if isinstance(c, CausalCache)]


def snapshot(cache: Cache) -> list[bytes]:
    """All bookkeeping: two that are equal behave alike."""
    return [
        array.tobytes()
        for part in parts(cache)
        for array in (
            part.table.position,
            part.table.member,
            np.where(part.table.position < 0, 0, part.table.group),
            np.array(part.table.end),
            part.lengths,
            np.array([(s, *cells) for s, cells in sorted(part.table.allocations.items())]),
        )
    ]
