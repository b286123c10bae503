"""A picture as tiles, followed by a view of the whole if there are several."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

import ggmodel.image as pictures
from ggmodel.model import Pixels

if TYPE_CHECKING:
    from PIL.Image import Image

    from .config import Llama4Config


def tiles_of(image: Image, h: Llama4Config) -> Pixels:
    """Tiles of h.tile × h.tile pixels, row by row; `data` has `aspect_ratio`, (rows, columns).

    The picture keeps its proportions, stands in the top left corner, and is enlarged at most until
    it is as large as one tile.
    """
    image, side = pictures.composite(image), h.tile
    canvases = [(c * side, r * side) for r, c in pictures.tile_grids(h.tiles)]
    canvas = pictures.best_canvas(image.size, canvases)
    width, height = (min(max(n, side), most) for n, most in zip(image.size, canvas, strict=True))
    size = pictures.fit(image.size, (width, height), single=True)
    whole = pictures.pad(pictures.resize(image, size, h.resample), canvas)
    columns, rows = canvas[0] // side, canvas[1] // side
    tiles = pictures.split_tiles(_pixels(whole, h), rows, columns)
    if len(tiles) > 1:
        view = pictures.resize(image, (side, side), h.resample)
        tiles = np.concatenate([tiles, _pixels(view, h)[None]])
    return Pixels(tiles, {"aspect_ratio": (rows, columns)})


def _pixels(image: Image, h: Llama4Config) -> np.ndarray:
    return pictures.normalize(image, h.image_mean, h.image_std, bfloat16=True)
