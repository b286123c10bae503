"""Attention of a tower: positions in two dims, and rows that see only those of their own block."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from ...ml import Tensor
from ..rope import Rope


@dataclass(frozen=True)
class Rope2D:
    """Rotates the first half of a head by one position and the second by another. Pairs are
    neighbours, as ggml's norm type has them.

    Attributes:
        dims: elements of a head.
        base: of the frequencies.
        scale: factor on the second positions.
    """

    dims: int
    base: float = 10000.0
    scale: float = 1.0

    def __call__(self, x: Tensor, first: Tensor, second: Tensor) -> Tensor:
        """x [dims, heads, n, …] rotated by positions I32 [n]."""
        half = self.dims // 2
        a, b = x.chunk(0, half)
        rotated = Rope(half, self.base)(a, first)
        return rotated.concat(Rope(half, self.base, self.scale)(b, second), 0)


def attention_in_blocks(
    q: Tensor, k: Tensor, v: Tensor, lengths: Sequence[int], scale: float, frames: int = 1
) -> Tensor:
    """softmax(scale · K·q) · V for each head, in which a row sees only the rows of its own block.
    It needs no mask, and as much time and memory as the blocks do alone.

    Args:
        q, k, v: [head dim, heads, n].
        lengths: of the blocks of one frame, whose rows follow one another; their sum is n / frames.
            Blocks of equal length that are neighbours are computed together, in all frames.
        frames: parts of n with such blocks each; their number adds no ops.

    Returns:
        [head dim, heads, n] F32.
    """
    found, start, rows = [], 0, sum(lengths)
    whole = [x.reshape(x.dim(0), x.dim(1), rows, frames) for x in (q, k, v)]
    for length, equal in groupby(lengths):
        stop = start + length * len(list(equal))
        query, key, value = (
            x.slice(2, start, stop).reshape(x.dim(0), x.dim(1), length, -1) for x in whole
        )
        y = query.scaled_dot_product_attention(key, value, scale=scale)
        found.append(y.reshape(v.dim(0), q.dim(1), stop - start, frames))
        start = stop
    y = found[0] if len(found) == 1 else found[0].stack(2, *found[1:])
    return y.reshape(v.dim(0), q.dim(1), rows * frames)


def vision_windows(rows: int, columns: int, side: int) -> tuple[NDArray[np.int32], list[int]]:
    """A grid of cells cut into windows of at most side × side cells from the top left corner on.

    Returns:
        the cells in the order of the windows, int32 [rows · columns], counted row by row, and the
        length of each window, for `attention_in_blocks`. Windows of equal length are neighbours.
    """
    cells = np.arange(rows * columns, dtype=np.int32).reshape(rows, columns)
    found = [
        cells[top : top + side, left : left + side].ravel()
        for top in range(0, rows, side)
        for left in range(0, columns, side)
    ]
    found.sort(key=len, reverse=True)
    return np.concatenate(found), [len(window) for window in found]
