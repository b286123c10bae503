"""The causal cache: every position sees itself and earlier ones of its sequence.

A cell holds one position and may be shared by several sequences. The cells of a step (row indices)
and its mask are data: one graph serves all steps that read the same window of cells.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, TypeVar

import numpy as np

from ..errors import Error, KvCacheFull, Unsupported
from ..ml import Backend, Context, DType
from ..ml.node import Rows
from ..model.batch import Step
from ..model.cache import Cache, CacheSpec, LayerMemory, Rotation, Size
from .cells import Cells, Masks, Window, number_of_windows, window_of
from .layer import Feeds, LayerCache, SharedLayer, Stored

P = TypeVar("P", int, np.ndarray)


class Rule(CacheSpec):
    """Which keys and values of a layer are kept and seen, by position: a position sees itself and
    earlier ones.

    Attributes:
        rope: the rotation of the layer's keys; None if they are not rotated. `cache.rotate` in
            `forward` uses it, and the cache moves keys with it.
        shares: the number of an earlier layer, declared alike, whose keys and values this one
            reads; it stores none. None if it has its own.
        bounded: whether a position may not see some earlier ones.
        ahead: whether tokens of one group, such as the rows of an image, see later ones of it.
        relative: attention adds scores that follow from distances, see `LayerCache.by_distance`.
            It is not fused then, and takes no quantised keys and values.
        max_bias: of ALiBi: scores fall with the distance of positions. 0 is none.
    """

    rope: Rotation | None
    shares: int | None
    absolute: bool = False
    bounded: ClassVar[bool] = True
    ahead: bool = True
    relative: bool = False
    max_bias: float = 0.0

    @property
    @abstractmethod
    def span(self) -> int | None:
        """The most positions kept for what comes next; None if all are."""

    @abstractmethod
    def sees_from(self, position: P) -> P:
        """The first position that `position` sees; may be negative."""

    def keeps_from(self, position: int) -> int:
        """The first position that is kept when `position` comes next; may be negative."""
        return self.sees_from(position)


@dataclass(frozen=True)
class Evicted:
    """Cells, int64 [n], that a sequence gave up, with their positions and groups."""

    sequence: int
    cells: np.ndarray
    position: np.ndarray
    group: np.ndarray


@dataclass(slots=True)
class Placed:
    """The cells and the mask of one step.

    Attributes:
        cells: int64 [n], the cell of each token.
        window: the cells that attention reads.
        mask: of the backend's mask dtype, 0 (−distance with ALiBi) or −inf: [n, window]; with
            parts [m], the masks [rows, cells] of one part after the other. None when only
            reserving.
        rows: the mask of each part's rows, or of all rows; views of `mask`.
        evicted: the cells that were given up to make room.
        lengths: int32 [sequences], before the step.
        allocations: of the table of cells, before the step.
        state: the cache's `_state` right after the step was placed.
        positions: int32 [window], those of the cells that attention reads, −1 in free ones; None
            where nothing follows from distances.
    """

    cells: np.ndarray
    window: Window
    mask: np.ndarray | Rows | None
    rows: list[np.ndarray] = field(default_factory=list)
    evicted: list[Evicted] = field(default_factory=list)
    lengths: np.ndarray | None = None
    allocations: dict[int, tuple[int, int]] = field(default_factory=dict)
    state: int = -1
    positions: np.ndarray | None = None

    def row(self, i: int) -> tuple[np.ndarray, int]:
        """The mask of the only token of part i, or of token i without parts, and its first cell."""
        if not self.window.parts:
            return self.rows[0][i], self.window.begin
        return self.rows[i][0], self.window.begin + self.window.parts[i].begin


class CausalCache(Cache):
    """Keys and values of layers that see the same positions.

    Args:
        rule: says which positions are seen and kept.
        layers: layer number → its declaration; all are of one kind.

    Attributes:
        table: its cells.
        lengths: kept even if all cells of a sequence are given up.
    """

    advances = True

    def __init__(
        self,
        backend: Backend,
        rule: Rule,
        layers: Mapping[int, Rule],
        dtype: DType,
        size: Size,
    ):
        if rule.relative and dtype.is_quantized:
            raise Unsupported(
                f"kv_type {dtype.name.lower()} needs fused attention, which cannot add scores of "
                "distances; use kv_type 'f16'"
            )
        self.rule, self._masks = rule, Masks(backend.cache_config, whole=size.sequences)
        cells = size.sequences * size.capacity
        if rule.span is not None:
            cells = min(cells, size.sequences * rule.span + size.max_batch)
        cells = self._masks.padded(cells)
        self.table = Cells(cells, size.sequences, self._masks.padding)
        self.max_batch = min(size.max_batch, cells)
        moves = rule.bounded or size.sequences > 1
        self.ranges = number_of_windows(cells // self._masks.padding, moves)
        ropes = {layer: spec.rope for layer, spec in layers.items() if spec.shares is None}
        self._sharing = {n: spec.shares for n, spec in layers.items() if spec.shares is not None}
        self.stored = Stored(backend, ropes, dtype, cells, self.max_batch)
        self.lengths = np.zeros(size.sequences, np.int32)
        config = backend.cache_config
        self._apart = config.parts and config.mask_batch_padding == 1 and not rule.relative
        self._state = 0  # changes with every change of the cache

    # a step

    def start_forward(self, step: Step, reserve: bool = False) -> None:
        n, table = len(step.positions), self.table
        if reserve:
            if n > table.count:
                raise KvCacheFull(f"a batch of {n} does not fit a cache of {table.count} cells")
            step.placed[self] = Placed(np.arange(n), Window(0, table.count), None)
            return
        placed = Placed(np.arange(0), Window(0, 0), None)
        placed.lengths, placed.allocations = self.lengths.copy(), table.allocations
        step.placed[self] = placed  # from here on `undo` takes back what is written
        try:
            placed.cells = self._find(step, placed.evicted)
            self._write(step, placed.cells)
            padding = self._masks.padding
            placed.window = window_of(step.sequences, table, padding, self._apart)
            _look(self.rule, table, self._masks, step, placed)
            if self.rule.relative:  # a copy: the cache may change before it is read
                placed.positions = _range(table, placed.window.begin, placed.window.size)[0].copy()
        except BaseException:  # Ctrl-C included
            self.undo(step)
            raise
        self._state += 1
        placed.state = self._state

    def advance(self, step: Step) -> bool:
        placed: Placed | None = step.placed.get(self)
        if placed is None or placed.state != self._state or step.groups is not None:
            return False
        following = _following(self.rule, self.table, step, placed)
        if following is None:
            return False
        cells, hidden = following
        sequences, positions = step.sequences.tolist(), step.positions.tolist()
        taken_over = [
            (s, c) for s, c in zip(sequences, cells, strict=True) if self.table.position[c] >= 0
        ]
        evicted = [self._evicted(sequence, np.array([cell])) for sequence, cell in taken_over]
        before, allocations = self.lengths.copy(), self.table.allocations
        step.placed[self] = replace(
            placed, cells=np.array(cells), evicted=evicted, lengths=before, allocations=allocations
        )
        try:
            # As `_write`, but a Python loop: for few tokens it is faster than numpy.
            for i, (cell, unseen) in enumerate(zip(cells, hidden, strict=True)):
                mask, first = placed.row(i)
                if unseen is not None:
                    mask[unseen - first] = -np.inf
                mask[cell - first] = 0
                if placed.positions is not None:
                    placed.positions[cell - placed.window.begin] = positions[i]
                self.table.write_one(cell, sequences[i], positions[i])
                if self.rule.max_bias:
                    held = self.table.position[first : first + len(mask)]
                    mask[:] = _distances(mask == -np.inf, held, positions[i])
                self.lengths[sequences[i]] = positions[i] + 1
        except BaseException:  # Ctrl-C included
            self.undo(step)
            raise
        return True

    def _evicted(self, sequence: int, cells: np.ndarray) -> Evicted:
        return Evicted(sequence, cells, self.table.position[cells], self.table.group[cells])

    def _find(self, step: Step, evicted: list[Evicted]) -> np.ndarray:
        """Free cells for the step's tokens, int64 [n]; cells given up for them go to `evicted`."""
        n = len(step.positions)
        upcoming = dict(_upcoming(step)) if self.rule.bounded else {}
        for sequence, position in upcoming.items():
            self._evict(sequence, position, evicted)
        cells = self.table.find(step.sequences)
        if len(cells) < n and self.rule.bounded:
            for sequence in range(len(self.lengths)):
                if sequence not in upcoming:
                    self._evict(sequence, self.length(sequence), evicted)
            cells = self.table.find(step.sequences)
        if len(cells) < n:
            raise KvCacheFull(
                f"{n} tokens need as many free cells; {len(cells)} of {self.table.count} are free"
            )
        return cells

    def _write(self, step: Step, cells: np.ndarray) -> None:
        groups = np.zeros(1, np.int32) if step.groups is None else step.groups
        self.table.write(cells, step.sequences, step.positions, groups)
        np.maximum.at(self.lengths, step.sequences, step.positions + 1)

    def undo(self, step: Step) -> None:
        placed: Placed | None = step.placed.pop(self, None)
        if placed is None or placed.lengths is None:
            return
        self._state += 1
        self.lengths, self.table.allocations = placed.lengths, placed.allocations
        self.table.empty(placed.cells)
        if not step.begun:
            for e in placed.evicted:
                self.table.write(e.cells, np.array(e.sequence), e.position, e.group)
        self.table.find_end()

    def _evict(self, sequence: int, position: int, evicted: list[Evicted]) -> None:
        """Makes a sequence forget the positions that it need not keep when `position` comes next;
        adds their cells to `evicted`."""
        limit = self.rule.keeps_from(position)
        if limit <= 0:
            return
        table = self.table
        old = table.position[: table.end] < limit
        cells = np.flatnonzero(table.member[sequence, : table.end] & old)
        if cells.size:
            evicted.append(self._evicted(sequence, cells))
            table.forget(sequence, cells)

    def shape_key(self, step: Step) -> Window:
        return step.placed[self].window

    def layers(self, ctx: Context, step: Step) -> dict[int, LayerMemory]:
        rule = self.rule
        feeds = Feeds(self.stored, ctx, self, step, rule.max_bias, rule.relative)
        own = {layer: LayerCache(self.stored, feeds, layer) for layer in self.stored.ropes}
        return {**own, **{n: SharedLayer(n, own[of]) for n, of in self._sharing.items()}}

    # sequences

    def can_resume(self, sequence: int, position: int) -> bool:
        """Whether every position that `position` would see is remembered. False between tokens of
        one group: its first tokens have seen its last ones."""
        if position > self.lengths[sequence]:
            return False
        table, end = self.table, self.table.end
        mine, at = table.member[sequence, :end], table.position[:end]
        first = max(self.rule.sees_from(position), 0)
        if int((mine & (at >= first) & (at < position)).sum()) != position - first:
            return False
        before, after = (table.group[:end][mine & (at == position + i)] for i in (-1, 0))
        return not (before.size and after.size and 0 < before[0] == after[0])

    def allocate(self, sequence: int, length: int) -> None:
        if self.rule.span is not None:  # and what a batch adds before the oldest are given up
            length = min(length, self.rule.span + self.max_batch)
        if self._apart:  # else rows of all sequences read one range, which allocations make longer
            self.table.allocate(sequence, length)

    def copy_prefix(self, source: int, target: int, n: int) -> None:
        if source == target:
            self.remove(target, n, None)
            return
        self._state += 1
        self.remove(target, 0, None)
        table = self.table
        table.member[target] = table.member[source] & (table.position < n)
        self.lengths[target] = min(n, self.length(source))

    def check_remove(self, sequence: int, begin: int, end: int | None) -> None:
        later = self._behind(sequence, begin, end)
        if self.rule.absolute and len(later):
            raise Error(
                f"positions of sequence {sequence} cannot move: what entered the layers holds "
                "them; remove(sequence, 0, None) and compute it again"
            )
        if self.table.member[:, later].sum() > len(later):
            raise Error(
                f"positions of sequence {sequence} cannot move: another sequence shares their "
                "cells; remove(sequence, 0, None) and compute it again"
            )

    def remove(
        self, sequence: int, begin: int, end: int | None, moves: np.ndarray | None = None
    ) -> None:
        """Removal in the middle rotates the keys of the later positions, which move down. With a
        window, `can_resume` tells whether enough positions are left to continue.

        Raises:
            Error: cells to be moved are shared with another sequence; nothing has changed.
        """
        self.check_remove(sequence, begin, end)
        self._state += 1
        later = self._behind(sequence, begin, end)
        position = self.table.position
        gone = self.table.member[sequence] & (position >= begin)
        if end is not None:
            gone &= position < end
            if len(later):
                self.stored.rotate(later, self._amounts(later, begin, end, moves))
                position[later] += begin - end  # after the last call that can fail
        self.table.forget(sequence, np.flatnonzero(gone))
        self.shorten(sequence, begin, end)

    def _amounts(
        self, cells: np.ndarray, begin: int, end: int, moves: np.ndarray | None
    ) -> np.ndarray:
        """The amounts that keys of cells, int64 [n], are rotated by, int32 [n, k]; see `remove`."""
        if moves is None:
            return np.full((len(cells), self.stored.components), begin - end, np.int32)
        return moves[self.table.position[cells] - end]

    def _behind(self, sequence: int, begin: int, end: int | None) -> np.ndarray:
        """The cells that move if positions begin to end are removed, int64 [n]."""
        if end is None or end <= begin:
            return np.zeros(0, np.int64)
        return np.flatnonzero(self.table.member[sequence] & (self.table.position >= end))

    def wipe(self, sequence: int) -> None:
        self.remove(sequence, 0, None)
        # All free cells: the sequence may have given up some earlier.
        self.stored.clear(self.table.untidy())

    def close(self) -> None:
        self.stored.close()


