"""Resizes with antialias, bit for bit as torchvision does on bytes.

The horizontal pass comes first. Both passes use integer weights of 16 bits and round to bytes.
Pillow's `resize` has finer weights, so that some levels differ by one, and may take the vertical
pass first, so that bicubic peaks are clipped elsewhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np

from ..errors import ImageError
from .prepare import rgb_array

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from PIL import Image

Method = Literal["bilinear", "bicubic"]

_REACH = {"bilinear": 1.0, "bicubic": 2.0}
_CUBIC = -0.5  # Keys' a
_BLOCK = 16  # output lines of one matrix product


def resize(image: Image.Image, size: tuple[int, int], method: Method = "bilinear") -> Image.Image:
    """Scales a picture to `size` (width, height); the proportions may change.

    Raises:
        ImageError: the picture is not RGB, a side of `size` is below 1, or the method unknown.
    """
    from PIL import Image

    if min(size) < 1 or method not in _REACH:
        known = " or ".join(_REACH)
        raise ImageError(f"cannot resize to {size[0]} × {size[1]} by {method!r}; choose {known}")
    for side in (0, 1):
        if size[side] != image.size[side]:
            # Columns become lines; Pillow transposes faster than numpy.
            turned = image if side else image.transpose(Image.Transpose.TRANSPOSE)
            lines = rgb_array(turned).reshape(turned.height, -1)
            scaled = _scaled(lines, size[side], method).reshape(size[side], turned.width, 3)
            image = Image.fromarray(scaled)
            image = image if side else image.transpose(Image.Transpose.TRANSPOSE)
    return image


def _scaled(lines: NDArray[np.uint8], count: int, method: Method) -> NDArray[np.uint8]:
    """Scales lines [n, m] to [count, m], in float64, where all these integers are exact."""
    first, weights, bits = _weights(len(lines), count, method)
    taps = weights.shape[1]
    scaled = np.empty((count, lines.shape[1]), np.uint8)
    for start in range(0, count, _BLOCK):
        stop = min(start + _BLOCK, count)
        low = first[start]
        block = np.zeros((stop - start, first[stop - 1] + taps - low))
        at = first[start:stop, None] - low + np.arange(taps)
        np.put_along_axis(block, at, weights[start:stop], axis=1)
        used = lines[low : low + block.shape[1]]
        sums = block[:, : len(used)] @ used.astype(np.float64)
        np.floor(sums * 0.5**bits + 0.5, out=sums)
        scaled[start:stop] = np.clip(sums, 0, 255, out=sums)
    return scaled


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
    near = ((_CUBIC + 2) * x - (_CUBIC + 3)) * x * x + 1
    far = ((x - 5) * x + 8) * x * _CUBIC - 4 * _CUBIC
    return np.where(x < 1, near, np.where(x < 2, far, 0))
