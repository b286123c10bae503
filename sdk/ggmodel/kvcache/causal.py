"""The causal cache: every position sees itself and earlier ones of its sequence.

A cell holds one position and may be shared by several sequences. The cells of a step (row indices)
and its mask are data: one graph serves all steps that read the same window of cells.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np

from ..errors import Error, KvCacheFull
from ..ml import Backend, Context, DType
from ..model.batch import Step
from ..model.cache import Cache, LayerMemory, Size
from .causal_step import Evicted, Placed, Rule, following, look
from .cells import Cells, Masks, Window, number_of_windows, window_of
from .layer import Feeds, LayerCache, SharedLayer, Stored


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
        self._apart = config.parts and config.mask_batch_padding == 1
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
        placed.lengths, placed.rooms = self.lengths.copy(), table.rooms
        step.placed[self] = placed  # from here on `undo` takes back what is written
        try:
            placed.cells = self._room(step, placed.evicted)
            self._write(step, placed.cells)
            padding = self._masks.padding
            placed.window = window_of(step.sequences, table, padding, self._apart)
            look(self.rule, table, self._masks, step, placed)
        except BaseException:  # Ctrl-C included
            self.undo(step)
            raise
        self._state += 1
        placed.state = self._state

    def advance(self, step: Step) -> bool:
        placed: Placed | None = step.placed.get(self)
        if placed is None or placed.state != self._state or step.groups is not None:
            return False
        found = following(self.rule, self.table, step, placed)
        if found is None:
            return False
        cells, hidden = found
        sequences, positions = step.sequences.tolist(), step.positions.tolist()
        taken_over = [
            (s, c) for s, c in zip(sequences, cells, strict=True) if self.table.position[c] >= 0
        ]
        evicted = [self._evicted(sequence, np.array([cell])) for sequence, cell in taken_over]
        before, rooms = self.lengths.copy(), self.table.rooms
        step.placed[self] = replace(
            placed, cells=np.array(cells), evicted=evicted, lengths=before, rooms=rooms
        )
        try:
            # As `_write`, but a Python loop: for few tokens it is faster than numpy.
            for i, (cell, unseen) in enumerate(zip(cells, hidden, strict=True)):
                mask, first = placed.row(i)
                if unseen is not None:
                    mask[unseen - first] = -np.inf
                mask[cell - first] = 0
                self.table.write_one(cell, sequences[i], positions[i])
                self.lengths[sequences[i]] = positions[i] + 1
        except BaseException:  # Ctrl-C included
            self.undo(step)
            raise
        return True

    def _evicted(self, sequence: int, cells: np.ndarray) -> Evicted:
        return Evicted(sequence, cells, self.table.position[cells], self.table.group[cells])

    def _room(self, step: Step, evicted: list[Evicted]) -> np.ndarray:
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
        self.lengths, self.table.rooms = placed.lengths, placed.rooms
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
        feeds = Feeds(self.stored, ctx, self, step)
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

    def expect(self, sequence: int, length: int) -> None:
        if not self._apart:  # rows of several sequences read one range: it is shortest without room
            return
        if self.rule.span is not None:  # and what a batch adds before the oldest are given up
            length = min(length, self.rule.span + self.max_batch)
        self.table.expect(sequence, length)

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
