"""Transfers of weights into their buffers: several at once, in pieces that can be cancelled.

Pages of memory are zeroed without cost, and mapped files read ahead of their use.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from queue import SimpleQueue
from typing import Any

import numpy as np

from ...errors import Cancelled
from ...gguf_file import TensorInfo, TensorSource
from ...native import ffi, lib
from ..backend import Progress
from ..node import Node
from .memory import Device

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


_CHUNK = 16 << 20  # bytes copied between two calls of `cancel`


@dataclass(frozen=True)
class Transfer:
    """A weight to be copied.

    Attributes:
        tensor: ggml's tensor, the destination.
        whole: the memory takes a tensor in one piece only.
    """

    node: Node
    tensor: Any
    device: Device
    whole: bool


def transfer(
    source: TensorSource,
    transfers: Sequence[Transfer],
    threads: int,
    progress: Progress | None,
    cancel: Callable[[], bool] | None,
) -> None:
    """Copies the weights, and releases their memory in the source.

    Args:
        progress, cancel: see `Backend.load`; both are called in the caller's thread.

    Raises:
        Cancelled: by the caller; the copy can be repeated.
    """
    total, done = sum(t.node.nbytes for t in transfers), 0
    with closing(_Staging()) as staging, ThreadPoolExecutor(threads, "ggmodel-load") as pool:
        copying = _Copying(source, staging)
        together = [t for t in transfers if not t.device.serial]
        in_turn = [t for t in transfers if t.device.serial]
        try:
            _check(cancel)
            for n in chain(copying.together(pool, together), copying.in_turn(in_turn)):
                done += n
                if done < total:
                    if progress is not None:
                        progress(done / total)
                    _check(cancel)
        finally:
            copying.stop.set()
    if progress is not None:
        progress(1.0)


class _Copying:
    """Copies of weights; both methods yield the bytes of each copied piece.

    Attributes:
        stop: once set, threads end after the piece under way.
    """

    def __init__(self, source: TensorSource, staging: _Staging):
        self._source, self._staging = source, staging
        self._finished: SimpleQueue[int | BaseException] = SimpleQueue()
        self.stop = threading.Event()

    def together(self, pool: Executor, transfers: Sequence[Transfer]) -> Iterator[int]:
        for t in transfers:
            pool.submit(self._copy, t)
        left = sum(t.node.nbytes for t in transfers)
        while left:
            n = self._finished.get()
            if isinstance(n, BaseException):
                raise n
            left -= n
            yield n

    def _copy(self, t: Transfer) -> None:
        try:
            if t.whole and not self.stop.is_set():
                prepare(int(ffi.cast("uintptr_t", t.tensor.data)), t.node.nbytes)
            for piece in () if self.stop.is_set() else _pieces(self._source, t):
                if self.stop.is_set():
                    return
                self._finished.put(piece.copy(self._staging))
            self._source.release(t.node.name)
        except BaseException as error:
            self._finished.put(error)

    def in_turn(self, transfers: Sequence[Transfer]) -> Iterator[int]:
        for t in transfers:
            for piece in _pieces(self._source, t):
                yield piece.copy(self._staging)
            self._source.release(t.node.name)


def _check(cancel: Callable[[], bool] | None) -> None:
    if cancel is not None and cancel():
        raise Cancelled("loading was cancelled")


class _Staging:
    """Pinned system memory, a piece for each thread and device: devices read it much faster."""

    def __init__(self) -> None:
        self._memory: dict[tuple[int, Device], Any] = {}

    def through(self, device: Device, data: memoryview) -> Any:
        """An address from which the device can read: a pinned copy, or the data themselves."""
        key = threading.get_ident(), device
        if key not in self._memory:
            kind = lib.ggml_backend_dev_host_buffer_type(device.handle)
            self._memory[key] = lib.ggml_backend_buft_alloc_buffer(kind, _CHUNK) if kind else None
        memory = self._memory[key]
        if not memory:
            return ffi.from_buffer(data)
        base = lib.ggml_backend_buffer_get_base(memory)
        pinned = np.frombuffer(ffi.buffer(base, data.nbytes), np.uint8)
        pinned[:] = np.frombuffer(data, np.uint8)
        return base

    def close(self) -> None:
        for memory in self._memory.values():
            if memory:
                lib.ggml_backend_buffer_free(memory)
        self._memory.clear()


@dataclass(frozen=True)
class _Piece:
    data: memoryview
    to: Transfer
    start: int

    def copy(self, staging: _Staging) -> int:
        n = self.data.nbytes
        data = staging.through(self.to.device, self.data)
        lib.ggml_backend_tensor_set(self.to.tensor, data, self.start, n)
        return n


def _pieces(source: TensorSource, t: Transfer) -> Iterator[_Piece]:
    data = source.data(t.node.name)
    step = data.nbytes if t.whole else _CHUNK
    for start in range(0, data.nbytes, step or 1):
        yield _Piece(data[start : start + step], t, start)
