"""The cells that attention reads for a step: one range for all rows, or one for each sequence."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from ..ml import Part
from .cells import Cells
from .masks import round_up

# Costs of attention on a CPU, in looks at a masked cell by one row. A cell's values are converted
# once for all rows, which takes four times as long (F16, heads of 64, AVX2 and AVX-512). An op of
# its own takes as long as some hundred looks, and a change of the parts a new graph.
_CONVERSION, _OP, _GRAPH = 4, 512, 2048


class Window(NamedTuple):
    """The cells that a step reads.

    Attributes:
        begin: the first one, a multiple of the backend's padding.
        size: how many, a multiple of the padding.
        parts: the cells of each sequence's rows, counted from `begin`; empty if all rows read all.
    """

    begin: int
    size: int
    parts: tuple[Part, ...] = ()

    def mask_shape(self, tokens: int) -> tuple[int, ...]:
        """The shape of the mask of a step."""
        if self.parts:
            return (sum(part.rows * part.cells for part in self.parts),)
        return self.size, tokens


def window_of(sequences: np.ndarray, cells: Cells, padding: int, apart: bool) -> Window:
    """The window for rows of these sequences, int32 [n], whose cells are written.

    Args:
        apart: the backend computes attention part by part.
    """
    held = {s: cells.held(s) for s in dict.fromkeys(sequences.tolist())}
    whole = around(*_of(held.values()), padding)
    if not apart or len(held) == 1:
        return whole
    starts = [0, *(np.flatnonzero(np.diff(sequences)) + 1).tolist()]
    if len(starts) > len(held):  # rows of a sequence are not together
        return whole
    parts = []
    for row, after in zip(starts, [*starts[1:], len(sequences)], strict=True):
        sequence = int(sequences[row])
        begin, end = _stable(*held[sequence], cells.rooms.get(sequence, (0, 0))[1], padding)
        parts.append(Part(row, after - row, begin, min(end, cells.count) - begin))
    cost = whole.size * (_CONVERSION + len(sequences))
    cost_apart = sum(part.cells * (_CONVERSION + part.rows) + _OP for part in parts) + _GRAPH
    if cost_apart >= cost:
        return whole
    all_parts = around(*_of((p.begin, p.begin + p.cells) for p in parts), padding)
    counted = tuple(p._replace(begin=p.begin - all_parts.begin) for p in parts)
    return Window(all_parts.begin, all_parts.size, counted)


def _stable(begin: int, end: int, room_end: int, padding: int) -> tuple[int, int]:
    """A range around a sequence's cells that serves its next ones too, so that its graph does."""
    fine = max(1, padding // 8)
    begin = begin // fine * fine
    padded = begin + round_up(end - begin, padding)
    return begin, min(padded, round_up(room_end, fine)) if end <= room_end else padded


def _of(ranges: Iterable[tuple[int, int]]) -> tuple[int, int]:
    begins, ends = zip(*ranges, strict=True)
    return min(begins), max(ends)


def around(begin: int, end: int, padding: int) -> Window:
    """The smallest window with the cells from begin to end."""
    begin = begin // padding * padding
    return Window(begin, round_up(end - begin, padding))


def number_of_windows(ranges: int, moves: bool) -> int:
    """How many windows without parts there may be.

    Args:
        ranges: cells of the cache in multiples of the padding.
        moves: windows may begin behind the first cell.
    """
    return ranges * (ranges + 1) // 2 if moves else ranges
