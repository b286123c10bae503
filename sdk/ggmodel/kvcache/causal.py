"""The causal cache: every position sees itself and all earlier ones of its sequence.

Cells hold one position each and may be shared by several sequences. Which cell a token goes to is
data (row indices), as is what each token sees (the mask), so that one graph serves every step whose
range of cells is the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ..errors import Error, KvCacheFull, OutOfMemory, TensorError, Unsupported
from ..ml import Backend, Context, DType, Tensor

if TYPE_CHECKING:
    from ..model.batch import Step
    from ..nn.rope import Rope

KV_TYPES = (DType.F32, DType.F16)


@dataclass(frozen=True)
class Causal:
    """A layer that remembers every position.

    Attributes:
        rope: how the layer rotates its keys; None if it does not. Needed to move positions.
    """

    rope: Rope | None = None


@dataclass(frozen=True)
class Placed:
    """Where one step's tokens go and what they see.

    Attributes:
        cells: int64 [n], the cell of each token.
        range: cells 0 to range are looked at.
        mask: [n, range] of the backend's mask dtype, 0 or −inf; None when only reserving.
    """

    cells: np.ndarray
    range: int
    mask: np.ndarray | None


class CausalCache:
    """Keys and values of all layers for several sequences.

    Args:
        layers: one declaration a layer.
        dtype: of keys and values.
        sequences: sequences are numbered 0 to sequences − 1.
        capacity: positions a sequence; together they have sequences · capacity cells, rounded up
            to the backend's padding.

    Raises:
        Unsupported: a dtype that keys and values cannot have.
    """

    def __init__(
        self,
        backend: Backend,
        layers: Sequence[Causal],
        *,
        dtype: DType,
        sequences: int,
        capacity: int,
    ):
        if dtype not in KV_TYPES:
            names = ", ".join(t.name.lower() for t in KV_TYPES)
            raise Unsupported(f"kv_type {dtype.name.lower()} is not there yet; there is {names}")
        self.backend = backend
        self.specs = list(layers)
        for i, spec in enumerate(self.specs):
            if not isinstance(spec, Causal):
                raise TensorError(
                    f"caches() must give one Causal(...) a layer; entry {i} is {spec!r}"
                )
        self.dtype = dtype
        self.config = backend.cache_config
        self.cells = _round_up(sequences * capacity, self.config.padding)
        try:
            self.position = np.full(self.cells, -1, np.int32)  # −1: the cell is free
            self.member = np.zeros((sequences, self.cells), bool)
        except (MemoryError, ValueError):
            raise OutOfMemory(
                f"a cache of {self.cells:,} cells for {sequences:,} sequences does not fit in "
                "memory; a smaller context_length or parallel needs less"
            ) from None
        self._ctx: Context = backend.new_context()
        self.key_width: dict[int, int] = {}  # elements of one head's key, by layer
        self.keys: dict[int, Tensor] = {}
        self.values: dict[int, Tensor] = {}
        # Indexed by visibility: half the time of np.where on a whole mask.
        dtype_of_mask = np.float16 if self.config.mask_dtype is DType.F16 else np.float32
        self._mask_values = np.array([-np.inf, 0], dtype_of_mask)

    # a step

    def start_forward(self, step: Step, reserve: bool = False) -> None:
        """Finds cells for the step's tokens and notes them in `step.placed`.

        Args:
            reserve: nothing is stored; the step is laid out as if the cache were full.

        Raises:
            KvCacheFull: fewer cells are free than there are tokens; nothing has changed.
        """
        n = len(step.positions)
        if reserve:
            if n > self.cells:
                raise KvCacheFull(f"a batch of {n} does not fit a cache of {self.cells} cells")
            step.placed[self] = Placed(np.arange(n), self.cells, None)
            return
        free = np.flatnonzero(self.position < 0)[:n]
        if len(free) < n:
            raise KvCacheFull(
                f"{n} tokens need as many free cells; {len(free)} of {self.cells} are free"
            )
        self.position[free] = step.positions
        self.member[step.sequences, free] = True
        used = int(np.flatnonzero(self.position >= 0)[-1]) + 1
        size = min(_round_up(used, self.config.padding), self.cells)
        step.placed[self] = Placed(free, size, self._mask(step, size))

    def _mask(self, step: Step, size: int) -> np.ndarray:
        seen = self.position[:size] <= step.positions[:, None]
        seen &= self.member[step.sequences, :size]
        return self._mask_values[seen.view(np.int8)]

    def shape_key(self, step: Step) -> int:
        """What of the cache's state a graph for this step depends on."""
        return step.placed[self].range

    def layers(self, ctx: Context, step: Step) -> list[LayerCache]:
        """For each layer what stores and returns its keys and values in a graph being recorded."""
        placed: Placed = step.placed[self]
        feeds = Feeds(self, ctx, len(placed.cells), placed.range)
        return [LayerCache(self, feeds, i) for i in range(len(self.specs))]

    def state(self, kind: dict[int, Tensor], layer: int, *shape: int) -> Tensor:
        """The layer's keys or values, allocated when first asked for."""
        tensor = kind.get(layer)
        if tensor is None:
            tensor = self._ctx.layer(layer).zeros(self.dtype, *shape)
            tensor.name = f"cache.{layer}.{'k' if kind is self.keys else 'v'}"
            kind[layer] = tensor
        return tensor

    # sequences

    def length(self, sequence: int) -> int:
        """One more than the sequence's highest position; 0 if it is empty."""
        mine = self.position[self.member[sequence]]
        return int(mine.max()) + 1 if mine.size else 0

    def can_resume(self, sequence: int, position: int) -> bool:
        """Whether all positions below are still there, so that `position` can come next."""
        mine = self.position[self.member[sequence]]
        return int((mine < position).sum()) == position

    def copy_prefix(self, source: int, target: int, n: int) -> None:
        """Makes positions 0 to n of `source` the whole of `target`; cells are shared."""
        if source == target:
            self.remove(target, n, None)
            return
        self.remove(target, 0, None)
        self.member[target] = self.member[source] & (self.position < n)

    def remove(self, sequence: int, begin: int, end: int | None) -> None:
        """Forgets positions begin to end (None: all from begin on).

        Removal in the middle moves the later positions down and rotates their keys accordingly.

        Raises:
            Error: cells to be moved are shared with another sequence; nothing has changed, and an
                empty sequence can go on after `remove(sequence, 0, None)`.
        """
        mine = self.member[sequence]
        gone = mine & (self.position >= begin)
        if end is not None:
            later = gone & (self.position >= end)
            gone &= ~later
            if later.any() and end > begin:
                self._shift(sequence, later, begin - end)
        mine[gone] = False
        self.position[~self.member.any(axis=0)] = -1

    def wipe(self, sequence: int) -> None:
        """Forgets a sequence and overwrites what it alone remembered with zeros: NaN left in free
        cells would get through the zero weight that plain attention gives to masked cells."""
        cells = np.flatnonzero(self.member[sequence])
        self.remove(sequence, 0, None)
        freed = cells[self.position[cells] < 0]
        if not freed.size:
            return
        with self.backend.new_context() as ctx, ctx.trace():
            host = ctx.input()
            rows = host.from_bytes(DType.I64, freed.tobytes(), len(freed))
            for keys in self.keys.values():
                ctx.forward(keys.set_rows(host.zeros(DType.F32, keys.dim(0), len(freed)), rows))
            for values in self.values.values():
                if not self.config.permuted_v:
                    zeros = host.zeros(DType.F32, values.dim(0), len(freed))
                    ctx.forward(values.set_rows(zeros, rows))
                    continue
                width = values.dim(1)
                places = _scatter(width, self.cells, freed)
                flat = values.reshape(1, self.cells * width)
                ids = host.from_bytes(DType.I64, places.tobytes(), len(places))
                ctx.forward(flat.set_rows(host.zeros(DType.F32, 1, len(places)), ids))
            ctx.compute()

    def _shift(self, sequence: int, cells: np.ndarray, delta: int) -> None:
        if self.member[:, cells].sum() > cells.sum():
            raise Error(
                f"positions of sequence {sequence} cannot move: another sequence shares their "
                "cells; remove(sequence, 0, None) and compute it again"
            )
        size = _round_up(int(np.flatnonzero(cells)[-1]) + 1, self.config.padding)
        offsets = np.where(cells[:size], delta, 0).astype(np.int32)
        with self.backend.new_context() as ctx, ctx.trace():
            amounts = ctx.input().from_ints(offsets)
            for layer, keys in self.keys.items():
                rope = self.specs[layer].rope
                if rope is None:
                    continue
                width = self.key_width[layer]
                window = _window(keys, width, keys.dim(0) // width, size)
                ctx.forward(rope(window, amounts).copy(window))
            ctx.compute()
        self.position[cells] += delta  # only now, when nothing can fail any more

    def close(self) -> None:
        """Frees keys and values; idempotent."""
        self._ctx.close()
        self.keys.clear()
        self.values.clear()


class Feeds:
    """The inputs that all layers of one recorded batch share."""

    def __init__(self, cache: CausalCache, ctx: Context, n: int, size: int):
        self.cache, self.ctx, self.n, self.range = cache, ctx, n, size
        self.rows = ctx.feed(
            lambda s: s.placed[cache].cells, DType.I64, n, trusted=True, name="cells"
        )
        self.mask = ctx.feed(
            lambda s: s.placed[cache].mask, cache.config.mask_dtype, size, n, name="mask"
        )
        self._scattered: dict[int, Tensor] = {}

    def scattered(self, width: int) -> Tensor:
        """Row indices for values stored cell-first: one a value, I64 [width · n]."""
        if width not in self._scattered:
            cache = self.cache
            self._scattered[width] = self.ctx.feed(
                lambda s: _scatter(width, cache.cells, s.placed[cache].cells),
                DType.I64,
                width * self.n,
                trusted=True,
                name="cells",
            )
        return self._scattered[width]


class LayerCache:
    """One layer's keys and values in a graph being recorded."""

    def __init__(self, cache: CausalCache, feeds: Feeds, layer: int):
        self.cache, self.feeds, self.layer = cache, feeds, layer
        self._k: tuple[int, int] = (0, 0)
        self._v: tuple[int, int] = (0, 0)

    def put(self, k: Tensor, v: Tensor) -> None:
        """Stores k [d, kv heads, n] and v [dv, kv heads, n] in the cells of this batch."""
        cache, feeds = self.cache, self.feeds
        if self._k != (0, 0):
            raise TensorError(
                f"the cache of layer {self.layer} was given keys and values twice in one forward; "
                "each layer has its own, batch.cache[i]"
            )
        (d, heads), (dv, v_heads) = (k.dim(0), k.dim(1)), (v.dim(0), v.dim(1))
        self._k, self._v = (d, heads), (dv, v_heads)
        cache.key_width[self.layer] = d
        keys = cache.state(cache.keys, self.layer, d * heads, cache.cells)
        feeds.ctx.forward(keys.set_rows(k.reshape(d * heads, -1), feeds.rows))
        width = dv * v_heads
        if cache.config.permuted_v:
            values = cache.state(cache.values, self.layer, cache.cells, width)
            flat = values.reshape(1, cache.cells * width)
            stored = flat.set_rows(v.reshape(1, width * feeds.n), feeds.scattered(width))
        else:
            values = cache.state(cache.values, self.layer, width, cache.cells)
            stored = values.set_rows(v.reshape(width, -1), feeds.rows)
        feeds.ctx.forward(stored)

    def get(self) -> tuple[Tensor, Tensor, Tensor]:
        """Keys [d, kv heads, range], values [dv, kv heads, range] (with the backend's
        `permuted_v` [range, dv, kv heads]) and the mask [range, n]."""
        cache, feeds = self.cache, self.feeds
        if self._k == (0, 0):
            raise TensorError(f"get() before put() on the cache of layer {self.layer}")
        keys = _window(cache.keys[self.layer], *self._k, feeds.range)
        stored = cache.values[self.layer]
        if cache.config.permuted_v:
            dv, heads = self._v
            row = stored.stride(1)
            values = stored.view(0, feeds.range, row, dv, row * dv, heads)
        else:
            values = _window(stored, *self._v, feeds.range)
        return keys, values, feeds.mask


def _window(stored: Tensor, d: int, heads: int, size: int) -> Tensor:
    """[d · heads, cells] seen as [d, heads, size]."""
    return stored.view(0, d, stored.dtype.row_size(d), heads, stored.stride(1), size)


def _scatter(width: int, total: int, cells: np.ndarray) -> np.ndarray:
    """Where the values of each of the cells lie in [total cells, width], int64 [cells · width]."""
    return (np.arange(width) * total + cells[:, None]).reshape(-1)


def _round_up(n: int, multiple: int) -> int:
    return -(-n // multiple) * multiple
