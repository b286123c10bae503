"""Cells of a KV cache: their allocation, the windows that attention reads, and its masks.

Attention reads one range of cells and costs as much as that range is long. So the cells of a
sequence should lie together. A sequence that is expected to grow has an allocation: cells that stay
free for it as long as others find cells elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from ..errors import OutOfMemory
from ..ml import CacheConfig, DType
from ..ml.node import Rows

_FEW = 32


class Masks:
    """Makes masks of the backend's dtype, for ranges of cells and numbers of rows that are
    multiples of its paddings.

    Attributes:
        whole: masks of up to so many rows are made at once, larger ones as they are written.
    """

    def __init__(self, config: CacheConfig, whole: int = 0):
        self.padding, self._row_padding = config.padding, config.mask_batch_padding
        self.whole = max(_FEW, whole)
        half = config.mask_dtype is DType.F16
        self._bits, self._dtype = (np.uint16, np.float16) if half else (np.uint32, np.float32)
        self._hidden = np.array(-np.inf, self._dtype).view(self._bits)

    def padded(self, n: int) -> int:
        """The size of the range for n cells: the next multiple of the padding."""
        return round_up(n, self.padding)

    def rows(self, n: int) -> int:
        """The rows of a mask for n tokens."""
        return round_up(n, self._row_padding)

    def by_rows(self, n: int, size: int, view: Callable[[slice], np.ndarray]) -> np.ndarray | Rows:
        """`of` for a mask of n tokens, [rows, size].

        Args:
            view: a slice of tokens → what they see, as `of` takes it; it is overwritten.
        """
        if n <= self.whole:
            return self.of(view(slice(n)))
        total = self.rows(n)

        def make(rows: slice) -> np.ndarray:
            begin, end = min(rows.start, n), min(rows.stop, n)
            return self._of(view(slice(begin, end)), min(rows.stop, total) - rows.start)

        return Rows((total, size), self._dtype, make)

    def of(self, visible: np.ndarray) -> np.ndarray:
        """0 where `visible`, bool [n, range], is true, −inf elsewhere: [rows, range]. `visible` is
        overwritten. Numbers, float32 [n, range], stay as they are."""
        return self._of(visible, self.rows(len(visible)))

    def _of(self, visible: np.ndarray, rows: int) -> np.ndarray:
        if rows > len(visible):
            unseen = False if visible.dtype == bool else -np.inf
            more = np.full((rows - len(visible), visible.shape[1]), unseen, visible.dtype)
            visible = np.concatenate([visible, more])
        if visible.dtype != bool:
            return visible.astype(self._dtype)
        # Integer arithmetic takes a third of the time of np.where or indexing.
        mask = np.logical_not(visible, out=visible).astype(self._bits)
        mask *= self._hidden
        return mask.view(self._dtype)


def round_up(n: int, multiple: int) -> int:
    """The lowest multiple that is at least n."""
    return -(-n // multiple) * multiple


_NONE = 0, 0


class Cells:
    """The table of a cache's cells.

    Attributes:
        count: number of cells.
        position: int32 [count], −1 if the cell is free.
        group: int32 [count], see `Step.groups`; meaningless for free cells.
        member: bool [sequences, count], whether a sequence remembers a cell.
        end: the last cell in use + 1.
        touched: the last cell used since all free ones were cleared + 1.
        expected: sequence → how many cells it will probably need; only for those known to grow.
        allocations: sequence → begin and end of its allocation.
    """

    def __init__(self, count: int, sequences: int, padding: int):
        self.count, self._padding = count, padding
        try:
            self.position = np.full(count, -1, np.int32)
            self.group = np.zeros(count, np.int32)
            self.member = np.zeros((sequences, count), bool)
        except (MemoryError, ValueError):
            raise OutOfMemory(
                f"a cache of {count:,} cells for {sequences:,} sequences does not fit "
                "in memory; a smaller context_length or parallel needs less"
            ) from None
        self.end = self.touched = 0
        self.expected: dict[int, int] = {}
        self.allocations: dict[int, tuple[int, int]] = {}

    # what lies where

    def held(self, sequence: int) -> tuple[int, int]:
        """The first cell that a sequence remembers, and the last + 1; (0, 0) if there is none."""
        mine = self.member[sequence, : self.end].tobytes()
        return (max(mine.find(1), 0), mine.rfind(1) + 1)

    def at(self, sequence: int, position: int, begin: int, end: int) -> int | None:
        """The cell from begin to end that holds a position of a sequence; None if there is none."""
        if position < 0:
            return None
        cells = np.flatnonzero(self.position[begin:end] == position) + begin
        return next((cell for cell in cells.tolist() if self.member[sequence, cell]), None)

    # changes

    def write(
        self, cells: np.ndarray, sequences: np.ndarray, positions: np.ndarray, groups: np.ndarray
    ) -> None:
        """Stores positions of sequences, and their groups, in cells; all int [n]."""
        self.position[cells] = positions
        self.group[cells] = groups
        self.member[sequences, cells] = True
        self.end = max(self.end, int(cells.max()) + 1)
        self.touched = max(self.touched, self.end)

    def write_one(self, cell: int, sequence: int, position: int) -> None:
        """`write` of a single position; faster than numpy for few."""
        self.position[cell], self.group[cell] = position, 0
        self.member[sequence, cell] = True
        self.end = max(self.end, cell + 1)
        self.touched = max(self.touched, self.end)

    def empty(self, cells: np.ndarray) -> None:
        """Frees cells, int64 [n], whoever remembers them. Call `find_end` afterwards."""
        self.position[cells] = -1
        self.member[:, cells] = False

    def forget(self, sequence: int, cells: np.ndarray) -> None:
        """Makes a sequence forget cells, int64 [n]."""
        if not len(cells):
            return
        free = cells[self.member[:, cells].sum(axis=0) == 1]
        self.member[sequence, cells] = False
        self.position[free] = -1  # no call in between: Ctrl-C there would leak these cells
        self.find_end()

    def find_end(self) -> None:
        """Sets `end` after cells became free."""
        if self.end and self.position[self.end - 1] < 0:
            used = np.flatnonzero(self.position[: self.end] >= 0)
            self.end = int(used[-1]) + 1 if used.size else 0

    def untidy(self) -> np.ndarray:
        """The free cells that were used, int64 [n]; they count as cleared from now on."""
        cells = np.flatnonzero(self.position[: self.touched] < 0)
        self.touched = self.end
        return cells

    def allocate(self, sequence: int, cells: int) -> None:
        """Notes how many cells a sequence will need in all: its next ones get an allocation. 0 ends
        it."""
        self.allocations = {s: held for s, held in self.allocations.items() if s != sequence}
        self.expected.pop(sequence, None)
        if cells:
            self.expected[sequence] = cells

    # where new tokens go

    def find(self, sequences: np.ndarray) -> np.ndarray:
        """Free cells for rows of these sequences int32 [n]: int64 [n], or fewer if fewer are free.

        Cells of its allocation for a sequence that has one; else the lowest outside of allocations,
        within only if there are no others.
        """
        if not self.expected:
            return self._lowest(self.position[: self.end] < 0, len(sequences))
        cells = np.full(len(sequences), -1, np.int64)
        for sequence in dict.fromkeys(sequences.tolist()):
            if sequence in self.expected:
                rows = np.flatnonzero(sequences == sequence)
                mine = self._allocated(sequence, len(rows))
                cells[rows[: len(mine)]] = mine
        rest = np.flatnonzero(cells < 0)
        if len(rest):
            free = self.position < 0
            free[cells[cells >= 0]] = False
            lowest = self._lowest(self._open(free), len(rest))
            if len(lowest) < len(rest):
                free[lowest] = False
                lowest = np.concatenate([lowest, self._lowest(free, len(rest) - len(lowest))])
            cells[rest[: len(lowest)]] = lowest
        return cells[cells >= 0]

    def _lowest(self, free: np.ndarray, n: int) -> np.ndarray:
        """The n lowest of the cells that are `free`, bool [any]; cells behind these are free."""
        holes = np.flatnonzero(free)[:n]
        more = np.arange(len(free), min(self.count, len(free) + n - len(holes)))
        return np.concatenate([holes, more]) if len(holes) else more

    def _open(self, free: np.ndarray, sequence: int | None = None) -> np.ndarray:
        """The `free` cells, bool [count], outside of the allocations of other sequences."""
        free = free.copy()
        for other, (begin, end) in self.allocations.items():
            if other != sequence:
                free[begin:end] = False
        return free

    def _allocated(self, sequence: int, n: int) -> np.ndarray:
        """The n lowest free cells of a sequence's allocation, which is moved if it has too few."""
        for again in (True, False):
            begin, end = self.allocations.get(sequence, _NONE)
            cells = np.flatnonzero(self.position[begin:end] < 0)[:n] + begin
            if again and len(cells) < n:
                self._move_allocation(sequence, n)
        return cells

    def _move_allocation(self, sequence: int, n: int) -> None:
        """Allocates a sequence the cells that it will need, at least n of them: near to those
        that it holds, or as low as possible. If no range is so large, the largest."""
        edges = np.diff(self._open(self.position < 0, sequence), prepend=False, append=False)
        begins, ends = np.flatnonzero(edges).reshape(-1, 2).T
        # A step that is taken back brings the allocations before it back: they stay as they are.
        others = {s: held for s, held in self.allocations.items() if s != sequence}
        if not len(begins):
            self.allocations = others
            return
        held = int(self.member[sequence].sum())
        size = max(n, self.expected[sequence] - held)
        if self.expected[sequence] - held < n and held:  # it grows on
            size += self._padding
        if held:
            low, high = self.held(sequence)
            before = ends <= low
            places = np.where(before, np.maximum(begins, ends - size), begins)
            farther = np.where(before, low - places, places + size - high)
        else:
            size = round_up(size, max(1, self._padding // 8))  # equal requests, equal distances
            places = farther = self._padded(begins, size)
        fits = places + size <= ends
        if fits.any():
            begin = int(places[np.flatnonzero(fits)[farther[fits].argmin()]])
            mine = begin, begin + size
        else:
            best = (ends - begins).argmax()
            mine = int(begins[best]), int(ends[best])
        self.allocations = {**others, sequence: mine}

    def _padded(self, begins: np.ndarray, size: int) -> np.ndarray:
        """Where ranges of the wanted size begin so that they touch no more blocks of the padding
        than need be."""
        up = -(-begins // self._padding) * self._padding
        return np.where(begins % self._padding + size > round_up(size, self._padding), up, begins)

    def free_next(self, cell: int, sequence: int) -> bool:
        """Whether a cell is free, and a sequence may take it without a new allocation."""
        begin, end = self.allocations.get(sequence, _NONE)
        return begin <= cell < end and self.position[cell] < 0


class Window(NamedTuple):
    """The cells that a step reads.

    Attributes:
        begin: the first one, a multiple of the backend's padding.
        size: how many, a multiple of the padding.
    """

    begin: int
    size: int


def window_of(sequences: np.ndarray, cells: Cells, padding: int) -> Window:
    """The window for rows of these sequences, int32 [n], whose cells are written."""
    begins, ends = zip(*(cells.held(s) for s in set(sequences.tolist())), strict=True)
    return around(min(begins), max(ends), padding)


def around(begin: int, end: int, padding: int) -> Window:
    """The smallest window with the cells from begin to end."""
    begin = begin // padding * padding
    return Window(begin, round_up(end - begin, padding))


def number_of_windows(ranges: int, moves: bool) -> int:
    """How many windows there may be.

    Args:
        ranges: cells of the cache in multiples of the padding.
        moves: windows may begin behind the first cell.
    """
    return ranges * (ranges + 1) // 2 if moves else ranges
