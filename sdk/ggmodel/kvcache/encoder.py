"""The encoder cache: encoded objects, such as images, for cross-attention.

An object belongs to the position where it is put. A position sees the latest object up to its own
and the unbroken run of objects directly before that one; a later object replaces them. This is the
rule of transformers' `get_cross_attention_token_mask`, within a sequence.

The rows of an object lie in cells; sequences may share them. Cell 0 stays zero: rows that see no
object attend to it, so that nothing of other sequences reaches them.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from ..errors import ConfigError, Error, KvCacheFull, TensorError
from ..ml import Backend, Context, DType, Tensor
from ..ml.node import Rows
from ..model.batch import Step
from ..model.cache import Cache, CacheSpec, LayerMemory, Saved, Size
from ..model.multimodal import Span
from .cells import Masks, Window, around, round_up
from .layer import Feeds, LayerCache, Stored
from .order import Listed, Order, lists_size


@dataclass(frozen=True)
class Cross(CacheSpec):
    """A layer that stores keys and values of encoded objects.

    Attributes:
        rows: the most rows of one object.
        objects: room for so many objects a sequence; sequences with fewer leave room to others.

    Raises:
        ConfigError: no rows, or no objects.
    """

    rows: int
    objects: int = 1
    stores_images: ClassVar[bool] = True

    def __post_init__(self):
        if self.rows < 1 or self.objects < 1:
            raise ConfigError(f"room for {self.objects} objects of {self.rows} rows; at least 1")

    @property
    def kind(self) -> Hashable:
        return self

    def new_cache(
        self, backend: Backend, layers: Mapping[int, Cross], dtype: DType, size: Size
    ) -> EncoderCache:
        return EncoderCache(backend, self, layers, dtype, size)


@dataclass(frozen=True, eq=False)
class Encoded:
    """An object that one or more sequences remember, in cells int64 [rows]."""

    cells: np.ndarray


Objects = dict[int, "Encoded | None"]  # by position, ascending; None if it was given up


@dataclass(frozen=True)
class Placed:
    """The cells of one step's objects, and its mask.

    Attributes:
        cells: int64 [m], of the rows of the objects.
        window: the cells that attention reads; none if no row sees an object.
        mask: [n, window] of the backend's mask dtype, 0 or −inf; None when only reserving.
        seen: float32 [n, 1], 1 if a row sees an object, else 0.
        before: objects (None if unchanged) and lengths of all sequences before the step.
        order: in place of the mask where the backend's attention is ordered.
        lists: the numbers of its lists.
    """

    cells: np.ndarray
    window: Window
    mask: np.ndarray | Rows | None = None
    seen: np.ndarray | None = None
    before: tuple[list[Objects] | None, np.ndarray] | None = None
    order: Order | None = None
    lists: int = 0


_NOTHING = np.zeros(0, np.int64)


class EncoderCache(Cache):
    """Keys and values of encoded objects.

    The objects of a step are its `spans`. Objects that no later position can see are given up when
    room is short.

    Attributes:
        cells: number of cells: room for rows, and cell 0.
        objects: sequence → its objects.
    """

    def __init__(
        self,
        backend: Backend,
        spec: Cross,
        layers: Mapping[int, Cross],
        dtype: DType,
        size: Size,
    ):
        self.max_batch = size.max_batch
        self.rows = size.sequences * spec.objects * spec.rows
        self.cells = round_up(1 + self.rows, backend.cache_config.padding)
        self.ranges = self.cells // backend.cache_config.padding
        self.stored = Stored(backend, dict.fromkeys(layers), dtype, self.cells, spec.rows)
        self.objects: list[Objects] = [{} for _ in range(size.sequences)]
        self.lengths = np.zeros(size.sequences, np.int32)
        self._masks = Masks(backend.cache_config)
        self._ordered = backend.cache_config.ordered
        self._touched = 1  # the last cell used since all free ones were cleared + 1

    # a step

    def start_forward(self, step: Step, reserve: bool = False) -> None:
        """
        Raises:
            Error: an incomplete object, or a position that has an object already.
        """
        n = sum(_checked(span).count for span in step.spans)
        if reserve:
            self._need(n, self.rows)
            looks = self.cells if n or self.stored.keys else 0  # a model may take no images
            most = lists_size(1 + 2 * self.rows)
            step.placed[self] = Placed(np.arange(1, 1 + n), Window(0, looks), lists=most)
            return
        before = [objects.copy() for objects in self.objects] if n else None
        was = before, self.lengths.copy()
        step.placed[self] = Placed(_NOTHING, Window(0, 0), before=was)
        try:
            cells = self._put(step, n) if n else _NOTHING
            np.maximum.at(self.lengths, step.sequences, step.positions + 1)
            placed = self._seen(step)
        except BaseException:  # Ctrl-C included
            self.undo(step)
            raise
        step.placed[self] = replace(placed, cells=cells, before=was)

    def _put(self, step: Step, n: int) -> np.ndarray:
        """Adds the step's objects, of n rows, to their sequences; returns their cells."""
        free = self._free()
        if len(free) < n:
            free = self._evict(step, n)
        self._need(n, len(free))
        cells, first = free[:n], 0
        for span in step.spans:
            sequence, position = int(step.sequences[span.index]), int(step.positions[span.index])
            if position in self.objects[sequence]:
                raise Error(f"position {position} of sequence {sequence} has an object already")
            self.objects[sequence][position] = Encoded(cells[first : first + span.count])
            first += span.count
        self._touched = max(self._touched, int(cells[-1]) + 1)
        for sequence in {int(step.sequences[span.index]) for span in step.spans}:
            self.objects[sequence] = dict(sorted(self.objects[sequence].items()))
        return cells

    def _need(self, n: int, free: int) -> None:
        if n > free:
            raise KvCacheFull(
                f"{n} rows of images need as many free cells; {free} of {self.rows} are free. Load "
                "the model with a larger parallel, or show it fewer images side by side"
            )

    def _evict(self, step: Step, n: int) -> np.ndarray:
        """Gives up objects that neither the step nor a later position can see until n cells are
        free; returns the free cells."""
        new = [(step.sequences[span.index], step.positions[span.index]) for span in step.spans]
        needed: set[Encoded | None] = set()
        for sequence, objects in enumerate(self.objects):
            there = sorted([*objects, *(int(p) for s, p in new if s == sequence)])
            run = _run(there, self.length(sequence))
            needed.update(objects[p] for p in run if p in objects)
        for objects in self.objects:
            for encoded in list(objects.values()):
                if encoded is not None and encoded not in needed:
                    self._give_up(encoded)
                    if len(self._free()) >= n:
                        return self._free()
        return self._free()

    def _give_up(self, encoded: Encoded) -> None:
        for objects in self.objects:
            for position, other in objects.items():
                if other is encoded:
                    objects[position] = None

    def undo(self, step: Step) -> None:
        placed: Placed | None = step.placed.pop(self, None)
        if placed is not None and placed.before is not None:
            objects, self.lengths = placed.before
            if objects is not None and step.begun:
                kept = {encoded for there in self.objects for encoded in there.values()}
                objects = [
                    {p: encoded if encoded in kept else None for p, encoded in there.items()}
                    for there in objects
                ]
            self.objects = objects or self.objects

    def _seen(self, step: Step) -> Placed:
        """The cells to read, and what each row sees of them."""
        visible = list(self._visible(step))
        seen = np.zeros((len(step.positions), 1), np.float32)
        if not visible:
            return Placed(_NOTHING, Window(0, 0), None, seen)
        for rows, _ in visible:
            seen[rows] = 1
        if self._ordered:
            order = self._order(step, visible)
            size = order.lists(len(seen))
            return Placed(_NOTHING, Window(0, self.cells), None, seen, order=order, lists=size)
        first = 0 if (seen == 0).any() else min(int(cells.min()) for _, cells in visible)
        last = max(int(cells.max()) for _, cells in visible)
        window = around(first, last + 1, self._masks.padding)
        views = np.zeros((1 + len(visible), window.size), bool)
        view = np.zeros(len(seen), np.int64)
        views[0, 0] = True  # of rows that see no object
        for i, (rows, cells) in enumerate(visible, start=1):
            views[i, cells - window.begin], view[rows] = True, i
        mask = self._masks.by_rows(len(seen), window.size, lambda rows: views[view[rows]])
        return Placed(_NOTHING, window, mask, seen)

    def _order(self, step: Step, visible: list[tuple[np.ndarray, np.ndarray]]) -> Order:
        """Objects in the order of `visible`, as if at positions from 0 on."""
        lists, which = [Listed(np.zeros(1, np.int64), 0)], np.zeros(len(step.positions), np.int64)
        for i, (rows, cells) in enumerate(visible, start=1):
            lists.append(Listed(cells, 0))
            which[rows] = i
        end = np.array([len(one.cells) for one in lists])[which]
        return Order.of(lists, which, np.zeros_like(which), end)

    def _visible(self, step: Step) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """(rows of the step that see the same objects, the cells of these objects), int64."""
        for sequence in np.unique(step.sequences):
            objects = self.objects[sequence]
            if not objects:
                continue
            mine = np.flatnonzero(step.sequences == sequence)
            latest = np.searchsorted(list(objects), step.positions[mine], side="right")
            for n in np.unique(latest[latest > 0]):
                run = [objects[p] for p in _run(list(objects), list(objects)[n - 1])]
                cells = [encoded.cells for encoded in run if encoded is not None]
                if cells:
                    yield mine[latest == n], np.concatenate(cells)

    def shape_key(self, step: Step) -> Hashable:
        placed: Placed = step.placed[self]
        key = placed.window, len(placed.cells)
        return key if placed.order is None else (*key, placed.lists)

    def layers(self, ctx: Context, step: Step) -> dict[int, LayerObjects]:
        placed: Placed = step.placed[self]
        layers = self.stored.ropes
        if not placed.window.size:
            return {layer: LayerObjects(layer, None, None) for layer in layers}
        feeds, n = Feeds(self.stored, ctx, self, step), len(step.positions)
        seen = ctx.feed(lambda s: s.placed[self].seen, DType.F32, 1, n, name="seen")
        caches = {layer: LayerCache(self.stored, feeds, layer) for layer in layers}
        return {layer: LayerObjects(layer, cache, seen) for layer, cache in caches.items()}

    # sequences

    def can_resume(self, sequence: int, position: int) -> bool:
        return self.resume_point(sequence, position) == position

    def resume_point(self, sequence: int, position: int) -> int:
        objects = self.objects[sequence]
        point = min(position, self.length(sequence))
        while lost := [p for p in _run(list(objects), point - 1) if objects[p] is None]:
            point = lost[-1]
        return point

    def copy_prefix(self, source: int, target: int, n: int) -> None:
        self.objects[target] = {p: o for p, o in self.objects[source].items() if p < n}
        self.lengths[target] = min(n, self.length(source))

    def remove(
        self, sequence: int, begin: int, end: int | None, moves: np.ndarray | None = None
    ) -> None:
        """Never fails."""
        length = self.length(sequence)
        end = length if end is None else min(end, length)
        if end <= begin:
            return
        self.objects[sequence] = {
            p if p < begin else p - (end - begin): encoded
            for p, encoded in self.objects[sequence].items()
            if not begin <= p < end
        }
        self.shorten(sequence, begin, end)

    def save(self, sequence: int, begin: int = 0, end: int | None = None) -> Saved | None:
        """The part has the position of each row's object, int32 [rows], then keys and values, uint8
        [rows, bytes], of all layers."""
        if self.stored.permuted_v:
            return None
        end = self.length(sequence) if end is None else end
        objects = {p: one for p, one in self.objects[sequence].items() if begin <= p < end}
        there = [one.cells for one in objects.values() if one is not None]
        if len(there) < len(objects):
            return Saved(end, [None])
        cells = np.concatenate([_NOTHING, *there])
        positions = np.repeat(np.array([*objects], np.int32), [len(one) for one in there])
        return Saved(end, [[positions, *self.stored.save(cells)]])

    def restore(self, sequence: int, saved: Saved) -> None:
        self.remove(sequence, 0, None)
        (part,) = saved.parts
        assert part is not None
        positions, *rows = part
        free = self._free()
        self._need(len(positions), len(free))
        cells = free[: len(positions)]
        self.stored.restore(cells, rows)
        if len(cells):
            self._touched = max(self._touched, int(cells[-1]) + 1)
        at = np.unique(positions).tolist()
        self.objects[sequence] = {p: Encoded(cells[positions == p]) for p in at}
        self.lengths[sequence] = saved.length

    def wipe(self, sequence: int) -> None:
        self.remove(sequence, 0, None)
        free = self._free()
        self.stored.clear(free[free < self._touched])
        used = np.setdiff1d(np.arange(self._touched), free)
        self._touched = 1 + int(used[-1])

    def _free(self) -> np.ndarray:
        """Cells without an object, cell 0 left out, ascending, int64."""
        free = np.ones(1 + self.rows, bool)
        free[0] = False
        for objects in self.objects:
            for encoded in objects.values():
                if encoded is not None:
                    free[encoded.cells] = False
        return np.flatnonzero(free)

    def close(self) -> None:
        self.stored.close()