def _upcoming(step: Step) -> Iterator[tuple[int, int]]:
    """Each sequence of the step with its lowest position."""
    if len(step.sequences) == 1:
        yield int(step.sequences[0]), int(step.positions[0])
        return
    for sequence in np.unique(step.sequences):
        yield int(sequence), int(step.positions[step.sequences == sequence].min())


def _look(rule: Rule, table: Cells, masks: Masks, step: Step, placed: Placed) -> None:
    """Makes the mask of a step for its window; its cells are written."""
    window, n = placed.window, len(step.positions)
    if not window.parts:
        cells = placed.cells - window.begin
        position, member = _range(table, window.begin, window.size)
        if n > masks.whole:  # the cache may change before the mask is written
            position, member = position.copy(), member.copy()
        placed.mask = masks.by_rows(
            n, window.size, lambda rows: _visible(rule, step, cells, rows, position, member)
        )
        placed.rows = [placed.mask] if isinstance(placed.mask, np.ndarray) else []
        return
    each = list[np.ndarray]()
    for part in window.parts:
        rows = slice(part.row, part.row + part.rows)
        mine = Step(
            step.tokens[rows],
            step.positions[rows],
            step.sequences[rows],
            step.outputs,
            None if step.groups is None else step.groups[rows],
        )
        first = window.begin + part.begin
        held = _range(table, first, part.cells)
        each.append(masks.of(_visible(rule, mine, placed.cells[rows] - first, slice(None), *held)))
    placed.mask = np.concatenate([mask.reshape(-1) for mask in each])
    pieces = np.split(placed.mask, np.cumsum([mask.size for mask in each])[:-1])
    placed.rows = [p.reshape(m.shape) for p, m in zip(pieces, each, strict=True)]


