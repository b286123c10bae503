"""Bounds the cost of a JPEG by its markers, before anything decodes it."""

from __future__ import annotations

import re

from ..bounds import limits
from ..errors import ImageError
from ..reading import too_large

BEGIN = b"\xff\xd8"

# Other codes have no segment: bytes of a scan, fill bytes, restarts, or what decoders refuse.
_MARKER = re.compile(rb"\xff[\xc0-\xc7\xc9-\xcf\xd9-\xef\xfe]")
_END, _SCAN = 0xD9, 0xDA
_MOST_SEGMENTS = 100_000  # a profile or the like of 256 MB has 4,096
_MOST_JUNK = 1 << 20  # bytes between segments; Pillow reads them one by one


def check_jpeg(data: bytes, name: str) -> None:
    """Checks what a decoder would go over: everything up to the end of the picture. Phones put
    films and further pictures behind it.

    Args:
        name: the file's, for messages.

    Raises:
        ImageError: it has more scans than the limit `image_scans`, each of which goes over all
            pixels, while one without content takes 10 bytes; or masses of other segments or bytes
            between them.
    """
    scans = segments = junk = 0
    at = len(BEGIN)
    while at < len(data) and segments <= _MOST_SEGMENTS and junk <= _MOST_JUNK:
        found = _MARKER.search(data, at)
        start, end = found.span() if found else (len(data), len(data))
        if not scans:
            junk += start - at
        at = end
        if found is None or data[end - 1] == _END:
            if scans:
                break
            continue  # as Pillow does; libjpeg refuses it
        segments += 1
        scans += data[end - 1] == _SCAN
        at += max(2, int.from_bytes(data[end : end + 2], "big"))
    if scans > limits.image_scans:
        raise ImageError(too_large(name, f"{scans:,} scans", "image_scans"))
    if segments > _MOST_SEGMENTS:
        raise ImageError(f"{name} has more than {_MOST_SEGMENTS:,} segments; save it again")
    if junk > _MOST_JUNK:
        raise ImageError(
            f"{name} has more than {_MOST_JUNK:,} bytes that belong to no segment; save it again"
        )
