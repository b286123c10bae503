"""Files of videos, such as MP4: by PyAV, which brings FFmpeg's decoders."""

from __future__ import annotations

import importlib
import io
from typing import Any

import numpy as np

from ..bounds import spend
from ..errors import Error, Unsupported, VideoError
from ..extras import install_command
from .frames import Choose, Video, check_count, check_decoded, chosen, room

# Files alone: other formats of FFmpeg open connections and further files.
_FORMATS = "mov,mp4,matroska,webm,avi,flv,mpeg,mpegts,ogg,asf"


def decode(data: bytes, name: str, choose: Choose | None) -> Video:
    """The frames of a file. All are decoded up to the last one that is kept.

    Raises:
        VideoError: it is broken, holds no pictures, or exceeds a limit; that of decoded pixels
            counts before they are decoded.
        Unsupported: av is not installed.
    """
    av = _package(name)
    try:
        with av.open(io.BytesIO(data), options={"format_whitelist": _FORMATS}) as container:
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
    wanted = {number: at for at, number in enumerate(kept.tolist())}
    found = decoded = 0
    for number, frame in enumerate(container.decode(stream)):
        decoded += frame.width * frame.height  # which may be others than the file says
        check_decoded(name, number + 1, decoded)
        if number in wanted:
            pixels = frame.to_ndarray(format="rgb24")
            if pixels.shape != result.shape[1:]:
                raise VideoError(
                    f"frame {number} of {name} has {pixels.shape[1]} × {pixels.shape[0]} pixels, "
                    f"and the video {stream.width} × {stream.height}; cut it there"
                )
            result[wanted[number]] = pixels
            found += 1
        if number == last:
            break
    if found < len(kept):
        raise VideoError(
            f"{name} ends early: {found} of {len(kept)} frames can be decoded; save it again"
        )
    return Video(result, np.asarray(times)[kept])
