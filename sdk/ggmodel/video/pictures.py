"""Animated pictures: GIF, WebP and PNG, by Pillow."""

from __future__ import annotations

import io
import warnings
from typing import TYPE_CHECKING

import numpy as np

from ..bounds import limits
from ..errors import Error, VideoError
from ..image import composite
from ..reading import too_large
from .frames import Choose, Video, check_count, chosen, room

if TYPE_CHECKING:
    from PIL import Image

_FORMATS = ("GIF", "WEBP", "PNG")
_UNTIMED = 0.1  # seconds of a frame that names none, as browsers show it


def is_picture(data: bytes) -> bool:
    """Whether these are the bytes of a picture that may be animated."""
    return data.startswith((b"GIF8", b"\x89PNG")) or (data[:4] == b"RIFF" and data[8:12] == b"WEBP")


def animated(data: bytes, name: str, choose: Choose | None) -> Video:
    """The frames of an animated picture, transparency on white. A frame that is shown for no time
    counts as a tenth of a second, as in browsers.

    Raises:
        VideoError: it is broken, or exceeds `video_frames` or `video_pixels`, which holds for all
            of its frames: each builds on the one before.
    """
    from PIL import Image

    try:
        with warnings.catch_warnings():  # Pillow has other limits of its own
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            with Image.open(io.BytesIO(data), formats=_FORMATS) as image:
                return _frames(image, name, choose)
    except (Error, MemoryError):
        raise
    except Exception as error:  # decoders raise whatever a broken file leads them to
        raise VideoError(f"{name} cannot be decoded: {error}; save the video again") from error


def _durations(image: Image.Image, name: str) -> list[float]:
    """Seconds of each frame; all are decoded. A GIF says nowhere how many they are."""
    gif = image.format == "GIF"
    count = 1 if gif else getattr(image, "n_frames", 1)
    _check(name, count, count * image.width * image.height)
    durations: list[float] = []
    pixels = 0
    while gif or len(durations) < count:
        try:
            image.seek(len(durations))
        except EOFError:
            if gif:
                break
            raise
        pixels += image.width * image.height  # a GIF's frames may enlarge it
        _check(name, len(durations) + 1, pixels)
        image.load()
        durations.append(image.info.get("duration", 0) / 1000 or _UNTIMED)
    return durations


def _check(name: str, frames: int, pixels: int) -> None:
    check_count(name, frames)
    if pixels > limits.video_pixels:
        size = f"{frames:,} frames of {pixels // frames:,} pixels"
        raise VideoError(too_large(name, size, "video_pixels"))


def _frames(image: Image.Image, name: str, choose: Choose | None) -> Video:
    width, height = image.size
    durations = _durations(image, name)
    times = np.concatenate([[0.0], np.cumsum(durations[:-1])])
    kept = chosen(name, times, choose)
    result = room(name, len(kept), width, height)
    for at, number in enumerate(kept.tolist()):
        image.seek(number)
        frame = image.convert("RGBA" if image.has_transparency_data else "RGB")
        result[at] = np.asarray(composite(frame))
    return Video(result, times[kept])
