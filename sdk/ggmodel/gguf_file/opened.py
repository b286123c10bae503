"""`OpenFile`: a file that is read or mapped, and watched for changes."""

from __future__ import annotations

import errno
import os
import stat
import weakref
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import FormatError, OutOfMemory
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
            found = os.fstat(self._fd)
            if stat.S_ISDIR(found.st_mode):
                raise FormatError(f"{path} is a directory; give the path of a .gguf file in it")
            if not stat.S_ISREG(found.st_mode):
                raise FormatError(f"{path} is not a regular file; save it as a file first")
        except FileNotFoundError:
            raise MissingFile(
                f"{path} does not exist; check the path, or download the file first"
            ) from None
        except FormatError:
            raise
        except (OSError, ValueError) as error:
            raise self._unreadable(error) from error
        self.size, self._modified = found.st_size, found.st_mtime_ns
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
