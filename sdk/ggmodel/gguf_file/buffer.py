"""`Buffer`: the bytes of a file, with checked access.

Every read of a file goes through here, so that a wrong length, count or offset always ends in a
`FormatError` with the file's name and the byte offset.
"""

from __future__ import annotations

import mmap
import struct
import sys
import weakref
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import Error, FormatError
from .opened import OpenFile

if TYPE_CHECKING:
    from ..native.mapping import FileMapping

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
