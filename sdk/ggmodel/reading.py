"""Reads small untrusted files: within a limit, and JSON that is no trap.

Large files are mapped instead (`gguf_file.buffer`).
"""

from __future__ import annotations

import base64
import binascii
import errno
import json
import os
import stat
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from .bounds import limits
from .errors import Error, FormatError, OutOfMemory
from .platforms.files import BINARY, NO_WAITING

# Opening a pipe would wait for a writer for ever; Windows changes ends of lines without O_BINARY.
READ_FLAGS = os.O_RDONLY | NO_WAITING | BINARY

_MORE = 1 << 16  # bytes asked for at once beyond a file's size


class MissingFile(FormatError, FileNotFoundError):
    """The file does not exist."""

    def __init__(self, message: str):
        super().__init__(message)
        self.errno = errno.ENOENT


def too_large(name: str, size: str, limit: str) -> str:
    """The message for an input beyond a limit of `ggmodel.limits`; "" is a size unknown so far."""
    most = f"{getattr(limits, limit):,}"
    excess = f"has {size}, but the limit is {most}" if size else f"has more than {most} bytes"
    return (
        f"{name} {excess}; if you trust it, raise the limit: ggmodel.limits.{limit}, or "
        f"GGMODEL_LIMIT_{limit.upper()}"
    )


def read_file(path: str | Path, limit: str) -> bytes:
    """The bytes of a regular file. Room is asked for its size, not for the limit.

    Args:
        limit: name of the limit of its bytes.

    Raises:
        MissingFile: there is none.
        FormatError: it is no regular file, cannot be read, or exceeds the limit.
        OutOfMemory: there is no room for it.
    """
    most, name = getattr(limits, limit), f"{path!s:.200}"
    try:
        with opened(path) as file:
            size = os.fstat(file).st_size
            if size <= most:
                data = _read(file, size + 1, most + 1)  # one more byte shows that it is longer
                if len(data) <= most:
                    return data
    except FileNotFoundError:
        raise MissingFile(f"{name} does not exist; check the path") from None
    except FormatError:
        raise
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise FormatError(f"{name} cannot be read: {reason}; check the path") from None
    except MemoryError:
        raise OutOfMemory(f"{name}: no memory for its {size:,} bytes") from None
    raise FormatError(too_large(name, f"{size:,} bytes" if size > most else "", limit))


@contextmanager
def opened(path: str | Path) -> Iterator[int]:
    """The descriptor of a regular file, which is closed at the end.

    Raises:
        FormatError: it is a directory, a pipe or a device.
        OSError: it cannot be opened.
    """
    file = os.open(path, READ_FLAGS)
    try:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise FormatError(f"{path!s:.200} is not a regular file; give the path of a file")
        yield file
    finally:
        os.close(file)


def _read(file: int, expected: int, most: int) -> bytes:
    """The file up to its end, or to `most` bytes. It may be longer than expected: one that grew
    meanwhile, or has no size, as those in /proc."""
    pieces = []
    while most > 0 and (piece := os.read(file, min(expected, most, 1 << 30))):
        pieces.append(piece)
        most -= len(piece)
        expected -= len(piece)
        if expected <= 0:
            expected = _MORE
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def given_bytes(
    source: str | Path | bytes | bytearray | memoryview, kind: str, limit: str, error: type[Error]
) -> tuple[bytes, str]:
    """The bytes of a picture, a sound or a video that a caller gives, and its name in messages.

    Args:
        source: a path, the bytes of a file, or a data URL (`data:image/png;base64,…`).
        kind: "image", "sound" or "video", as messages call it.
        limit: name of the limit of its bytes.
        error: the error to raise.

    Raises:
        Error: of the class `error`: it cannot be read, is empty, or exceeds the limit.
        OutOfMemory: there is no room for it.
    """
    most = getattr(limits, limit)
    if isinstance(source, (bytes, bytearray, memoryview)):
        name = f"the {kind}"
        if memoryview(source).nbytes > most:
            raise error(too_large(name, "", limit))
        data = bytes(source)
    elif isinstance(source, str) and source[:5].lower() == "data:":
        name = "the data URL"
        if len(source) > 4 * most:  # escaped, a byte takes three letters
            raise error(too_large(name, "", limit))
        data = _data_url(source, kind, limit, error)
    else:
        name = str(source)
        if name.lower().startswith(("http://", "https://")):
            raise error(f"{name:.200} is not fetched; download the {kind} and give its path")
        try:
            data = read_file(source, limit)
        except MissingFile:
            raise error(f"there is no file {name:.200}; check the path") from None
        except FormatError as reason:
            raise error(str(reason)) from None
    if not data:
        raise error(f"{name} is empty; give the bytes of a file with one {kind}")
    if len(data) > most:
        raise error(too_large(name, "", limit))
    return data, name


