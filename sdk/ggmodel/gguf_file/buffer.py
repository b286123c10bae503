"""`Buffer`: the bytes of a file, mapped read-only, with checked access.

Every read of a file goes through here, so that a wrong length, count or offset always ends in a
`FormatError` with the file's name and the byte offset.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import stat
import struct
import sys
from pathlib import Path

from ..errors import Error, FormatError

U32 = struct.Struct("<I")
U64 = struct.Struct("<Q")


class MissingFile(FormatError, FileNotFoundError):
    """The file does not exist."""

    def __init__(self, message: str):
        super().__init__(message)
        self.errno = errno.ENOENT


class Buffer:
    """Read-only bytes with a name, and their mapping if they come from a file.

    Args:
        name: for messages, usually the path.
        data: the bytes; `close` releases a mapping.
    """

    __slots__ = ("_mapping", "_view", "name", "size")

    def __init__(self, name: str, data: bytes | mmap.mmap):
        self.name = name
        self._mapping = data if isinstance(data, mmap.mmap) else None
        self._view: memoryview | None = memoryview(data)
        self.size = len(data)

    @classmethod
    def open(cls, path: Path) -> Buffer:
        """Maps a file.

        The file descriptor is closed before this returns. (Before Python 3.13 the mapping holds a
        duplicate of it.)

        Raises:
            FormatError: no such file (`MissingFile`), no regular file, empty, or not readable.
        """
        try:
            # Before the file is opened: opening a pipe would wait for a writer for ever.
            mode = os.stat(path).st_mode
            if stat.S_ISDIR(mode):
                raise FormatError(f"{path} is a directory; give the path of a .gguf file in it")
            if not stat.S_ISREG(mode):
                raise FormatError(f"{path} is not a regular file; save it as a file first")
            with open(path, "rb", buffering=0) as file:
                size = os.fstat(file.fileno()).st_size
                if size == 0:
                    raise FormatError(f"{path} is empty (0 bytes); download or convert it again")
                return cls(str(path), _map(file.fileno(), size))
        except FileNotFoundError:
            raise MissingFile(
                f"{path} does not exist; check the path, or download the file first"
            ) from None
        except FormatError:
            raise
        except (OSError, ValueError, OverflowError) as e:
            reason = getattr(e, "strerror", None) or e
            raise FormatError(
                f"{path} cannot be read: {reason}; check the path and its permissions"
            ) from e

    @property
    def view(self) -> memoryview:
        """All bytes, read-only and not copied.

        Raises:
            Error: the buffer was closed.
        """
        if self._view is None:
            raise Error(f"{self.name} is closed; open it again, or read what you need before close")
        return self._view

    def release(self, start: int, nbytes: int) -> None:
        """Gives back the memory of whole pages among these bytes; the next access reads them from
        the file again. Does nothing without a mapping, or where the system cannot."""
        page = mmap.PAGESIZE
        begin, end = -(-start // page) * page, (start + nbytes) // page * page
        if self._mapping is not None and begin < end and hasattr(mmap, "MADV_DONTNEED"):
            self._mapping.madvise(mmap.MADV_DONTNEED, begin, end - begin)

    def close(self) -> None:
        """Releases the mapping, which is unmapped now or with the last view of it."""
        mapping, self._mapping, self._view = self._mapping, None, None
        if mapping is not None:
            # Memoryviews and numpy arrays may still refer to it, and keep it alive.
            with contextlib.suppress(BufferError):
                mapping.close()

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
        return U32.unpack_from(self.view, at)[0]

    def u64(self, at: int, what: str) -> int:
        self.need(at, 8, what)
        return U64.unpack_from(self.view, at)[0]

    def string(self, at: int, what: str) -> bytes:
        """The string with its length (u64) at `at`; it ends at `at + 8 + len(result)`."""
        length = self.u64(at, f"the length of {what}")
        self.need(at + 8, length, what)
        return bytes(self.view[at + 8 : at + 8 + length])

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


def _map(fd: int, size: int) -> mmap.mmap:
    if sys.version_info >= (3, 13):
        return mmap.mmap(fd, size, access=mmap.ACCESS_READ, trackfd=False)
    return mmap.mmap(fd, size, access=mmap.ACCESS_READ)