class LayerObjects(LayerMemory):
    """One layer's encoded objects in a graph being recorded."""

    def __init__(self, layer: int, cache: LayerCache | None, seen: Tensor | None):
        super().__init__(layer)
        self._cache, self._seen = cache, seen

    @property
    def skipped(self) -> bool:
        """Whether no row of the batch sees an object: the layer must be left out then."""
        return self._cache is None

    @property
    def seen(self) -> Tensor:
        """F32 [1, n], 1 if a row sees an object, else 0; attention gives such rows zeros."""
        self._used()
        assert self._seen is not None
        return self._seen

    def put(self, k: Tensor, v: Tensor) -> None:
        """Stores k and v of the rows of `batch.multimodal`, in a batch that has some."""
        self._used().put(k, v)

    def get(self) -> tuple[Tensor, Tensor, Tensor]:
        return self._used().get()

    @property
    def spreads(self) -> bool:
        return self._used().spreads

    def spread(self, x: Tensor) -> Tensor:
        return self._used().spread(x)

    def _used(self) -> LayerCache:
        if self._cache is None:
            raise TensorError(
                f"no row of the batch sees an object in layer {self.layer}; leave the layer out "
                "where its cache is `skipped`"
            )
        return self._cache


def _checked(span: Span) -> Span:
    """The span, checked to hold all used rows of its embedding."""
    embedding = span.embedding
    used = len(embedding) if embedding.used is None else embedding.used
    if (span.first, span.count) != (0, used):
        raise Error(
            f"rows {span.first} to {span.first + span.count} of an image that uses {used}; all of "
            "these go to one position"
        )
    return span


def _run(there: list[int], position: int) -> list[int]:
    """The positions, out of the ascending ones of all objects, of the objects that a position
    sees; the latest first."""
    run: list[int] = []
    for p in reversed(there):
        if p <= position and (not run or p == run[-1] - 1):
            run.append(p)
        elif run:
            break
    return run