def _data_url(url: str, kind: str, limit: str, error: type[Error]) -> bytes:
    head, comma, body = url.partition(",")
    if not comma:
        form = {"sound": "audio/wav", "video": "video/mp4"}.get(kind, "image/png")
        raise error(f"a data URL looks like data:{form};base64,…; this one has no comma")
    if not head.lower().endswith(";base64"):
        return urllib.parse.unquote_to_bytes(body)
    return from_base64(urllib.parse.unquote(body), "the data URL", kind, limit, error)


def from_base64(text: str, name: str, kind: str, limit: str, error: type[Error]) -> bytes:
    """The bytes of base64, which may hold white space and lack its padding.

    Args:
        name, kind: of it and of the content, in messages.
        limit: name of the limit of its bytes, which are counted before they are decoded.
        error: the error to raise.

    Raises:
        Error: of the class `error`: it is no base64, or exceeds the limit.
    """
    text = "".join(text.split())
    if 3 * (len(text) - text[-2:].count("=")) // 4 > getattr(limits, limit):
        raise error(too_large(name, "", limit))
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except (binascii.Error, ValueError) as reason:
        raise error(f"{name} is no base64: {reason}; encode the {kind} again") from None


def read_stream(file: IO[bytes], name: str, limit: str) -> bytes:
    """All bytes of a stream.

    Args:
        limit: name of the limit of its bytes.

    Raises:
        FormatError: it exceeds the limit.
        OutOfMemory: there is no room for it.
        OSError: it cannot be read.
    """
    pieces, left = [], getattr(limits, limit)
    try:
        while piece := file.read(1 << 20):
            pieces.append(piece)
            left -= len(piece)
            if left < 0:
                raise FormatError(too_large(name, "", limit))
        return b"".join(pieces)
    except MemoryError:
        raise OutOfMemory(f"{name}: no memory for its text") from None


def decoded(data: bytes, name: str) -> str:
    """UTF-8 as text, less a byte order mark.

    Raises:
        FormatError: it is no UTF-8.
    """
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise FormatError(f"{name} is no UTF-8 at byte {error.start}; get the file again") from None


def read_json(path: Path, limit: str = "text_file_bytes") -> dict[str, Any]:
    """A JSON object in a file.

    Raises:
        MissingFile: there is no such file.
        FormatError: as `read_file` and `parse_json`.
        OutOfMemory: there is no room for it.
    """
    return parse_json(read_file(path, limit), str(path))


def parse_json(data: bytes, name: str) -> dict[str, Any]:
    """A JSON object. It takes up to 30 times the memory of its text.

    Raises:
        FormatError: it is no UTF-8, no JSON, no object, or nested too deeply.
        OutOfMemory: there is no room for it.
    """
    text = decoded(data, name)
    try:
        value = json.loads(text)
        deep = isinstance(value, dict) and _deeper(value, limits.json_depth)
    except RecursionError:
        deep = True
    except ValueError as error:  # of a number with too many digits, too
        raise FormatError(f"{name} is no valid JSON: {error}; get the file again") from None
    except MemoryError:
        raise OutOfMemory(f"{name}: no memory for JSON of {len(data):,} bytes") from None
    if deep:
        raise FormatError(
            f"{name} is nested too deeply; the limit json_depth is {limits.json_depth}"
        )
    if not isinstance(value, dict):
        raise FormatError(f"{name} should hold a JSON object, not {value!r:.80}; get it again")
    return value


def _deeper(value: Any, most: int) -> bool:
    """Whether more than `most` objects and lists lie within each other."""
    level = [value]
    for _ in range(most):
        level = [
            item
            for within in level
            for item in (within.values() if type(within) is dict else within)
            if type(item) is dict or type(item) is list
        ]
        if not level:
            return False
    return True
