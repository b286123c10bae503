"""Messages between a process and its child.

Before its answer the child may send log records, and events, which the parent answers with (go on,
value). Everything is pickled: both ends are the same program.
"""

from __future__ import annotations

import contextlib
import pickle
import socket
import struct
import traceback
from typing import Any, NamedTuple

from ...errors import ComputeError, Error

_HEAD = struct.Struct("<QI")  # bytes of the pickle, number of buffers that follow it
_APART = 1 << 16  # bytes from which on a buffer is sent without a copy


class Request(NamedTuple):
    """A request of the parent.

    Attributes:
        kind: a method of `child.Service`.
        dropped: numbers of graphs and backends to be freed first.
    """

    number: int
    kind: str
    args: tuple[Any, ...]
    dropped: list[int]


class Answer(NamedTuple):
    """The end of a request.

    Attributes:
        failed: `content` is an error, see `pack_error`, rather than the result.
        ended: numbers of graphs that can run no more.
    """

    number: int
    failed: bool
    content: Any
    ended: list[int]


class Event(NamedTuple):
    """A question of the child during a request."""

    number: int
    name: str
    args: tuple[Any, ...]


class Record(NamedTuple):
    """A log record."""

    logger: str
    level: int
    text: str


Frame = list[Any]


def encode(message: Any) -> Frame:
    """A message as pieces of bytes."""
    buffers: list[pickle.PickleBuffer] = []

    def inside(buffer: pickle.PickleBuffer) -> bool:
        if buffer.raw().nbytes < _APART:
            return True
        buffers.append(buffer)
        return False

    data = pickle.dumps(message, 5, buffer_callback=inside)
    views = [buffer.raw() for buffer in buffers]
    sizes = struct.pack(f"<{len(views)}Q", *(view.nbytes for view in views))
    return [_HEAD.pack(len(data), len(views)) + sizes + data, *views]


class Channel:
    """Sends and receives messages over a socket.

    Raises:
        EOFError: the other end is closed.
        OSError: the other end is gone.
    """

    def __init__(self, end: socket.socket):
        self._socket = end

    def send(self, frame: Frame) -> None:
        """Sends what `encode` made."""
        for piece in frame:
            self._socket.sendall(piece)

    def receive(self) -> Any:
        """The next message; waits for it."""
        size, count = _HEAD.unpack(self._read(_HEAD.size))
        sizes = struct.unpack(f"<{count}Q", self._read(8 * count))
        data = self._read(size)
        return pickle.loads(data, buffers=[self._read(n) for n in sizes])

    def _read(self, size: int) -> bytearray:
        data = bytearray(size)
        view, done = memoryview(data), 0
        while done < size:
            n = self._socket.recv_into(view[done:])
            if not n:
                raise EOFError
            done += n
        return data


def pack_error(error: Exception) -> tuple[Any, ...]:
    """An error as plain data: class, arguments, attributes and, for a bug, the traceback."""
    bug = "" if isinstance(error, Error) else "".join(traceback.format_exception(error))
    packed = (type(error), error.args, error.__dict__, bug)
    with contextlib.suppress(Exception):
        pickle.dumps(packed)
        return packed
    return (ComputeError, (f"{type(error).__name__}: {error}",), {}, bug)


def unpack_error(packed: tuple[Any, ...]) -> Exception:
    """The inverse of `pack_error`."""
    kind, args, attributes, bug = packed
    try:
        error: Exception = kind(*args)
    except TypeError:  # its constructor takes others
        error = ComputeError(f"{kind.__name__}: {', '.join(map(str, args))}")
    else:
        error.args = args
        error.__dict__.update(attributes)
    if bug:
        error.__cause__ = ComputeError(f"in the process that computes:\n{bug}")
    return error
