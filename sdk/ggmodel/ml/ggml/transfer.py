"""Copies weights into their buffers: several at once, in pieces that can be cancelled."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from itertools import chain
from queue import SimpleQueue
from typing import Any

import numpy as np

from ...errors import Cancelled
from ...gguf_file import TensorSource
from ...native import ffi, lib
from ..backend import Progress
from ..node import Node
from . import pages
from .memory import Device

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
                pages.prepare(int(ffi.cast("uintptr_t", t.tensor.data)), t.node.nbytes)
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
