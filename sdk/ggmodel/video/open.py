"""Videos opened: animated pictures, folders and lists of frames by Pillow, others by PyAV.

Animated pictures are GIF, WebP and PNG. PyAV, for files such as MP4, brings FFmpeg's decoders.
"""

from __future__ import annotations

import importlib
import io
import numbers
import os
import re
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from ..bounds import limits, spend
from ..errors import Error, ImageError, Unsupported, VideoError
from ..image import composite, open_image, within_memory
from ..imports import install_command
from ..reading import given_bytes, too_large
from .frames import Choose, Video, check_count, check_decoded, chosen, room

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from PIL import Image

    Frame: TypeAlias = str | Path | bytes | Image.Image | NDArray[np.uint8]
    Frames: TypeAlias = Sequence[Frame] | NDArray[np.uint8]
    Source: TypeAlias = (
        str | Path | bytes | bytearray | memoryview | Video | Frames | tuple[Frames, float]
    )

# Files alone: other formats of FFmpeg open connections and further files.
_CONTAINER_FORMATS = "mov,mp4,matroska,webm,avi,flv,mpeg,mpegts,ogg,asf"


def decode(data: bytes, name: str, choose: Choose | None) -> Video:
    """The frames of a file. All are decoded up to the last one that is kept.

    Raises:
        VideoError: it is broken, holds no pictures, or exceeds a limit; that of decoded pixels
            counts before they are decoded.
        Unsupported: av is not installed.
    """
    av = _package(name)
    try:
        with av.open(
            io.BytesIO(data), options={"format_whitelist": _CONTAINER_FORMATS}
        ) as container:
            return _decoded(container, name, choose)
    except (Error, MemoryError):
        raise
    except Exception as error:  # decoders raise whatever a broken file leads them to
        raise VideoError(
            f"{name} cannot be decoded: {error}; give MP4, WebM, GIF or WebP, or its frames"
        ) from error


def _package(name: str) -> Any:
    try:
        return importlib.import_module("av")
    except ImportError:
        raise Unsupported(
            f"{name} is no GIF or WebP, and the package av, which opens other videos, is not "
            f"installed: {install_command('video')}, or give the frames as pictures"
        ) from None


def _decoded(container: Any, name: str, choose: Choose | None) -> Video:
    if not container.streams.video:
        raise VideoError(f"{name} holds no pictures, only sound; give it as audio")
    stream = container.streams.video[0]
    stream.thread_type = "AUTO"
    stamps = []
    for packet in container.demux(stream):
        if packet.pts is not None and not packet.is_discard:  # cut off by an edit list
            stamps.append(packet.pts)
            check_count(name, len(stamps))
    stamps.sort()  # packets come in the order of decoding
    times = [float((stamp - stamps[0]) * stream.time_base) for stamp in stamps]
    kept = chosen(name, times, choose)
    last = int(kept[-1])
    to_decode = (last + 1) * stream.width * stream.height
    check_decoded(name, last + 1, to_decode)
    spend("video_decoded_pixels", to_decode, "pixels of videos to decode")
    result = room(name, len(kept), stream.width, stream.height)
    container.seek(0)
    places = {number: at for at, number in enumerate(kept.tolist())}
    kept_frames = decoded = 0
    for number, frame in enumerate(container.decode(stream)):
        decoded += frame.width * frame.height  # which may be others than the file says
        check_decoded(name, number + 1, decoded)
        if number in places:
            pixels = frame.to_ndarray(format="rgb24")
            if pixels.shape != result.shape[1:]:
                raise VideoError(
                    f"frame {number} of {name} has {pixels.shape[1]} × {pixels.shape[0]} pixels, "
                    f"and the video {stream.width} × {stream.height}; cut it there"
                )
            result[places[number]] = pixels
            kept_frames += 1
        if number == last:
            break
    if kept_frames < len(kept):
        raise VideoError(
            f"{name} ends early: {kept_frames} of {len(kept)} frames can be decoded; save it again"
        )
    return Video(result, np.asarray(times)[kept])


_PICTURE_FORMATS = ("GIF", "WEBP", "PNG")
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
            with Image.open(io.BytesIO(data), formats=_PICTURE_FORMATS) as image:
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
    data_source: Any = source
    data, name = given_bytes(data_source, "video", "video_bytes", VideoError)
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
    pictures = [p for p in folder.iterdir() if p.suffix.lower() in _SUFFIXES]

    def key(path: Path) -> list[tuple[int, str]]:
        return [(int(p), "") if p.isdigit() else (-1, p) for p in re.split(r"(\d+)", path.name)]

    return sorted(pictures, key=key)
