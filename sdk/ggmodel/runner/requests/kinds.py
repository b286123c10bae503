"""Tells what an item in a prompt is: an image, a sound or a video."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path

import numpy as np

from ...errors import PromptError
from ...model import Prepared

_NO_ITEM = (bool, float, complex, list, tuple, Mapping, set, type(None))
_BYTES = (bytes, bytearray, memoryview)
_HEAD = 16  # bytes that tell
_SOUNDS = (b"fLaC", b"OggS", b"ID3")
_OF_RIFF = {b"WAVE": "audio", b"AVI ": "video", b"WEBP": "image"}
_MATROSKA = b"\x1a\x45\xdf\xa3"


def kind_of(item: object, kinds: Collection[str]) -> str:
    """The kind of an item that is given without one.

    Args:
        kinds: those that the model takes.

    Raises:
        PromptError: it is no item, or may be one of several kinds.
    """
    if isinstance(item, _NO_ITEM):
        raise PromptError(
            "a prompt is text, or a list of texts, token ids and images, not of "
            f"{type(item).__name__}; batch(prompts) takes several prompts"
        )
    looked = _looked(item)
    if looked is None and len(kinds) > 1:
        shown = " or ".join(f"{{'type': {kind!r}, {kind!r}: …}}" for kind in kinds)
        raise PromptError(
            f"an item of type {type(item).__name__} may be of several kinds; give {shown}"
        )
    return looked or next(iter(kinds), "image")


def _looked(item: object) -> str | None:
    """The kind by type and content; None if it could be any."""
    if isinstance(item, (np.ndarray, Prepared)):
        return None
    if isinstance(item, _BYTES):
        return _by_content(bytes(memoryview(item)[:_HEAD]))
    if isinstance(item, Path):
        if os.path.isdir(item):
            return "video"
        with suppress(OSError), item.open("rb") as file:
            return _by_content(file.read(_HEAD))
        return "image"  # opening it says that there is none
    return {"Audio": "audio", "Video": "video"}.get(type(item).__name__, "image")


def _by_content(head: bytes) -> str:
    """The kind of a file by its first bytes."""
    if head.startswith(b"RIFF"):
        return _OF_RIFF.get(head[8:12], "image")
    # An MPEG frame begins with eleven bits.
    if head.startswith(_SOUNDS) or (head[:1] == b"\xff" and head[1:2] >= b"\xe0"):
        return "audio"
    return "video" if head[4:8] == b"ftyp" or head.startswith(_MATROSKA) else "image"
