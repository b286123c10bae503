"""Mapped files that may shrink.

Reading a page that its file has lost raises SIGBUS, which ends the process. Within a `FileMapping`
such pages read as zeros instead, and the mapping is marked (see shim.c). On Windows no mapped file
shrinks.
"""

from __future__ import annotations

import logging
import mmap
import os
import sys
from collections.abc import Iterable
from functools import partial
from typing import Any

from ..errors import OutOfMemory
from ..platforms.files import handle, pread
from . import ffi, lib

_log = logging.getLogger("ggmodel.native")
_SAMPLES = 16  # blocks of a file that tell whether its content is another
_BLOCK = 4096  # bytes


class FileMapping(mmap.mmap):
    """A file, mapped read-only. It is unmapped with its last reference, views included.

    Args:
        fd: the file's descriptor.
        size: bytes, at least 1.
        keeps: lives as long as the mapping, and keeps the descriptor open if `changed` is asked.
        name: of the file, for messages.

    Raises:
        OSError: the system refuses.
        OutOfMemory: there is no memory for the guard.
    """

    _range: Any = None
    _ranges: Any = None
    _keeps: object = None
    _touched = False
    _fd: int
    _size: int
    _name: str
    _sample: int

    def __new__(
        cls, fd: int, size: int, keeps: object = None, name: str = "a mapped file"
    ) -> FileMapping:
        # Before Python 3.13 it holds a duplicate of the descriptor.
        untracked: Any = {"trackfd": False} if sys.version_info >= (3, 13) else {}
        self = super().__new__(cls, fd, size, access=mmap.ACCESS_READ, **untracked)
        self._range = lib.ggmodel_guard(ffi.from_buffer(self), size, handle(fd)) or None
        if self._range is None:
            raise OutOfMemory(f"no memory is left to map {size:,} bytes of a file")
        self._keeps, self._fd, self._size, self._name = keeps, fd, size, name
        self._sample = self._take_sample()
        self._ranges = ffi.new("void *[]", [self._range])
        return self

    def __init__(self, *args: object) -> None:
        super().__init__()

    @property
    def changed(self) -> bool:
        """Whether the file has changed: somebody has read a page that it no longer had, its size is
        another than at first, or it was written to and a sample of its content is another. It stays
        so. A new time of modification alone (`touch`) is no change, and is logged once. If other
        handlers of SIGBUS were installed since the last call, this one is put in front of them."""
        return lib.ggmodel_suspect(self._ranges, 1) and self._compare()

    def _compare(self) -> bool:
        """`changed`, for a file that has a new size or time of modification."""
        try:
            modified = os.fstat(self._fd).st_mtime_ns  # first: later writes are seen the next time
            same = self._take_sample() == self._sample
        except OSError:  # such as ESTALE of a network's file system
            modified, same = 0, False
        changed = lib.ggmodel_compared(self._range, same, modified)
        if not changed and not self._touched:
            self._touched = True
            _log.warning(
                "%s has a new time of modification while it is in use; its size and a sample of "
                "its content are as before, so work goes on",
                self._name,
            )
        return changed

    def _take_sample(self) -> int:
        """A hash of blocks that are spread over the file, the first and the last among them."""
        last = max(0, self._size - _BLOCK)
        starts = [last * i // (_SAMPLES - 1) // _BLOCK * _BLOCK for i in range(_SAMPLES - 1)]
        return hash(b"".join([pread(self._fd, _BLOCK, at) for at in (*starts, last)]))

    def close(self) -> None:
        """Does nothing: views may be in use, whose guard ends with the last of them."""

    def __del__(self, end: Any = lib.ggmodel_end_guard) -> None:
        if self._range is not None:
            end(self._range)


class Watch:
    """Mappings that are asked together whether their files have changed.

    Attributes:
        suspect: whether one of them may have; False is certain. Takes about a microsecond, and half
            of one a file.
    """

    def __init__(self, mappings: Iterable[FileMapping]):
        self._mappings = tuple(mappings)
        ranges = ffi.new("void *[]", [m._range for m in self._mappings])
        self.suspect = partial(lib.ggmodel_suspect, ranges, len(ranges))

    @property
    def changed(self) -> bool:
        """Whether one of them has `changed`."""
        return self.suspect() and any(mapping.changed for mapping in self._mappings)
