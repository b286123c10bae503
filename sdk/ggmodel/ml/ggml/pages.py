"""Pages of memory: zeros that cost nothing, and mapped files read ahead of their use."""

from __future__ import annotations

import ctypes
import mmap
import sys
from functools import lru_cache
from typing import Any

from ...native import ffi, lib

_POPULATE_READ = 22  # MADV_POPULATE_READ, of Linux 5.14, has no name in Python


def clear(buffer: Any) -> None:
    """Fills an unused buffer with zeros. It must be one of ggml's plain CPU buffers, which are the
    process's private memory: on Linux whole pages are given back, are zeros when they are looked at
    again, and take memory only from then on."""
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


def read_ahead(data: memoryview) -> None:
    """Has the system bring a part of a mapped file into memory, many pages at a time; does nothing
    where it cannot. Other threads run meanwhile."""
    if sys.platform == "linux" and data.nbytes:
        start = int(ffi.cast("uintptr_t", ffi.from_buffer(data)))
        first = start // mmap.PAGESIZE * mmap.PAGESIZE
        _advise(first, start + data.nbytes - first, _POPULATE_READ)


def _advise(address: int, nbytes: int, advice: int) -> bool:
    return _madvise()(address, nbytes, advice) == 0


@lru_cache(maxsize=1)
def _madvise() -> Any:
    function = ctypes.CDLL(None).madvise
    function.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return function
