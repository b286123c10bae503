"""A picture as tiles, and the grids in which they lie."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ggmodel.errors import PromptError
from ggmodel.image import best_canvas, composite, fit, normalize, pad, resize, split_tiles
from ggmodel.image import tile_grids as grids
from ggmodel.model import Pixels

if TYPE_CHECKING:
    from PIL.Image import Image

    from .config import MllamaConfig


def tiles_of(image: Image, h: MllamaConfig) -> Pixels:
    """h.tiles tiles of h.tile × h.tile pixels, row by row, unused ones zero; `data` has
    `aspect_ratio_id`, the number of the grid of tiles in `tile_grids`, from 1 on.

    The picture keeps its proportions, stands in the top left corner, and is enlarged at most until
    it is as large as one tile.
    """
    image, side, most = composite(image), h.tile, h.tiles
    canvas = best_canvas(image.size, [(c * side, r * side) for r, c in grids(most)])
    width, height = (min(max(n, side), m) for n, m in zip(image.size, canvas, strict=True))
    image = pad(resize(image, fit(image.size, (width, height)), h.resample), canvas)
    columns, rows = canvas[0] // side, canvas[1] // side
    tiles = split_tiles(normalize(image, h.image_mean, h.image_std), rows, columns)
    return Pixels(filled(tiles, most), {"aspect_ratio_id": grids(most).index((rows, columns)) + 1})


def filled(tiles: np.ndarray, most: int) -> np.ndarray:
    """Tiles [n, 3, side, side], padded with zeros to `most` tiles."""
    return np.pad(tiles, [(0, most - len(tiles)), (0, 0), (0, 0), (0, 0)])


def tiles_used(ratio: int, most: int) -> int:
    """The number of tiles of an `aspect_ratio_id`.

    Raises:
        PromptError: there is no such grid.
    """
    supported = grids(most)
    if not 1 <= ratio <= len(supported):
        raise PromptError(f"an aspect_ratio_id of {ratio}; it must be 1 to {len(supported)}")
    rows, columns = supported[ratio - 1]
    return rows * columns
