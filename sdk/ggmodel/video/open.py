"""Opens videos: animated pictures, folders and lists of frames by Pillow, other files by PyAV."""

from __future__ import annotations

import numbers
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from ..errors import ImageError, VideoError
from ..image import composite, open_image, within_memory
from ..reading import given_bytes
from .container import decode
from .frames import Choose, Video, check_count, chosen, room
from .pictures import animated, is_picture

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from PIL import Image

    Frame: TypeAlias = str | Path | bytes | Image.Image | NDArray[np.uint8]
    Frames: TypeAlias = Sequence[Frame] | NDArray[np.uint8]
    Source: TypeAlias = (
        str | Path | bytes | bytearray | memoryview | Video | Frames | tuple[Frames, float]
    )

LONGEST = 1_000_000  # seconds
RATE = 24.0  # frames a second of a list without one, as transformers 5.23 assumes
_SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif")


@within_memory
def open_video(source: Source, choose: Choose | None = None) -> Video:
    """Opens a video.

    Args:
        source: a path, the bytes of a file, a data URL, a `Video`; a folder of pictures, in the
            order of the numbers in their names; a list of frames, each as `open_image` takes it or
            uint8 [height, width, 3], or all as one array; or frames and their number a second. GIF
            and WebP are read by Pillow, other files by the package av.
        choose: the times of all frames, float64 [n] in seconds → the numbers of those to keep;
            None keeps all. Only these are in memory at once.

    Raises:
        VideoError: it is missing, broken, without frames, has frames of several sizes, frames or
            times of a `Video` that are none, or exceeds one of `ggmodel.limits`: `video_bytes`,
            `video_decoded_pixels`, `video_frames`, `video_pixels`.
        ImageError: a frame cannot be read.
        Unsupported: the package av, of the extra `video`, is not installed, and the file needs it.
        OutOfMemory: there is no room for it.
    """
    if isinstance(source, Video):
        times = _checked(source)
        kept = chosen("the video", times, choose)
        return Video(source.frames[kept], times[kept])
    if isinstance(source, tuple) and len(source) == 2:
        frames, rate = source
        if isinstance(rate, numbers.Real):
            return _of_frames(frames, float(rate), choose)
    if isinstance(source, (list, tuple, np.ndarray)):
        return _of_frames(source, RATE, choose)
    if isinstance(source, (str, Path)):
        if os.path.isdir(source):  # unlike Path.is_dir, for data URLs too
            return _of_pictures(_listed(Path(source)), str(source), RATE, choose)
    elif not isinstance(source, (str, bytes, bytearray, memoryview)):
        raise VideoError(
            "a video is a path, bytes, a data URL, a folder or a list of frames, not "
            f"{type(source).__name__}"
        )
    given: Any = source
    data, name = given_bytes(given, "video", "video_bytes", VideoError)
    return animated(data, name, choose) if is_picture(data) else decode(data, name, choose)


def _checked(video: Video) -> NDArray[np.float64]:
    """The times of a `Video` that somebody made.

    Raises:
        VideoError: they are no numbers from 0 on that never fall, one for each frame; or the frames
            are no array of pictures.
    """
    _check_frames(video.frames)
    try:
        times = np.asarray(video.times, np.float64)
    except (TypeError, ValueError):
        raise VideoError("the times of a video are numbers, in seconds") from None
    if times.shape != (n := len(video.frames),):
        raise VideoError(f"the video has {n} frames and times {list(times.shape)}; give one each")
    fine = (times >= 0) & (times <= LONGEST)
    fine[1:] &= times[1:] >= times[:-1]
    if not fine.all():
        at = int(np.argmin(fine))
        raise VideoError(
            f"frame {at} of the video is at {times[at]} s; give times from 0 to {LONGEST:,} s, "
            "none before the last"
        )
    return times


def _check_frames(frames: Any) -> None:
    if not isinstance(frames, np.ndarray):
        raise VideoError(f"the frames of a video are an array, not {type(frames).__name__}")
    if frames.ndim != 4 or frames.shape[3] != 3 or frames.dtype != np.uint8:
        raise VideoError(
            f"the frames of a video are uint8 [n, height, width, 3], not {frames.dtype} "
            f"{list(frames.shape)}"
        )


def _of_frames(frames: Any, rate: float, choose: Choose | None) -> Video:
    if not (rate > 0 and np.isfinite(rate)):
        raise VideoError(f"the video has {rate} frames a second; give a number above 0")
    if isinstance(frames, np.ndarray):
        _check_frames(frames)
    elif not isinstance(frames, (list, tuple)):
        raise VideoError(f"the frames of a video are a list, not {type(frames).__name__}")
    return _of_pictures(frames, "the video", rate, choose)


def _of_pictures(
    frames: Sequence[Any] | NDArray, name: str, rate: float, choose: Choose | None
) -> Video:
    check_count(name, len(frames))
    times = np.arange(len(frames)) / rate
    kept = chosen(name, times, choose)
    result: NDArray[np.uint8] | None = None
    for at, number in enumerate(kept):
        pixels = _pixels(frames[number], int(number), name)
        height, width = pixels.shape[:2]
        if result is None:
            result = room(name, len(kept), width, height)
        if pixels.shape != result.shape[1:]:
            raise VideoError(
                f"frame {number} of {name} has {width} × {height} pixels, frame {kept[0]} "
                f"{result.shape[2]} × {result.shape[1]}; give frames of one size"
            )
        result[at] = pixels
    assert result is not None
    return Video(result, times[kept])


def _pixels(frame: Any, number: int, name: str) -> NDArray[np.uint8]:
    if isinstance(frame, np.ndarray):
        if frame.ndim != 3 or frame.shape[2] != 3 or frame.dtype != np.uint8:
            raise VideoError(
                f"frame {number} of {name} is {frame.dtype} {list(frame.shape)}; give uint8 "
                "[height, width, 3]"
            )
        return frame
    try:
        return np.asarray(composite(open_image(frame)))
    except ImageError as error:
        raise ImageError(f"frame {number} of {name}: {error}") from None


def _listed(folder: Path) -> list[Path]:
    """The pictures of a folder; "frame-9" precedes "frame-10"."""
    found = [p for p in folder.iterdir() if p.suffix.lower() in _SUFFIXES]

    def key(path: Path) -> list[tuple[int, str]]:
        return [(int(p), "") if p.isdigit() else (-1, p) for p in re.split(r"(\d+)", path.name)]

    return sorted(found, key=key)
