"""Copying weights to where they are read: several at once, in pieces, until someone cancels."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from typing import Any

from ...errors import Cancelled
from ...gguf import TensorSource
from ...native import ffi, lib
from ..backend import Progress
from ..node import Node
from .hardware import Device

_CHUNK = 16 << 20  # bytes copied between two looks at `cancel`


@dataclass(frozen=True)
class Transfer:
    """A weight to be copied.

    Attributes:
        tensor: ggml's, which it goes to.
        whole: the memory takes a tensor in one piece only.
    """

    node: Node
    tensor: Any
    device: Device
    whole: bool

    @property
    def serial(self) -> bool:
        """Whether it must not go at the same time as others."""
        return self.device.serial


def transfer(
    source: TensorSource,
    transfers: Sequence[Transfer],
    threads: int,
    progress: Progress | None,
    cancel: Callable[[], bool] | None,
) -> None:
    """Copies the weights.

    Args:
        progress, cancel: see `Backend.load`; both are called in the caller's thread.

    Raises:
        Cancelled: by the caller; some weights have been copied and can be again.
    """
    total = sum(t.node.nbytes for t in transfers)
    done = 0
    stop = threading.Event()

    def check() -> None:
        if cancel is not None and cancel():
            raise Cancelled("loading was cancelled")

    def note(nbytes: int) -> None:
        nonlocal done
        done += nbytes
        if progress is not None and done < total:
            progress(done / total)

    def copy(piece: _Piece) -> int:
        return 0 if stop.is_set() else piece.copy()

    check()
    pieces = [p for t in transfers if not t.serial for p in _pieces(source, t)]
    with ThreadPoolExecutor(threads, "ggmodel-load") as pool:
        try:
            for future in as_completed([pool.submit(copy, piece) for piece in pieces]):
                note(future.result())
                if done < total:
                    check()
        except BaseException:
            stop.set()
            raise
    for t in transfers:
        for piece in _pieces(source, t) if t.serial else ():
            note(piece.copy())
            if done < total:
                check()
    if progress is not None:
        progress(1.0)


@dataclass(frozen=True)
class _Piece:
    data: memoryview
    tensor: Any
    start: int

    def copy(self) -> int:
        n = self.data.nbytes
        lib.ggml_backend_tensor_set(self.tensor, ffi.from_buffer(self.data), self.start, n)
        return n


def _pieces(source: TensorSource, t: Transfer) -> Iterator[_Piece]:
    data = source.data(t.node.name)
    step = data.nbytes if t.whole else _CHUNK
    for start in range(0, data.nbytes, step or 1):
        yield _Piece(data[start : start + step], t.tensor, start)