def _range(table: Cells, begin: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Positions [size] and members [sequences, size] of the cells from `begin` on."""
    return table.position[begin : begin + size], table.member[:, begin : begin + size]


def _visible(
    rule: Rule,
    step: Step,
    cells: np.ndarray,
    rows: slice,
    position: np.ndarray,
    member: np.ndarray,
) -> np.ndarray:
    """Whether some rows of a step see each cell of a range: bool [rows, size]; with ALiBi their
    `_distances`.

    Args:
        cells: int64 [n], those of all rows of the step, counted from the range's begin.
        position, member: see `_range`.
    """
    positions, sequences = step.positions[rows, None], step.sequences[rows]
    visible = position <= positions
    if rule.ahead and step.groups is not None and step.groups.any():
        grouped = step.groups[rows, None]
        visible[:, cells] |= (grouped == step.groups) & (grouped > 0)
    # Groups look ahead, not further back (transformers, `create_masks_for_vision_model`).
    if rule.bounded:
        visible &= position >= rule.sees_from(positions)
    if len(sequences) and (sequences == sequences[0]).all():
        visible &= member[sequences[0]]
    else:
        visible &= member[sequences]
    return _distances(~visible, position, positions) if rule.max_bias else visible


_FARTHEST = 65504  # in half precision


def _distances(hidden: np.ndarray, position: np.ndarray, seen_from: np.ndarray | int) -> np.ndarray:
    """Minus the distances of cells' positions from others, −inf where `hidden`: float32."""
    far = np.minimum(np.abs(position - seen_from), _FARTHEST)
    return np.where(hidden, np.float32(-np.inf), -far.astype(np.float32))


def _following(
    rule: Rule, table: Cells, step: Step, placed: Placed
) -> tuple[Sequence[int], Sequence[int | None]] | None:
    """The cells of the next tokens of a computed step, and for each token the cell to mask that
    the token before it saw. A cell in use is taken over from the same sequence. None if finding
    cells takes more than that."""
    sequences, bounded = step.sequences.tolist(), rule.bounded
    if len(placed.window.parts) not in (0, len(sequences)):
        return None
    end, latest = table.end, placed.cells.tolist()
    # Without allocations: if the latest cells are not the last ones there may be holes, which are
    # filled first.
    in_a_row = latest[0] + len(latest) == end == latest[-1] + 1
    if not (table.expected or bounded or in_a_row):
        return None
    cells, hidden = list[int](), list[int | None]()
    for i, position in enumerate(step.positions.tolist()):
        mask, first = placed.row(i)
        last, cell, unseen = first + len(mask), None, None
        if bounded:
            given_up = _lost(rule.keeps_from, position)
            lost = _lost(rule.sees_from, position)
            if given_up is None or lost is None:
                return None
            cell = table.at(sequences[i], given_up, first, last)
            unseen = cell if lost == given_up else table.at(sequences[i], lost, first, last)
        if cell is not None:
            if table.member[:, cell].sum() > 1:
                return None
        elif table.expected:
            cell = latest[i] + 1
            if not table.free_next(cell, sequences[i]):
                return None
        else:
            cell, end = end, end + 1
        if not first <= cell < last:
            return None
        cells.append(cell)
        hidden.append(unseen)
    return cells, hidden


def _lost(first: Callable[[int], int], position: int) -> int | None:
    """The position that is out of range for `position` but not for the one before: −1 if there is
    none, None if there are several.

    Args:
        first: position → the first position in its range.
    """
    before, now = max(first(position - 1), 0), max(first(position), 0)
    return None if now > before + 1 else before if now > before else -1
