"""Opens pictures safely, and prepares them for vision models.

A model calls `composite`, `resize`, perhaps `pad`, `normalize`, perhaps `split_tiles`. Each step
gives the same numbers as the image processors of transformers.
"""

from .open import content_hash, open_image, within_memory
from .prepare import METHODS, composite, grey, normalize, pad, resize
from .tiles import best_canvas, fit, nearest_grid, smart_size, split_tiles, tile_grids, unfold

__all__ = [
    "METHODS",
    "best_canvas",
    "composite",
    "content_hash",
    "fit",
    "grey",
    "nearest_grid",
    "normalize",
    "open_image",
    "pad",
    "resize",
    "smart_size",
    "split_tiles",
    "tile_grids",
    "unfold",
    "within_memory",
]
