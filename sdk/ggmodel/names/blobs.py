"""Blobs of our own store: files that are named by their digests; steps of what makes them."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from ..errors import ConfigError, FormatError, WriteError
from ..storage import atomic_write
from .ollama import own_root
from .store_files import SPARE, room_at

DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_CHUNK = 1 << 20
_EVERY = 16 << 20  # bytes after which a blob under way is looked at whether it still has room


@dataclass(frozen=True)
class Step:
    """A step of a long change, or how far it has come.

    Attributes:
        status: in Ollama's words.
        digest: of the blob that it is about; "" for none.
        total, completed: bytes; 0 where the step has no share.
    """

    status: str
    digest: str = ""
    total: int = 0
    completed: int = 0


Report = Callable[[Step], None]


def quiet(step: Step) -> None:
    """Reports nothing."""


def blob_path(digest: str) -> Path:
    """Where a blob lies, or would.

    Raises:
        ConfigError: it is no digest.
    """
    if not DIGEST.fullmatch(digest):
        raise ConfigError(
            f"invalid digest format: {digest[:100]!r}; give sha256: and 64 hexadecimal digits"
        )
    return own_root() / "blobs" / digest.replace(":", "-")


class _Hashing:
    """A file that hashes what is written to it, while the disk has room."""

    def __init__(self, file: BinaryIO):
        self._file, self._hash = file, hashlib.sha256()
        self._unchecked = 0

    def write(self, data: bytes) -> None:
        self._unchecked += len(data)
        if self._unchecked > _EVERY:
            check_room(self._unchecked)
            self._unchecked = 0
        self._file.write(data)
        self._hash.update(data)

    @property
    def digest(self) -> str:
        return f"sha256:{self._hash.hexdigest()}"


@contextmanager
def receive_blob(digest: str) -> Iterator[_Hashing]:
    """A file to write a blob to; it is kept if its content has the digest.

    Raises:
        ConfigError: it is no digest.
        FormatError: the content has another one.
        WriteError: it cannot be written.
    """
    path = blob_path(digest)
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as file:
        hashing = _Hashing(file)
        yield hashing
        if hashing.digest != digest:
            raise FormatError(f"the blob is {hashing.digest}, not {digest}; send it again")


def check_room(size: int) -> None:
    """Raises WriteError unless so many bytes have room in the store."""
    folder, free = room_at(own_root())
    if size + SPARE > free:
        raise WriteError(
            f"{folder} has {free:,} bytes left for {size:,}; set XDG_DATA_HOME to a folder "
            "elsewhere"
        )


def digest_of(path: Path) -> str:
    """The digest of a file's content."""
    hashed = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(_CHUNK):
            hashed.update(chunk)
    return f"sha256:{hashed.hexdigest()}"
