"""A video in memory, and what it may cost."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from ..bounds import limits, spend
from ..errors import OutOfMemory, VideoError
from ..reading import too_large

if TYPE_CHECKING:
    from numpy.typing import NDArray

# The times of all frames, float64 [n] in seconds → the numbers of those to keep, ascending.
Choose: TypeAlias = "Callable[[NDArray[np.float64]], Sequence[int] | NDArray[np.integer]]"


@dataclass(frozen=True, eq=False)
class Video:
    """Frames of one size, in order.

    Attributes:
        frames: uint8 [n, height, width, 3], red, green and blue.
        times: float64 [n], seconds from the first frame of the whole video.
    """

    frames: NDArray[np.uint8]
    times: NDArray[np.float64]


def chosen(name: str, times: Iterable[float], choose: Choose | None) -> NDArray[np.int64]:
    """The numbers of the frames to keep, ascending; all without `choose`.

    Raises:
        VideoError: the video has no frames, more than `ggmodel.limits.video_frames`, or none is
            chosen.
    """
    every = np.fromiter(times, np.float64)
    if not len(every):
        raise VideoError(f"{name} has no frames; give another video")
    check_count(name, len(every))
    if choose is None:
        return np.arange(len(every))
    numbers = np.asarray(choose(every), np.int64).reshape(-1)
    if not len(numbers) or numbers.min() < 0 or numbers.max() >= len(every):
        raise VideoError(
            f"of the {len(every)} frames of {name} the model chose {numbers[:9].tolist()}; it must "
            "choose some of them"
        )
    return np.unique(numbers)


def check_count(name: str, frames: int) -> None:
    """Raises VideoError for more frames than `ggmodel.limits.video_frames`."""
    if frames > limits.video_frames:
        raise VideoError(too_large(name, f"{frames:,} frames", "video_frames"))


def check_decoded(name: str, frames: int, pixels: int) -> None:
    """Raises VideoError for more pixels than `ggmodel.limits.video_decoded_pixels`.

    Args:
        frames: number of frames to decode, or decoded so far.
        pixels: of all of them.
    """
    if pixels > limits.video_decoded_pixels:
        size = f"{pixels:,} pixels in the {frames:,} frames up to the last one that is looked at"
        raise VideoError(too_large(name, size, "video_decoded_pixels"))


def room(name: str, frames: int, width: int, height: int) -> NDArray[np.uint8]:
    """An array for so many frames.

    Raises:
        VideoError: more pixels than `ggmodel.limits.video_pixels`, or none.
        OutOfMemory: there is no room for it.
    """
    if not width or not height:
        raise VideoError(f"{name} has frames of {width} × {height} pixels; give another video")
    pixels = frames * width * height
    if pixels > limits.video_pixels:
        size = f"{frames:,} frames of {width:,} × {height:,} pixels, {pixels:,} in all"
        raise VideoError(too_large(name, size, "video_pixels"))
    spend("video_pixels", pixels, "pixels of videos")
    try:
        return np.empty((frames, height, width, 3), np.uint8)
    except MemoryError:
        raise OutOfMemory(
            f"no memory for {frames:,} frames of {width:,} × {height:,} pixels; make the video "
            "shorter, or lower ggmodel.limits.video_pixels"
        ) from None
