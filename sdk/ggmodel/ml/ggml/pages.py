"""Pages of memory: zeroing without cost, and reading mapped files ahead of their use."""

from __future__ import annotations

import ctypes
import mmap
import sys
import threading
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from ...gguf_file import TensorInfo, TensorSource
from ...native import ffi, lib

_POPULATE_READ, _POPULATE_WRITE = 22, 23  # of Linux 5.14; they have no names in Python
_PIECE = 64 << 20  # bytes read between two checks of `stop`
_GAP = 1 << 16  # gaps up to so many bytes are read too


def clear(buffer: Any) -> None:
    """Fills an unused buffer with zeros. It must be one of ggml's plain CPU buffers, which are
    private memory: on Linux whole pages are given back; they read as zeros and take memory only
    when they are used again."""
    base = int(ffi.cast("uintptr_t", lib.ggml_backend_buffer_get_base(buffer)))
    end = base + lib.ggml_backend_buffer_get_size(buffer)
    first, last = -(-base // mmap.PAGESIZE) * mmap.PAGESIZE, end // mmap.PAGESIZE * mmap.PAGESIZE
    if (
        sys.platform == "linux"
        and first < last
        and _advise(first, last - first, mmap.MADV_DONTNEED)
    ):
        ctypes.memset(base, 0, first - base)
        ctypes.memset(last, 0, end - last)
    else:
        lib.ggml_backend_buffer_clear(buffer, 0)


class ReadAhead:
    """A thread that reads tensors of mapped files into memory.

    Ends by itself, or with `stop`; until then it keeps the files mapped.
    """

    def __init__(self, source: TensorSource, tensors: Iterable[TensorInfo]):
        self._stop = threading.Event()
        self._pieces = pieces(source, tensors)
        self._thread = threading.Thread(target=self._run, name="ggmodel-read-ahead", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        for piece in self._pieces:
            if self._stop.is_set():
                return
            populate(piece)

    def stop(self) -> None:
        """Ends the thread and waits for it; idempotent."""
        self._stop.set()
        self._thread.join()
        self._pieces.clear()


def pieces(source: TensorSource, tensors: Iterable[TensorInfo]) -> list[memoryview]:
    """The parts of the mapped files that hold the tensors, in file order: neighbours joined, cut
    into at most `_PIECE` bytes."""
    spans: list[tuple[int, int, int]] = []  # file, begin, end
    for t in sorted(tensors, key=lambda t: (t.file, t.offset)):
        begin, end = t.offset, t.offset + t.nbytes
        if spans and spans[-1][0] == t.file and begin - spans[-1][2] <= _GAP:
            begin = spans.pop()[1]
        spans.append((t.file, begin, end))
    return [
        view[at : min(at + _PIECE, end)]
        for file, begin, end in spans
        if (view := source.mapped(file)) is not None
        for at in range(begin, end, _PIECE)
    ]


def populate(data: memoryview) -> None:
    """Reads a part of a mapped file into memory, many pages at a time, while other threads run;
    does nothing where the system cannot."""
    if sys.platform == "linux" and data.nbytes:
        start = int(ffi.cast("uintptr_t", ffi.from_buffer(data)))
        first = start // mmap.PAGESIZE * mmap.PAGESIZE
        _advise(first, start + data.nbytes - first, _POPULATE_READ)


def prepare(address: int, nbytes: int) -> None:
    """Makes the system provide pages of private memory before they are written: many at a time cost
    half as much as one at a time. Does nothing where the system cannot."""
    first, last = -(-address // mmap.PAGESIZE), (address + nbytes) // mmap.PAGESIZE
    if sys.platform == "linux" and first < last:
        _advise(first * mmap.PAGESIZE, (last - first) * mmap.PAGESIZE, _POPULATE_WRITE)


def _advise(address: int, nbytes: int, advice: int) -> bool:
    return _madvise()(address, nbytes, advice) == 0


@lru_cache(maxsize=1)
def _madvise() -> Any:
    function = ctypes.CDLL(None).madvise
    function.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return function
