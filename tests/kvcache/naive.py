"""A causal cache written again without cells, masks or numpy tricks."""

from __future__ import annotations

import numpy as np

from ggmodel.kvcache import CausalCache
from ggmodel.model import Step


def step(*tokens: tuple[int, int]) -> Step:
    """A batch of (sequence, position)."""
    sequences = np.array([s for s, _ in tokens], np.int32)
    positions = np.array([p for _, p in tokens], np.int32)
    return Step(np.zeros(len(tokens), np.int32), positions, sequences, np.zeros(0, np.int32))


def run(sequence: int, begin: int, end: int) -> Step:
    """A batch of one sequence's positions begin to end."""
    return step(*((sequence, p) for p in range(begin, end)))


class Naive:
    """Each sequence is a list of (cell, position)."""

    def __init__(self, sequences: int, cells: int):
        self.cells = cells
        self.lists: list[list[tuple[int, int]]] = [[] for _ in range(sequences)]

    def used(self) -> set[int]:
        return {cell for entries in self.lists for cell, _ in entries}

    def put(self, batch: list[tuple[int, int]]) -> list[int] | None:
        """The cells of the batch, the lowest that are free; None when there are too few."""
        free = [c for c in range(self.cells) if c not in self.used()][: len(batch)]
        if len(free) < len(batch):
            return None
        for (sequence, position), cell in zip(batch, free, strict=True):
            self.lists[sequence].append((cell, position))
        return free

    def visible(self, sequence: int, position: int) -> set[int]:
        return {cell for cell, p in self.lists[sequence] if p <= position}

    def copy_prefix(self, source: int, target: int, n: int) -> None:
        self.lists[target] = [(c, p) for c, p in self.lists[source] if p < n]

    def remove(self, sequence: int, begin: int, end: int | None) -> bool:
        """Whether it can be done: what moves may be in no other list."""
        if end is None:
            end = 1 << 30
        if end <= begin:
            return True
        moving = {c for c, p in self.lists[sequence] if p >= end}
        others = {c for i, entries in enumerate(self.lists) if i != sequence for c, _ in entries}
        if moving & others:
            return False
        self.lists[sequence] = [
            (c, p if p < begin else p - (end - begin))
            for c, p in self.lists[sequence]
            if not begin <= p < end
        ]
        return True

    def length(self, sequence: int) -> int:
        return max((p + 1 for _, p in self.lists[sequence]), default=0)

    def can_resume(self, sequence: int, position: int) -> bool:
        return {p for _, p in self.lists[sequence] if p < position} == set(range(position))


def seen(cache: CausalCache, batch: Step) -> list[set[int]]:
    """For each row of the mask the cells it lets through; every value is 0 or −inf."""
    placed = batch.placed[cache]
    assert placed.mask.shape == (len(batch.positions), placed.window.size)
    assert ((placed.mask == 0) | (placed.mask == -np.inf)).all()
    return [set((np.flatnonzero(row == 0) + placed.window.begin).tolist()) for row in placed.mask]
