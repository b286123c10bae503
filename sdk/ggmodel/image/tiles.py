"""Cuts pictures into tiles for Llama 3.2 Vision and Llama 4.

Sizes are (width, height), as in Pillow; grids are (rows, columns).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

Size = tuple[int, int]


def tile_grids(most: int) -> list[tuple[int, int]]:
    """All grids of at most `most` tiles, by rows, then columns: (1, 1), (1, 2), …, (`most`, 1)."""
    return [(r, c) for r in range(1, most + 1) for c in range(1, most + 1) if r * c <= most]


def best_canvas(size: Size, canvases: Sequence[Size]) -> Size:
    """The canvas that a picture of `size` fills best without distortion.

    It needs the least enlargement, or the least reduction where no canvas is large enough. The
    smallest canvas wins a tie.
    """
    scales = [min(width / size[0], height / size[1]) for width, height in canvases]
    enough = [scale for scale in scales if scale >= 1]
    best = min(enough) if enough else max(scales)
    chosen = [canvas for canvas, scale in zip(canvases, scales, strict=True) if scale == best]
    return min(chosen, key=lambda canvas: canvas[0] * canvas[1])


def fit(size: Size, limit: Size, single: bool = False) -> Size:
    """The largest size of the same proportions, rounded down, within `limit`; at least 1 × 1.

    Args:
        single: use float32 where `limit` is smaller, as Llama 4's processor does; at times this
            moves a side by one pixel.
    """
    number = [np.float32 if single and limit[n] < size[n] else np.float64 for n in (0, 1)]
    across, down = (number[n](limit[n]) / number[n](size[n]) for n in (0, 1))
    if across < down:
        return limit[0], max(1, min(math.floor(number[0](size[1]) * across), limit[1]))
    return max(1, min(math.floor(number[1](size[0]) * down), limit[0])), limit[1]


def split_tiles(pixels: NDArray[Any], rows: int, columns: int) -> NDArray[Any]:
    """Cuts [3, H, W] into [rows · columns, 3, H / rows, W / columns], row by row."""
    channels, height, width = pixels.shape
    grid = pixels.reshape(channels, rows, height // rows, columns, width // columns)
    tiles = grid.transpose(1, 3, 0, 2, 4)
    return np.ascontiguousarray(tiles.reshape(rows * columns, *tiles.shape[2:]))
