"""The causal cache: every position sees itself and earlier ones of its sequence.

A cell holds one position and may be shared by several sequences. The cells of a step (row indices)
and its mask are data: one graph serves all steps with the same range of cells.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from ..errors import Error, KvCacheFull, OutOfMemory
from ..ml import Backend, Context, DType
from ..ml.storage import Rows
from ..model.batch import Step
from ..model.cache import Cache, Size
from .layer import Feeds, LayerCache, Stored
from .masks import Masks

if TYPE_CHECKING:
    from .specs import Positions


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
        range: attention reads cells 0 to range.
        mask: [n, range] of the backend's mask dtype, 0 or −inf, whole if the step may be advanced;
            None when only reserving.
        evicted: the cells that were given up to make room.
        lengths: int32 [sequences], before the step.
        state: the cache's `_state` right after the step was placed.
    """

    cells: np.ndarray
    range: int
    mask: np.ndarray | Rows | None
    evicted: list[Evicted] = field(default_factory=list)
    lengths: np.ndarray | None = None
    state: int = -1


class CausalCache(Cache):
    """Keys and values of layers that see the same positions.

    Args:
        rule: says which positions are seen and kept.
        layers: layer number → its declaration; all are of one kind.

    Attributes:
        cells: number of cells.
        position: int32 [cells], −1 if the cell is free.
        member: bool [sequences, cells], whether a sequence remembers a cell.
        group: int32 [cells], see `Step.groups`; meaningless for free cells.
        lengths: kept even if all cells of a sequence are given up.
    """

    advances = True

    def __init__(
        self,
        backend: Backend,
        rule: Positions,
        layers: Mapping[int, Positions],
        dtype: DType,
        size: Size,
    ):
        self.rule, self._masks = rule, Masks(backend.cache_config, whole=size.sequences)
        cells = size.sequences * size.capacity
        if rule.span is not None:
            cells = min(cells, size.sequences * rule.span + size.max_batch)
        self.cells = self._masks.padded(cells)
        self.max_batch = min(size.max_batch, self.cells)
        self.ranges = self.cells // self._masks.padding
        ropes = {layer: spec.rope for layer, spec in layers.items()}
        self.stored = Stored(backend, ropes, dtype, self.cells, self.max_batch)
        try:
            self.position = np.full(self.cells, -1, np.int32)
            self.group = np.zeros(self.cells, np.int32)
            self.member = np.zeros((size.sequences, self.cells), bool)
            self.lengths = np.zeros(size.sequences, np.int32)
        except (MemoryError, ValueError):
            raise OutOfMemory(
                f"a cache of {self.cells:,} cells for {size.sequences:,} sequences does not fit "
                "in memory; a smaller context_length or parallel needs less"
            ) from None
        self._state = 0  # changes with every change of the cache
        self._end = 0  # the last cell in use + 1
        self._touched = 0  # the last cell used since all free ones were cleared + 1

    # a step

    def start_forward(self, step: Step, reserve: bool = False) -> None:
        n = len(step.positions)
        if reserve:
            if n > self.cells:
                raise KvCacheFull(f"a batch of {n} does not fit a cache of {self.cells} cells")
            step.placed[self] = Placed(np.arange(n), self.cells, None)
            return
        placed = Placed(np.arange(0), 0, None, [], self.lengths.copy())
        step.placed[self] = placed  # from here on `undo` takes back what is written
        try:
            placed.cells = self._room(step, placed.evicted)
            self._write(step, placed.cells)
            placed.range = self._masks.padded(self._end)
            placed.mask = self._masked(step, placed.cells, placed.range)
        except BaseException:  # Ctrl-C included
            self.undo(step)
            raise
        self._state += 1
        placed.state = self._state

    def advance(self, step: Step) -> bool:
        placed: Placed | None = step.placed.get(self)
        if placed is None or placed.state != self._state or step.groups is not None:
            return False
        found = self._following(step, placed)
        if found is None:
            return False
        cells, hidden = found
        mask, end = placed.mask, self._end
        assert isinstance(mask, np.ndarray)
        sequences, positions = step.sequences.tolist(), step.positions.tolist()
        taken_over = [(s, c) for s, c in zip(sequences, cells, strict=True) if c < end]
        evicted = [self._evicted(sequence, np.array([cell])) for sequence, cell in taken_over]
        at, before = np.array(cells), self.lengths.copy()
        step.placed[self] = Placed(at, placed.range, mask, evicted, before, placed.state)
        try:
            # As `_write`, but a Python loop: for few tokens it is faster than numpy.
            for i, (cell, unseen) in enumerate(zip(cells, hidden, strict=True)):
                if unseen is not None:
                    mask[i, unseen] = -np.inf
                mask[i, cell] = 0
                self.position[cell] = position = positions[i]
                self.group[cell] = 0
                self.member[sequences[i], cell] = True
                self.lengths[sequences[i]] = position + 1
            self._end = max(end, max(cells) + 1)
            self._touched = max(self._touched, self._end)
        except BaseException:  # Ctrl-C included
            self.undo(step)
            raise
        return True

    def _following(
        self, step: Step, placed: Placed
    ) -> tuple[Sequence[int], Sequence[int | None]] | None:
        """The cells of the next tokens of a computed step, and for each token the cell to mask that
        the token before it saw. A cell before the end is taken over from the same sequence. None if
        finding cells takes more than that."""
        n, end = len(step.positions), self._end
        if not self.rule.bounded:
            # If the latest cells are not the last ones there may be holes, which are filled first.
            in_a_row = placed.cells.item(0) + n == end == placed.cells.item(-1) + 1
            fits = in_a_row and end + n <= placed.range
            return (range(end, end + n), [None] * n) if fits else None
        cells, hidden = list[int](), list[int | None]()
        for i, position in enumerate(step.positions.tolist()):
            given_up = _lost(self.rule.keeps_from, position)
            unseen = _lost(self.rule.sees_from, position)
            if given_up is None or unseen is None:
                return None
            sequence = step.sequences[i]
            cell = self._cell_of(sequence, given_up)
            hidden.append(cell if unseen == given_up else self._cell_of(sequence, unseen))
            if cell is None:
                cell, end = end, end + 1
            elif self.member[:, cell].sum() > 1:
                return None
            cells.append(cell)
        return (cells, hidden) if end <= placed.range else None

    def _cell_of(self, sequence: int, position: int) -> int | None:
        """The cell that holds a position of a sequence; None if there is none."""
        if position < 0:
            return None
        found = np.flatnonzero(self.position[: self._end] == position).tolist()
        return next((cell for cell in found if self.member[sequence, cell]), None)

    def _evicted(self, sequence: int, cells: np.ndarray) -> Evicted:
        return Evicted(sequence, cells, self.position[cells], self.group[cells])

    def _room(self, step: Step, evicted: list[Evicted]) -> np.ndarray:
        """Free cells for the step's tokens, int64 [n]; cells given up for them go to `evicted`."""
        n = len(step.positions)
        upcoming = dict(_upcoming(step)) if self.rule.bounded else {}
        for sequence, position in upcoming.items():
            self._evict(sequence, position, evicted)
        cells = self._lowest_free(n)
        if len(cells) < n and self.rule.bounded:
            for sequence in range(len(self.member)):
                if sequence not in upcoming:
                    self._evict(sequence, self.length(sequence), evicted)
            cells = self._lowest_free(n)
        if len(cells) < n:
            raise KvCacheFull(
                f"{n} tokens need as many free cells; {len(cells)} of {self.cells} are free"
            )
        return cells

    def _write(self, step: Step, cells: np.ndarray) -> None:
        self.position[cells] = step.positions
        self.group[cells] = 0 if step.groups is None else step.groups
        self.member[step.sequences, cells] = True
        np.maximum.at(self.lengths, step.sequences, step.positions + 1)
        self._end = max(self._end, int(cells[-1]) + 1)
        self._touched = max(self._touched, self._end)

    def undo(self, step: Step) -> None:
        placed: Placed | None = step.placed.pop(self, None)
        if placed is None or placed.lengths is None:
            return
        self._state += 1
        self.lengths = placed.lengths
        self.position[placed.cells] = -1
        self.member[:, placed.cells] = False
        if not step.begun:
            for e in placed.evicted:
                self.position[e.cells], self.group[e.cells] = e.position, e.group
                self.member[e.sequence, e.cells] = True
                self._end = max(self._end, int(e.cells[-1]) + 1)
        self._find_end()

    def _evict(self, sequence: int, position: int, evicted: list[Evicted]) -> None:
        """Makes a sequence forget the positions that it need not keep when `position` comes next;
        adds their cells to `evicted`."""
        limit = self.rule.keeps_from(position)
        if limit <= 0:
            return
        old = self.position[: self._end] < limit
        cells = np.flatnonzero(self.member[sequence, : self._end] & old)
        if cells.size:
            evicted.append(self._evicted(sequence, cells))
            self._forget(sequence, cells)

    def _masked(self, step: Step, cells: np.ndarray, size: int) -> np.ndarray | Rows:
        n, position, member = len(step.positions), self.position[:size], self.member[:, :size]
        if n > self._masks.whole:  # the cache may change before the mask is written
            position, member = position.copy(), member.copy()
        return self._masks.by_rows(
            n, size, lambda rows: self._seen(step, cells, rows, position, member)
        )

    def _seen(
        self, step: Step, cells: np.ndarray, rows: slice, position: np.ndarray, member: np.ndarray
    ) -> np.ndarray:
        """Which cells some rows of the step see, bool [rows, size].

        Args:
            position, member: the cache's at the time of the step, for cells 0 to size.
        """
        positions, sequences = step.positions[rows, None], step.sequences[rows]
        seen = position <= positions
        if step.groups is not None and step.groups.any():
            grouped = step.groups[rows, None]
            seen[:, cells] |= (grouped == step.groups) & (grouped > 0)
        # Groups look ahead, not further back (transformers, `create_masks_for_vision_model`).
        if self.rule.bounded:
            seen &= position >= self.rule.sees_from(positions)
        if len(sequences) == 1 or (sequences == sequences[0]).all():
            seen &= member[sequences[0]]
        else:
            seen &= member[sequences]
        return seen

    def shape_key(self, step: Step) -> int:
        return step.placed[self].range

    def layers(self, ctx: Context, step: Step) -> dict[int, LayerCache]:
        feeds = Feeds(self.stored, ctx, self, step)
        return {layer: LayerCache(self.stored, feeds, layer) for layer in self.stored.ropes}

    # sequences

    def can_resume(self, sequence: int, position: int) -> bool:
        """Whether every position that `position` would see is remembered. False between tokens of
        one group: its first tokens have seen its last ones."""
        if position > self.lengths[sequence]:
            return False
        mine = self.member[sequence, : self._end]
        at = self.position[: self._end]
        first = max(self.rule.sees_from(position), 0)
        if int((mine & (at >= first) & (at < position)).sum()) != position - first:
            return False
        before, after = (self.group[: self._end][mine & (at == position + i)] for i in (-1, 0))
        return not (before.size and after.size and 0 < before[0] == after[0])

    def copy_prefix(self, source: int, target: int, n: int) -> None:
        if source == target:
            self.remove(target, n, None)
            return
        self._state += 1
        self.remove(target, 0, None)
        self.member[target] = self.member[source] & (self.position < n)
        self.lengths[target] = min(n, self.length(source))

    def check_remove(self, sequence: int, begin: int, end: int | None) -> None:
        later = self._behind(sequence, begin, end)
        if self.member[:, later].sum() > len(later):
            raise Error(
                f"positions of sequence {sequence} cannot move: another sequence shares their "
                "cells; remove(sequence, 0, None) and compute it again"
            )

    def remove(self, sequence: int, begin: int, end: int | None) -> None:
        """Removal in the middle rotates the keys of the later positions, which move down. With a
        window, `can_resume` tells whether enough positions are left to continue.

        Raises:
            Error: cells to be moved are shared with another sequence; nothing has changed.
        """
        self.check_remove(sequence, begin, end)
        self._state += 1
        later = self._behind(sequence, begin, end)
        gone = self.member[sequence] & (self.position >= begin)
        if end is not None:
            gone &= self.position < end
            if len(later):
                self.stored.rotate(later, begin - end)
                self.position[later] += begin - end  # after the last call that can fail
        self._forget(sequence, np.flatnonzero(gone))
        self.shorten(sequence, begin, end)

    def _behind(self, sequence: int, begin: int, end: int | None) -> np.ndarray:
        """The cells that move if positions begin to end are removed, int64 [n]."""
        if end is None or end <= begin:
            return np.zeros(0, np.int64)
        return np.flatnonzero(self.member[sequence] & (self.position >= end))

    def wipe(self, sequence: int) -> None:
        self.remove(sequence, 0, None)
        # All free cells: the sequence may have given up some earlier.
        self.stored.clear(np.flatnonzero(self.position[: self._touched] < 0))
        self._touched = self._end

    def close(self) -> None:
        self.stored.close()

    def _forget(self, sequence: int, cells: np.ndarray) -> None:
        if not len(cells):
            return
        free = cells[self.member[:, cells].sum(axis=0) == 1]
        self.member[sequence, cells] = False
        self.position[free] = -1  # no call in between: Ctrl-C there would leak these cells
        self._find_end()

    def _find_end(self) -> None:
        """Sets `_end` to the last cell in use + 1."""
        if self._end and self.position[self._end - 1] < 0:
            used = np.flatnonzero(self.position[: self._end] >= 0)
            self._end = int(used[-1]) + 1 if used.size else 0

    def _lowest_free(self, n: int) -> np.ndarray:
        """The n lowest free cells, int64; fewer if fewer are free."""
        holes = np.flatnonzero(self.position[: self._end] < 0)[:n]
        more = np.arange(self._end, min(self.cells, self._end + n - len(holes)))
        return np.concatenate([holes, more]) if len(holes) else more


def _lost(first: Callable[[int], int], position: int) -> int | None:
    """The position that is out of range for `position` but not for the one before: −1 if there is
    none, None if there are several.

    Args:
        first: position → the first position in its range.
    """
    before, now = max(first(position - 1), 0), max(first(position), 0)
    return None if now > before + 1 else before if now > before else -1


def _upcoming(step: Step) -> Iterator[tuple[int, int]]:
    """Each sequence of the step with its lowest position."""
    if len(step.sequences) == 1:
        yield int(step.sequences[0]), int(step.positions[0])
        return
    for sequence in np.unique(step.sequences):
        yield int(sequence), int(step.positions[step.sequences == sequence].min())
