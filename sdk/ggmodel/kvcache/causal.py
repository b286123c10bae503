"""The causal cache: every position sees itself and earlier ones of its sequence.

A cell holds one position and may be shared by several sequences. The cells of a step (row indices)
and its mask are data: one graph serves all steps that read the same window of cells.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from ..errors import Error, KvCacheFull, Unsupported
from ..ml import Backend, Context, DType
from ..model.batch import Step
from ..model.cache import Cache, LayerMemory, Saved, Size
from .cells import Cells, Masks, Window, number_of_windows, window_of
from .layer import Feeds, LayerCache, SharedLayer, Stored
from .order import largest_lists
from .seen import Evicted, Placed, Rule, distances, look, order_of, range_of


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
        self._ordered = config.ordered
        self._allocates = config.ordered and not rule.relative
        self._state = 0  # changes with every change of the cache

    # a step

    def start_forward(self, step: Step, reserve: bool = False) -> None:
        n, table = len(step.positions), self.table
        if reserve:
            if n > table.count:
                raise KvCacheFull(f"a batch of {n} does not fit a cache of {table.count} cells")
            window, lists = Window(0, table.count), largest_lists(len(self.lengths), table.count)
            step.placed[self] = Placed(np.arange(n), window, None, lists=lists)
            return
        placed = Placed(np.arange(0), Window(0, 0), None)
        placed.lengths, placed.allocations = self.lengths.copy(), table.allocations
        step.placed[self] = placed  # from here on `undo` takes back what is written
        try:
            placed.cells = self._find(step, placed.evicted)
            self._write(step, placed.cells)
            padding = self._masks.padding
            placed.window = Window(0, table.count)
            if self.rule.relative or not self._ordered:
                placed.window = window_of(step.sequences, table, padding)
            if self._ordered:
                placed.order = order_of(self.rule, table, step, placed.window.begin)
                placed.lists = placed.order.lists(n)
            else:
                look(self.rule, table, self._masks, step, placed)
            if self.rule.relative:  # a copy: the cache may change before it is read
                placed.positions = range_of(table, placed.window.begin, placed.window.size)[
                    0
                ].copy()
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
        begin = placed.window.begin
        if placed.order is not None:
            seen = [self.rule.sees_from(p) if self.rule.bounded else 0 for p in positions]
            if not placed.order.advance([cell - begin for cell in cells], seen, positions):
                return False
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
                self.table.write_one(cell, sequences[i], positions[i])
                self.lengths[sequences[i]] = positions[i] + 1
                if placed.positions is not None:
                    placed.positions[cell - begin] = positions[i]
                if placed.order is not None:
                    continue
                assert isinstance(placed.mask, np.ndarray)
                mask = placed.mask[i]
                if unseen is not None:
                    mask[unseen - begin] = -np.inf
                mask[cell - begin] = 0
                if self.rule.max_bias:
                    held = self.table.position[begin : begin + len(mask)]
                    mask[:] = distances(mask == -np.inf, held, positions[i])
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

    def shape_key(self, step: Step) -> Hashable:
        placed: Placed = step.placed[self]
        return placed.window if placed.order is None else (placed.window, placed.lists)

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
        if self._allocates:  # else rows of all sequences read one range, which would grow
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

    def save(self, sequence: int, begin: int = 0, end: int | None = None) -> Saved | None:
        """The part has positions and groups, int32 [cells], then keys and values, uint8 [cells,
        bytes], of all layers."""
        if self.stored.permuted_v:
            return None
        end = self.length(sequence) if end is None else end
        at, mine = self.table.position, self.table.member[sequence]
        cells = np.flatnonzero(mine & (at >= begin) & (at < end))
        position, group = at[cells], self.table.group[cells]
        first = max(begin, *self.needs_from(end))
        if np.count_nonzero(position >= first) < end - first:
            return Saved(end, [None])
        return Saved(end, [[position, group, *self.stored.save(cells)]])

    def restore(self, sequence: int, saved: Saved) -> None:
        self.remove(sequence, 0, None)
        (part,) = saved.parts
        assert part is not None
        position, group, *stored = part
        needed = position >= max(0, self.rule.keeps_from(saved.length))
        if not needed.all():
            position, group, *stored = (array[needed] for array in part)
        rows = np.full(len(position), sequence, np.int32)
        cells = self.table.find(rows)
        if len(cells) < len(rows):
            raise KvCacheFull(f"{len(rows)} saved cells need as many free ones, not {len(cells)}")
        self.stored.restore(cells, stored)
        if len(cells):
            self.table.write(cells, rows, position, group)
        self.lengths[sequence] = saved.length

    def needs_from(self, length: int) -> tuple[int]:
        return (max(0, self.rule.sees_from(length)),)

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


def _following(
    rule: Rule, table: Cells, step: Step, placed: Placed
) -> tuple[Sequence[int], Sequence[int | None]] | None:
    """The cells of the next tokens of a computed step, and for each token the cell to mask that
    the token before it saw. A cell in use is taken over from the same sequence. None if finding
    cells takes more than that."""
    sequences, bounded = step.sequences.tolist(), rule.bounded
    end, latest = table.end, placed.cells.tolist()
    # Without allocations: if the latest cells are not the last ones there may be holes, which are
    # filled first.
    in_a_row = latest[0] + len(latest) == end == latest[-1] + 1
    if not (table.expected or bounded or in_a_row):
        return None
    cells, hidden = list[int](), list[int | None]()
    first = placed.window.begin
    last = first + placed.window.size
    for i, position in enumerate(step.positions.tolist()):
        cell, unseen = None, None
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
