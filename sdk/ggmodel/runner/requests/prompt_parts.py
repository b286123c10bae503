"""Parts of a prompt: kinds of items, and texts tokenised as one string with what a model adds."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import PromptError
from ...model import Input, Prepared

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
    detected = _detected(item)
    if detected is None and len(kinds) > 1:
        shown = " or ".join(f"{{'type': {kind!r}, {kind!r}: …}}" for kind in kinds)
        raise PromptError(
            f"an item of type {type(item).__name__} may be of several kinds; give {shown}"
        )
    return detected or next(iter(kinds), "image")


def _detected(item: object) -> str | None:
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


Encode = Callable[[str], list[int]]


@dataclass(frozen=True)
class PromptText:
    """A text of a prompt.

    Attributes:
        encode: gives token ids; that of the first text adds the special tokens that begin a prompt.
        markers: kind of item → the text in its place.
        items: kinds and what users gave of the items within the text, in order.
    """

    text: str
    encode: Encode
    markers: Mapping[str, str] = field(default_factory=dict)
    items: Sequence[tuple[str, Any]] = ()

    def ids(self) -> list[int]:
        """Its tokens."""
        return self.encode(self.text)


@dataclass(frozen=True, eq=False)
class PromptItem:
    """An image or another item of a prompt, not encoded yet: strings are paths and data URLs."""

    kind: str
    item: Any


def joined(
    made: Sequence[Input | str], texts: Sequence[tuple[PromptText, list[Input]]], encode: Encode
) -> list[Input]:
    """The inputs of a prompt, the texts that a model put among them tokenised. Texts without
    another input between them are one string.

    Args:
        made: result of `Model.post_tokenize`.
        texts: those of the prompt, with their inputs. A text whose inputs stand in `made` as they
            were is joined with the model's texts beside it.
        encode: token ids of a text in the middle of a prompt.
    """
    begins = {id(inputs[0]): (text, inputs) for text, inputs in texts if inputs}
    result: list[Input] = []
    run: list[tuple[PromptText, list[Input]] | str] = []

    def finish() -> None:
        if any(isinstance(one, str) for one in run):
            string = "".join(one if isinstance(one, str) else one[0].text for one in run)
            first = encode if isinstance(run[0], str) else run[0][0].encode
            result.extend(map(Input, first(string)))
        else:
            result.extend(token for one in run for token in one[1] if isinstance(token, Input))
        run.clear()

    i = 0
    while i < len(made):
        one = made[i]
        text = None if isinstance(one, str) else begins.get(id(one))
        if isinstance(one, str):
            run.append(one)
            i += 1
        elif text is not None and _same(made[i : i + len(text[1])], text[1]):
            run.append(text)
            i += len(text[1])
        else:
            finish()
            result.append(one)
            i += 1
    finish()
    return result


def _same(some: Sequence[object], others: Sequence[object]) -> bool:
    return len(some) == len(others) and all(a is b for a, b in zip(some, others, strict=True))
