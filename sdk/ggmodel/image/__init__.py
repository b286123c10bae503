"""Opens pictures safely, and prepares them for vision models.

A model calls `composite`, `resize`, perhaps `pad`, `normalize`, perhaps `split_tiles`. Each step
gives the same numbers as the image processors of transformers.
"""

from .open import MAX_BYTES, MAX_PIXELS, MAX_SIDE, content_hash, open_image
from .prepare import composite, normalize, pad
from .resize import resize
from .tiles import best_canvas, fit, split_tiles, tile_grids

__all__ = [
    "MAX_BYTES",
    "MAX_PIXELS",
    "MAX_SIDE",
    "best_canvas",
    "composite",
    "content_hash",
    "fit",
    "normalize",
    "open_image",
    "pad",
    "resize",
    "split_tiles",
    "tile_grids",
]
