"""Turns a picture into the numbers that a vision model reads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ..bounds import limits
from ..errors import ConfigError, ImageError
from ..reading import too_large
from .memory import bands, within_memory

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from PIL import Image

WHITE = (255, 255, 255)


@within_memory
def composite(image: Image.Image, colour: tuple[int, int, int] = WHITE) -> Image.Image:
    """Lays a picture over one colour; the result has mode RGB. A picture of that mode is returned
    as it is."""
    from PIL import Image

    if image.mode != "RGBA":
        return image if image.mode == "RGB" else image.convert("RGB")
    result = Image.new("RGB", image.size)
    for top, band in bands(image):
        ground = Image.new("RGBA", band.size, (*colour, 255))
        result.paste(Image.alpha_composite(ground, band).convert("RGB"), (0, top))
    return result


def grey(size: tuple[int, int]) -> Image.Image:
    """A grey picture of that size (width, height), such as the largest that a model takes.

    Raises:
        ConfigError: it would have more pixels than any picture may have.
    """
    from PIL import Image

    width, height = size
    if width * height > limits.image_pixels:
        pixels = f"{width:,} × {height:,} = {width * height:,} pixels"
        raise ConfigError(too_large("the largest image of this model", pixels, "image_pixels"))
    return Image.new("RGB", (width, height), (128, 128, 128))


@within_memory
def pad(image: Image.Image, size: tuple[int, int]) -> Image.Image:
    """Pads a picture with black, right and below, to `size` (width, height).

    Raises:
        ImageError: the picture is larger than that.
    """
    from PIL import Image

    if image.width > size[0] or image.height > size[1]:
        raise ImageError(
            f"an image of {image.width} × {image.height} cannot be padded to "
            f"{size[0]} × {size[1]}; resize it first"
        )
    canvas = Image.new("RGB", size)
    canvas.paste(image)
    return canvas


@within_memory
def normalize(
    image: Image.Image,
    mean: float | Sequence[float],
    std: float | Sequence[float],
    rescale: float = 1 / 255,
    bfloat16: bool = False,
) -> NDArray[np.float32]:
    """(level · rescale − mean) / std of each channel.

    Args:
        image: mode RGB.
        mean, std: one for all channels, or one each for red, green and blue.
        bfloat16: round the result of each step to bfloat16, as Llama 4 was trained.

    Returns:
        [3, height, width], the channels as planes.

    Raises:
        ImageError: the picture is not RGB.
    """
    planes = rgb_array(image).transpose(2, 0, 1).astype(np.float32)
    centre = np.broadcast_to(np.asarray(mean, np.float32), 3).reshape(3, 1, 1)
    width = np.broadcast_to(np.asarray(std, np.float32), 3).reshape(3, 1, 1)
    if bfloat16:
        centred = _bfloat16(_bfloat16(planes * np.float32(rescale)) - _bfloat16(centre))
        return _bfloat16(centred / _bfloat16(width))
    # Mean and deviation in levels, as in transformers: one rounding less.
    level = np.float32(1 / rescale)
    return np.ascontiguousarray((planes - centre * level) / (width * level))


def rgb_array(image: Image.Image) -> NDArray[np.uint8]:
    """The levels of an RGB picture, [height, width, 3]."""
    if image.mode != "RGB":
        raise ImageError(f"the image has mode {image.mode}, not RGB; composite it first")
    return np.asarray(image)


def _bfloat16(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """Rounds to 8 significant bits, ties to even."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) & np.uint32(0xFFFF0000)).view(np.float32)
