"""A picture as up to 16 tiles, followed by a view of the whole if there are several."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

import ggmodel.image as pictures
from ggmodel.model import Pixels

if TYPE_CHECKING:
    from PIL.Image import Image

MOST = 16  # tiles
MOST_A_SIDE = math.isqrt(MOST)


def tiles_of(image: Image, side: int) -> Pixels:
    """Tiles of side × side pixels, row by row; `data` has `aspect_ratio`, (rows, columns).

    The picture keeps its proportions, stands in the top left corner, and is enlarged at most until
    it is as large as one tile.
    """
    image = pictures.composite(image)
    canvases = [(c * side, r * side) for r, c in pictures.tile_grids(MOST)]
    canvas = pictures.best_canvas(image.size, canvases)
    width, height = (min(max(n, side), most) for n, most in zip(image.size, canvas, strict=True))
    scaled = pictures.resize(image, pictures.fit(image.size, (width, height), single=True))
    columns, rows = canvas[0] // side, canvas[1] // side
    tiles = pictures.split_tiles(_pixels(pictures.pad(scaled, canvas)), rows, columns)
    if len(tiles) > 1:
        tiles = np.concatenate([tiles, _pixels(pictures.resize(image, (side, side)))[None]])
    return Pixels(tiles, {"aspect_ratio": (rows, columns)})


def _pixels(image: Image) -> np.ndarray:
    return pictures.normalize(image, 0.5, 0.5, bfloat16=True)
