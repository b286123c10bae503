"""Orders: the cells that each row of a batch sees, by position.

An order takes the place of a mask where the backend's `CacheConfig` says `ordered`; `ORDER_ROW`
says what it holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ..ml.ops.mixing import ORDER_ROW

_FEWEST = 256
_SPARE = 64  # positions that a list of a growing sequence has space for


class Listed(NamedTuple):
    """Cells of one sequence.

    Attributes:
        cells: int64 [n], by position from `base` on; −1 where there is none.
        base: the position of the first.
    """

    cells: np.ndarray
    base: int


def by_position(cells: np.ndarray, positions: np.ndarray) -> Listed:
    """The list of cells int64 [n] that hold positions [n], each once, with space for more."""
    if not len(cells):
        return Listed(np.full(1, -1), 0)
    base = int(positions.min())
    listed = np.full(int(positions.max()) + 1 - base + _SPARE, -1)
    listed[positions - base] = cells
    return Listed(listed, base)


def lists_size(n: int) -> int:
    """The numbers of all lists in an order, for n of them: few sizes, so that few graphs serve."""
    return max(_FEWEST, 1 << (n - 1).bit_length())


def largest_lists(sequences: int, cells: int) -> int:
    """The most numbers of all lists in an order, of sequences that may each fill all cells."""
    return lists_size(sequences * (cells + _SPARE))


@dataclass(slots=True)
class Order:
    """An order of one step.

    Attributes:
        numbers: int32 [5·n + lists].
    """

    numbers: np.ndarray

    @classmethod
    def of(
        cls, lists: Sequence[Listed], which: np.ndarray, first: np.ndarray, end: np.ndarray
    ) -> Order:
        """
        Args:
            which: int [n], the number of each row's list.
            first, end: int [n], the positions that each row sees, from `first` to before `end`.
        """
        n, lengths = len(which), np.array([len(one.cells) for one in lists])
        starts = np.cumsum(lengths) - lengths
        numbers = np.zeros(ORDER_ROW * n + lists_size(int(lengths.sum())), np.int32)
        rows = numbers[: ORDER_ROW * n].reshape(n, ORDER_ROW)
        bases = np.array([one.base for one in lists])
        rows[:, 0], rows[:, 1], rows[:, 2] = starts[which], lengths[which], bases[which]
        rows[:, 3], rows[:, 4] = np.maximum(first, bases[which]), end
        at = ORDER_ROW * n
        for one in lists:
            numbers[at : at + len(one.cells)] = one.cells
            at += len(one.cells)
        return cls(numbers)

    def lists(self, n: int) -> int:
        """The numbers behind those of n rows."""
        return len(self.numbers) - ORDER_ROW * n

    def seen(self, n: int, row: int) -> np.ndarray:
        """The cells that one of n rows sees, by position: int32 [any]."""
        start, _, base, first, end = self.numbers[ORDER_ROW * row : ORDER_ROW * (row + 1)]
        begin = ORDER_ROW * n + start - base
        cells = self.numbers[begin + first : begin + max(first, end)]
        return cells[cells >= 0]

    def advance(self, cells: Sequence[int], first: Sequence[int], positions: Sequence[int]) -> bool:
        """Has each row, of a list of its own, see its sequence's next position, from `first` on.
        False where a list has no space for it, with nothing changed."""
        n = len(positions)
        rows = self.numbers[: ORDER_ROW * n].reshape(n, ORDER_ROW)
        starts, sizes, bases = rows[:, :3].T.tolist()
        if any(p - base >= size for p, base, size in zip(positions, bases, sizes, strict=True)):
            return False
        for i, position in enumerate(positions):
            rows[i, 3], rows[i, 4] = max(first[i], bases[i]), position + 1
            self.numbers[ORDER_ROW * n + starts[i] + position - bases[i]] = cells[i]
        return True
