"""Files of a prefix store: found by name, checked when they are read, bounded in size.

Any number of processes share a folder. A file appears whole, by renaming, and never changes. Its
digest is checked at each reading, so that nothing depends on what a crash or a full disk left:
a file that is damaged or gone is one that is not there. Those used longest ago are removed.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import struct
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from ...errors import WriteError
from ...platforms import files
from ...storage import locked

_MAGIC = b"ggmodel prefix 1\n"
_DIGEST = 32  # bytes
_PART = ".part"  # ends names of files that are being written
_LEFT = 3600.0  # seconds after which such a file is left over
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | files.NO_LINKS | files.BINARY
_BLOCK = 4096  # bytes, what a small file takes on a disk
_DOWN_TO = 0.9  # of the room, after files were removed
_FREE = 0.9  # of what is free, at most, is taken
_LOOK_AGAIN = 0.125  # of the room: so much written, and what others wrote is counted again
_KINDS = {"|u1", "|b1", "<i4"}


class PrefixFiles:
    """A folder of arrays. A name is "FOLDER/FILE".

    Args:
        folder: made where there is none, for this user alone.
        limit: bytes of all files, at most.

    Attributes:
        removed: files that this object removed, of damaged or old ones.

    Raises:
        WriteError: the folder cannot be made.
    """

    def __init__(self, folder: Path, limit: int):
        self.folder, self.limit, self.removed = folder, limit, 0
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise WriteError(
                f"the prefix store {folder} cannot be made: {error.strerror}; give another folder"
            ) from error
        self._room = self._written = 0  # bytes until files are counted again
        self._held = 0

    def has(self, name: str) -> bool:
        """Whether there is such a file."""
        return os.path.exists(self.folder / name)

    def read(self, name: str) -> list[np.ndarray] | None:
        """The arrays of a file, read-only; None if it is not there. A damaged one is removed."""
        path = self.folder / name
        try:
            data = path.read_bytes()
        except OSError:
            return None
        arrays = unpacked(name, data)
        if arrays is None:
            self._remove(path)
        return arrays

    def write(self, name: str, arrays: Sequence[np.ndarray]) -> bool:
        """Writes a file; False if it cannot be, on a full disk, say."""
        path = self.folder / name
        pieces = packed(name, arrays)
        size = _on_disk(sum(len(piece) for piece in pieces))
        if not self._make_room(size):
            return False
        partial = path.with_name(f"{os.urandom(8).hex()}{_PART}")
        try:
            path.parent.mkdir(mode=0o700, exist_ok=True)
            with open(os.open(partial, _NEW, 0o600), "wb", buffering=0) as file:
                for piece in pieces:
                    _write(file.fileno(), piece)
            os.replace(partial, path)
        except OSError:
            with suppress(OSError):
                partial.unlink(missing_ok=True)
            self._room = 0  # the disk may be full: count again
            return False
        self._held, self._written = self._held + size, self._written + size
        return True

    def touch(self, names: Iterable[str]) -> None:
        """Notes that these files were used, the last one last."""
        for name in names:
            with suppress(OSError):
                os.utime(self.folder / name)

    def _make_room(self, size: int) -> bool:
        """Whether so many bytes fit, perhaps after old files are removed."""
        if self._held + size <= self._room and self._written < self._room * _LOOK_AGAIN:
            return True
        entries = sorted(self._entries())
        self._written, self._held = 0, sum(size for _, size, _ in entries)
        self._room = self.limit
        with suppress(OSError):
            free = shutil.disk_usage(self.folder).free
            self._room = min(self.limit, self._held + int(_FREE * free))
        if self._held + size <= self._room or size > _DOWN_TO * self._room:
            return self._held + size <= self._room
        # Without the lock another process is removing files.
        with suppress(WriteError), locked(self.folder / "lock", "removing old prefixes", 0.0):
            for _, freed, path in entries:
                if self._held + size <= _DOWN_TO * self._room:
                    break
                self._remove(Path(path))
                self._held -= freed
        return self._held + size <= self._room

    def _entries(self) -> Iterator[tuple[int, int, str]]:
        """The time of use, size and path of each file; leftovers are removed."""
        for folder in self._folders():
            with suppress(OSError), os.scandir(folder) as entries:
                for entry in entries:
                    with suppress(OSError):
                        status = entry.stat(follow_symlinks=False)
                        if not entry.name.endswith(_PART):
                            yield status.st_mtime_ns, _on_disk(status.st_size), entry.path
                        elif time.time() - status.st_mtime > _LEFT:
                            os.unlink(entry.path)

    def _folders(self) -> list[str]:
        with suppress(OSError), os.scandir(self.folder) as entries:
            return [one.path for one in entries if one.is_dir(follow_symlinks=False)]
        return []

    def _remove(self, path: Path) -> None:
        with suppress(OSError):  # another process was faster, or has it open on Windows
            path.unlink()
            self.removed += 1


def _on_disk(size: int) -> int:
    return -(-size // _BLOCK) * _BLOCK


def _write(number: int, data: memoryview) -> None:
    while len(data):
        data = data[os.write(number, data) :]


def _digest(name: str, data: Iterable[memoryview]) -> bytes:
    digest = hashlib.blake2b(name.encode() + b"\0", digest_size=_DIGEST)
    for piece in data:
        digest.update(piece)
    return digest.digest()


def packed(name: str, arrays: Sequence[np.ndarray]) -> list[memoryview]:
    """A file: the magic bytes, a digest of its name and of all that follows, the length of a
    description, the description, and the arrays."""
    about = json.dumps([[array.dtype.str, array.shape] for array in arrays]).encode()
    whole = [np.ascontiguousarray(array).reshape(-1).view(np.uint8) for array in arrays]
    data = [array.data for array in whole if array.size]
    content = [memoryview(struct.pack("<I", len(about))), memoryview(about), *data]
    return [memoryview(_MAGIC + _digest(name, content)), *content]


def unpacked(name: str, data: bytes) -> list[np.ndarray] | None:
    """The arrays of a file; None unless its content is what was written under this name."""
    start = len(_MAGIC) + _DIGEST
    content = memoryview(data)[start:]
    if data[:start] != _MAGIC + _digest(name, [content]) or len(content) < 4:
        return None
    (length,) = struct.unpack_from("<I", content)
    at, arrays = start + 4 + length, list[np.ndarray]()
    try:
        for kind, shape in json.loads(bytes(content[4 : 4 + length])):
            if kind not in _KINDS:
                return None
            count = int(np.prod(shape, dtype=np.int64))
            arrays.append(np.frombuffer(data, kind, count, at).reshape(shape))
            at += arrays[-1].nbytes
    except (ValueError, TypeError):
        return None
    return arrays if at == len(data) else None
