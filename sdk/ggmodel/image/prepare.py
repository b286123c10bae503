"""Pictures as the numbers that a vision model reads: composited, resized, normalised.

Pictures are resized with antialias, bit for bit as torchvision does on bytes, or as Pillow does.
torchvision's horizontal pass comes first. Both passes use integer weights of 16 bits and round to
bytes. Pillow has finer weights, so that some levels differ by one, and may take the vertical pass
first, so that peaks of bicubic and lanczos are clipped elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np

from ..bounds import limits
from ..errors import ConfigError, ImageError
from ..reading import too_large
from .open import bands, within_memory

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


Method = Literal["bilinear", "bicubic", "lanczos"]

METHODS: dict[int, Method] = {1: "lanczos", 2: "bilinear", 3: "bicubic"}
"""Pillow's number of a method, which checkpoints have as `resample`, and its name."""

_REACH = {"bilinear": 1.0, "bicubic": 2.0, "lanczos": 3.0}
_CUBIC = -0.5  # Keys' a
_BLOCK = 16  # output lines of one matrix product


@within_memory
def resize(
    image: Image.Image,
    size: tuple[int, int],
    method: Method | int = "bilinear",
    *,
    pillow: bool = False,
) -> Image.Image:
    """Scales a picture to `size` (width, height); the proportions may change.

    Besides the picture it takes room for its height times the new width, 3 bytes a pixel.

    Args:
        method: a name, or Pillow's number of it, which `resample` of a checkpoint is.
        pillow: compute as Pillow does, for references that prepare pictures without torchvision;
            levels differ by one here and there.

    Raises:
        ImageError: the picture is not RGB, a side of `size` is below 1, or the method unknown.
    """
    from PIL import Image

    chosen = METHODS.get(method) if isinstance(method, int) else method
    if min(size) < 1 or chosen not in _REACH:
        names = ", ".join(_REACH)
        raise ImageError(f"cannot resize to {size[0]} × {size[1]} by {method!r}; choose {names}")
    if size == image.size:
        return image
    if pillow:
        rgb_array(image)
        return image.resize(size, Image.Resampling[chosen.upper()])
    across, down = _Pass(image.width, size[0], chosen), _Pass(image.height, size[1], chosen)
    rows = rgb_array(image) if size[0] == image.width else _narrowed(image, across)
    return Image.fromarray(rows if size[1] == image.height else down.apply(rows))


def _narrowed(image: Image.Image, across: _Pass) -> NDArray[np.uint8]:
    """Scales the rows, part by part; [height, width, 3]."""
    from PIL import Image

    rows = np.empty((image.height, across.count, 3), np.uint8)
    for top, band in bands(image):
        # Columns become lines; Pillow transposes faster than numpy.
        scaled = across.apply(rgb_array(band.transpose(Image.Transpose.TRANSPOSE)))
        rows[top : top + band.height] = scaled.transpose(1, 0, 2)
    return rows


class _Pass:
    """Scales `n` lines to `count`, in float64, where all these integers are exact."""

    def __init__(self, n: int, count: int, method: Method):
        self.count = count
        first, weights, self.bits = _weights(n, count, method)
        taps = weights.shape[1]
        self.blocks: list[tuple[int, NDArray[np.float64]]] = []
        for start in range(0, count, _BLOCK):
            stop = min(start + _BLOCK, count)
            low = first[start]
            block = np.zeros((stop - start, first[stop - 1] + taps - low))
            at = first[start:stop, None] - low + np.arange(taps)
            np.put_along_axis(block, at, weights[start:stop], axis=1)
            self.blocks.append((int(low), block[:, : n - low]))

    def apply(self, lines: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """[n, …] to [count, …]."""
        flat = lines.reshape(len(lines), -1)
        scaled = np.empty((self.count, flat.shape[1]), np.uint8)
        for i, (low, block) in enumerate(self.blocks):
            sums = block @ flat[low : low + block.shape[1]].astype(np.float64)
            np.floor(sums * 0.5**self.bits + 0.5, out=sums)
            scaled[i * _BLOCK : i * _BLOCK + len(block)] = np.clip(sums, 0, 255, out=sums)
        return scaled.reshape(self.count, *lines.shape[1:])


def _weights(
    n: int, count: int, method: Method
) -> tuple[NDArray[np.int64], NDArray[np.float64], int]:
    """The weights of `n` inputs in each of `count` outputs.

    Returns:
        the first input of each output, [count]; the integer weights of the inputs from there on,
        [count, taps], padded with zeros; and the bits by which to shift the sums.
    """
    scale = n / count
    wide = max(scale, 1.0)
    support = _REACH[method] * wide
    centre = scale * (np.arange(count) + 0.5)
    first = np.maximum((centre - support + 0.5).astype(np.int64), 0)
    taps = np.minimum((centre + support + 0.5).astype(np.int64), n) - first
    at = np.arange(taps.max())
    weights = _filter((at + first[:, None] - centre[:, None] + 0.5) / wide, method)
    weights[at >= taps[:, None]] = 0
    weights /= weights.sum(1, keepdims=True)
    bits = 0
    while bits < 22 and int(0.5 + weights.max() * 2 ** (bits + 1)) < 1 << 15:
        bits += 1
    return first, np.trunc(weights * 2**bits + np.copysign(0.5, weights)), bits


def _filter(x: NDArray[np.float64], method: Method) -> NDArray[np.float64]:
    x = np.abs(x)
    if method == "bilinear":
        return np.maximum(1 - x, 0)
    if method == "lanczos":
        return np.where(x < 3, np.sinc(x) * np.sinc(x / 3), 0)
    near = ((_CUBIC + 2) * x - (_CUBIC + 3)) * x * x + 1
    far = ((x - 5) * x + 8) * x * _CUBIC - 4 * _CUBIC
    return np.where(x < 1, near, np.where(x < 2, far, 0))
