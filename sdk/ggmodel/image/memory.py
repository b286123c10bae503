"""Pictures in parts, and errors where memory lacks."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from ..errors import OutOfMemory

if TYPE_CHECKING:
    from PIL import Image

_BAND = 1 << 20  # pixels of a part; copies of it take some 40 MB in the form of float64

P = ParamSpec("P")
R = TypeVar("R")


def bands(image: Image.Image) -> Iterator[tuple[int, Image.Image]]:
    """The first row of each part of a picture from top to bottom, and a copy of the part."""
    height = max(1, _BAND // max(1, image.width))
    for top in range(0, image.height, height):
        yield top, image.crop((0, top, image.width, min(top + height, image.height)))


def within_memory(function: Callable[P, R]) -> Callable[P, R]:
    """Turns the bare MemoryError of Pillow and numpy into `OutOfMemory`."""

    @functools.wraps(function)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except OutOfMemory:
            raise
        except MemoryError:
            size = getattr(args[0], "size", None) if args else None
            of = f" of {size[0]:,} × {size[1]:,} pixels" if isinstance(size, tuple) else ""
            raise OutOfMemory(
                f"no memory for a picture{of} ({function.__name__}); make it smaller, or lower "
                f"ggmodel.limits.image_pixels"
            ) from None

    return guarded
