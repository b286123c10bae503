"""Bytes of files: opened, watched for changes, and read with checked access.

Every read of a file goes through a `Buffer`, so that a wrong length, count or offset always ends in
a `FormatError` with the file's name and the byte offset.
"""

from __future__ import annotations

import errno
import mmap
import os
import stat
import struct
import sys
import weakref
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import Error, FormatError, OutOfMemory
from ..platforms.files import pread
from ..reading import READ_FLAGS, MissingFile

if TYPE_CHECKING:
    from ..native.mapping import FileMapping


def has_changed(name: str) -> FormatError:
    """The error for a file that has changed since it was opened."""
    return FormatError(
        f"{name} has changed on disk while it was loaded, so its tensors cannot be trusted; load "
        "it again, and replace a model in use by a new file (mv), not in place (cp)"
    )


class OpenFile:
    """A regular file. Its descriptor is closed with the last reference; a mapping is one.

    Args:
        path: of the file.

    Attributes:
        name: the path.
        size: bytes when it was opened, at least 1.

    Raises:
        FormatError: no such file (`MissingFile`), no regular file, empty, or not readable.
    """

    __slots__ = ("__weakref__", "_changed", "_fd", "_mapping", "_modified", "name", "size")

    def __init__(self, path: Path):
        self.name = str(path)
        self._fd = -1
        self._changed = False
        self._mapping: weakref.ref[FileMapping] | None = None
        try:
            self._fd = os.open(path, READ_FLAGS)
            status = os.fstat(self._fd)
            if stat.S_ISDIR(status.st_mode):
                raise FormatError(f"{path} is a directory; give the path of a .gguf file in it")
            if not stat.S_ISREG(status.st_mode):
                raise FormatError(f"{path} is not a regular file; save it as a file first")
        except FileNotFoundError:
            raise MissingFile(
                f"{path} does not exist; check the path, or download the file first"
            ) from None
        except FormatError:
            raise
        except (OSError, ValueError) as error:
            raise self._unreadable(error) from error
        self.size, self._modified = status.st_size, status.st_mtime_ns
        if self.size == 0:
            raise FormatError(f"{path} is empty (0 bytes); download or convert it again")

    def read(self, at: int, n: int) -> bytes:
        """The n bytes from byte `at`, all within the file.

        Raises:
            FormatError: the file has changed since it was opened, or cannot be read.
        """
        pieces: list[bytes] = []
        try:
            while n:
                pieces.append(pread(self._fd, n, at))
                if not pieces[-1]:
                    self._changed = True
                    break
                at, n = at + len(pieces[-1]), n - len(pieces[-1])
        except OSError as error:
            raise self._unreadable(error) from error
        self.check()
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def map(self) -> FileMapping:
        """Maps the file.

        Raises:
            FormatError: the file has changed since it was opened, or the system refuses.
            OutOfMemory: there is no room for it.
            NativeError: there is no ggml, whose binding guards mappings.
        """
        from ..native.mapping import FileMapping  # loads ggml, which metadata do without

        try:
            mapping = FileMapping(self._fd, self.size, self, self.name)
        except (OSError, ValueError, OverflowError) as error:
            self.check()
            if getattr(error, "errno", None) == errno.ENOMEM:
                raise OutOfMemory(
                    f"{self.name} takes {self.size:,} bytes of address space, and less is left; "
                    "see `ulimit -v`"
                ) from None
            raise self._unreadable(error) from error
        self._changed |= self._differs()  # the mapping itself has seen nothing yet
        self.check()
        self._mapping = weakref.ref(mapping)
        return mapping

    def check(self) -> None:
        """Compares size and time of modification with those when the file was opened. A mapped
        file with another time and the same content, as far as `FileMapping.changed` sees, has not
        changed.

        Raises:
            FormatError: the file has changed; the same from then on.
        """
        if not self._changed:
            mapping = self._mapping and self._mapping()
            self._changed = self._differs() if mapping is None else mapping.changed
        if self._changed:
            raise has_changed(self.name)

    def _differs(self) -> bool:
        try:
            now = os.fstat(self._fd)
        except OSError:  # such as ESTALE, after a server has removed the file
            return True
        return (now.st_size, now.st_mtime_ns) != (self.size, self._modified)

    def _unreadable(self, error: Exception) -> FormatError:
        reason = getattr(error, "strerror", None) or error
        return FormatError(
            f"{self.name} cannot be read: {reason}; check the path and its permissions"
        )

    def __del__(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


U32 = struct.Struct("<I")
U64 = struct.Struct("<Q")
_WINDOW = 1 << 16  # bytes read at once


class Buffer:
    """Read-only bytes with a name: in memory, or of a file, which is read piece by piece and mapped
    for `view` alone.

    Args:
        name: for messages, usually the path.
        data: the bytes, or a file.
    """

    __slots__ = ("_data", "_file", "_mapping", "_window", "name", "size")

    def __init__(self, name: str, data: bytes | OpenFile):
        self.name = name
        self._file: OpenFile | weakref.ref[OpenFile] | None = None
        self._data: bytes | None = None
        if isinstance(data, OpenFile):
            self._file, self.size = data, data.size
        else:
            self._data, self.size = data, len(data)
        self._mapping: FileMapping | None = None
        self._window = (0, self._data or b"")  # offset, bytes; replaced as one

    @classmethod
    def open(cls, path: Path) -> Buffer:
        """Opens a file, whose descriptor stays open until the buffer is closed and no view is left.

        Raises:
            FormatError: no such file (`MissingFile`), no regular file, empty, or not readable.
        """
        return cls(str(path), OpenFile(path))

    @property
    def view(self) -> memoryview:
        """All bytes, read-only and not copied. A page that the file has lost reads as zeros, and
        `check` raises from then on.

        Raises:
            Error: the buffer was closed.
            FormatError, OutOfMemory, NativeError: see `OpenFile.map`.
        """
        if self._data is not None:
            return memoryview(self._data)
        mapping = self._mapping
        if mapping is None:
            mapping = self._mapping = self._opened().map()
        return memoryview(mapping)

    def read(self, at: int, n: int) -> bytes:
        """The n bytes from byte `at`, which `need` has checked.

        Raises:
            Error: the buffer was closed.
            FormatError: the file has changed since it was opened, or cannot be read.
        """
        if self._data is not None:
            return self._data[at : at + n]
        return self._opened().read(at, n)

    def near(self, at: int, n: int) -> tuple[bytes, int]:
        """Some bytes with the n from byte `at` among them, if there are as many, and the place of
        `at`; raises as `read`."""
        if n > _WINDOW:
            return self.read(at, n), 0
        start, data = self._window
        if not start <= at <= at + n <= start + len(data):
            start, data = at, self.read(at, max(0, min(_WINDOW, self.size - at)))
            self._window = start, data
        return data, at - start

    def check(self) -> None:
        """Raises `FormatError` if the file has changed since it was opened; also after `close`,
        while views are left."""
        file = self._file
        if isinstance(file, weakref.ref):
            file = file()
        if file is not None:
            file.check()

    def release(self, start: int, nbytes: int) -> None:
        """Gives back the memory of whole pages among these bytes; the next access reads them from
        the file again. Does nothing without a mapping, or where the system cannot."""
        page = mmap.PAGESIZE
        begin, end = -(-start // page) * page, (start + nbytes) // page * page
        if sys.platform != "win32" and self._mapping is not None and begin < end:
            self._mapping.madvise(mmap.MADV_DONTNEED, begin, end - begin)

    def close(self) -> None:
        """Closes the file, now or with the last view of it."""
        if isinstance(self._file, OpenFile):
            self._window = (0, b"")
            # Memoryviews and numpy arrays may still refer to the mapping, and keep it.
            self._mapping, self._file = None, weakref.ref(self._file)

    def _opened(self) -> OpenFile:
        if not isinstance(self._file, OpenFile):
            raise Error(f"{self.name} is closed; open it again, or read what you need before close")
        return self._file

    def error(self, at: int, message: str) -> FormatError:
        """The error for byte `at`."""
        return FormatError(f"{self.name}: at byte {at}: {message}")

    def need(self, at: int, n: int, what: str) -> None:
        """Checks that `n` bytes follow byte `at`."""
        if n > self.size - at:
            raise self.error(
                at,
                f"{what} needs {n} bytes but the file has {max(self.size - at, 0)} left "
                f"({self.size} in all); it is truncated or damaged, download or convert it again",
            )

    def u32(self, at: int, what: str) -> int:
        self.need(at, 4, what)
        return U32.unpack_from(*self.near(at, 4))[0]

    def u64(self, at: int, what: str) -> int:
        self.need(at, 8, what)
        return U64.unpack_from(*self.near(at, 8))[0]

    def string(self, at: int, what: str) -> bytes:
        """The string with its length (u64) at `at`; it ends at `at + 8 + len(result)`."""
        length = self.u64(at, f"the length of {what}")
        self.need(at + 8, length, what)
        data, start = self.near(at + 8, length)
        return data[start : start + length]

    def identifier(self, at: int, what: str) -> tuple[str, int]:
        """A key or tensor name at `at`, and the offset after it."""
        raw = self.string(at, what)
        try:
            return raw.decode("utf-8"), at + 8 + len(raw)
        except UnicodeDecodeError as e:
            raise self.error(at + 8 + e.start, f"{what} is not UTF-8: {quote(raw)}") from None


def quote(text: str | bytes) -> str:
    """`repr` for messages, cut short: a hostile name may be as long as its file."""
    return repr(text) if len(text) <= 80 else f"{text[:80]!r}… ({len(text)} long)"
