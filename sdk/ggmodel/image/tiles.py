"""Sizes of pictures, tiles and patches.

Sizes are (width, height), as in Pillow; grids are (rows, columns).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..bounds import limits
from ..errors import ConfigError, ImageError
from ..reading import too_large

if TYPE_CHECKING:
    from numpy.typing import NDArray

Size = tuple[int, int]


def tile_grids(most: int) -> list[tuple[int, int]]:
    """All grids of at most `most` tiles, by rows, then columns: (1, 1), (1, 2), …, (`most`, 1)."""
    return [(r, c) for r in range(1, most + 1) for c in range(1, most // r + 1)]


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


def nearest_grid(size: Size, side: int, least: int, most: int) -> tuple[int, int]:
    """The grid of `least` to `most` tiles whose proportions are nearest to those of a picture, as
    InternVL chooses it.

    Grids of equal distance come by their number of tiles, then of columns. A later one wins if the
    picture has more than half of its pixels.

    Raises:
        ConfigError: there are no such grids.
    """
    grids = [(r, c) for r, c in tile_grids(most) if least <= r * c]
    if not grids:
        raise ConfigError(f"grids of {least} to {most} tiles; 1 or more, and in this order")
    grids.sort(key=lambda grid: (grid[0] * grid[1], grid[1]))
    ratio, area = size[0] / size[1], size[0] * size[1]
    best, nearest = grids[0], math.inf
    for rows, columns in grids:
        distance = abs(ratio - columns / rows)
        large = area > 0.5 * side * side * rows * columns
        if distance < nearest or (distance == nearest and large):
            best, nearest = (rows, columns), distance
    return best


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


def smart_size(
    size: Size,
    unit: int,
    least: int,
    most: int,
    original: Size | None = None,
    smallest: int = 0,
) -> Size:
    """The size of about the same proportions, in multiples of `unit`, with at least `least` and at
    most `most` pixels, as Qwen2-VL's processor computes it.

    Args:
        original: the size of the picture in messages, where `size` was computed of it.
        smallest: the least side before the bounds of pixels count.

    Raises:
        ConfigError: there are no such numbers of pixels.
        ImageError: a picture is more than 200 times as long as wide, or would have more pixels than
            the limit `image_pixels`.
    """
    if not 0 < least <= most:
        raise ConfigError(f"pictures of {least} to {most} pixels; 1 or more, and in this order")
    width, height = size
    if max(size) > 200 * min(size):
        across, down = original or size
        raise ImageError(
            f"an image of {across} × {down} pixels is more than 200 times as long as wide; crop it"
        )
    sides = [max(smallest, round(n / unit) * unit) for n in size]
    if sides[0] * sides[1] > most:
        shrink = math.sqrt(width * height / most)
        sides = [max(unit, math.floor(n / shrink / unit) * unit) for n in size]
    elif sides[0] * sides[1] < least:
        grow = math.sqrt(least / (width * height))
        sides = [math.ceil(n * grow / unit) * unit for n in size]
    if sides[0] * sides[1] > limits.image_pixels:
        made = f"{sides[0]:,} × {sides[1]:,} pixels"
        raise ImageError(too_large("the picture as the model wants it", made, "image_pixels"))
    return sides[0], sides[1]


def unfold(pixels: NDArray[Any], patch: int, merge: int = 1) -> NDArray[Any]:
    """The patches of pictures, row by row: [n, channels, H, W] → [n, patches, channels · patch²].

    Args:
        merge: squares of merge × merge patches follow one another, row by row, and so do the
            patches in each.
    """
    n, channels, height, width = pixels.shape
    rows, columns = height // patch, width // patch
    grid = pixels.reshape(n, channels, rows // merge, merge, patch, columns // merge, merge, patch)
    grid = grid.transpose(0, 2, 5, 3, 6, 1, 4, 7)
    return np.ascontiguousarray(grid.reshape(n, rows * columns, channels * patch * patch))
