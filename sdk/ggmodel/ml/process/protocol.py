"""Messages between a process and its child.

Before its answer the child may send log records, word of a worker's silence, and events, which the
parent answers with (go on, value). Everything is pickled: both ends are the same program.
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
_ONCE = 16 << 20  # bytes that are made room for before any has come


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


class Silence(NamedTuple):
    """A worker has not answered for a while.

    Attributes:
        seconds: for how long. allowed: for how long it may; then the child ends.
    """

    endpoint: str
    seconds: float
    allowed: float

    @property
    def given_up(self) -> bool:
        """The child ends the connection, and with it itself."""
        return self.seconds >= self.allowed


Frame = list[Any]
_FIELDS: dict[type, tuple[type, ...]] = {
    Request: (int, str, tuple, list),
    Answer: (int, bool, object, list),
    Event: (int, str, tuple),
    Record: (str, int, str),
    Silence: (str, float, float),
}
FROM_CHILD = (Answer, Event, Record, Silence)


class Torn(OSError):
    """The bytes that came are no message."""


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
        OSError: the other end is gone, or sends what is no message (`Torn`).
    """

    def __init__(self, end: socket.socket):
        self._socket = end

    def send(self, frame: Frame) -> None:
        """Sends what `encode` made."""
        for piece in frame:
            self._socket.sendall(piece)

    def receive(self, *kinds: type) -> Any:
        """The next message, of one of these classes; waits for it."""
        message = self._decoded()
        kind = type(message)
        if kind not in kinds or not all(map(isinstance, message, _FIELDS[kind])):
            raise Torn(f"no message: {message!r:.80}")
        return message

    def receive_reply(self) -> tuple[bool, Any]:
        """The parent's answer to an event; waits for it."""
        reply = self._decoded()
        if type(reply) is not tuple or len(reply) != 2:
            raise Torn(f"no reply: {reply!r:.80}")
        return reply

    def _decoded(self) -> Any:
        try:
            size, count = _HEAD.unpack(self._read(_HEAD.size))
            sizes = struct.unpack(f"<{count}Q", self._read(8 * count))
            data = self._read(size)
            return pickle.loads(data, buffers=[self._read(n) for n in sizes])
        except (EOFError, OSError):
            raise
        except Exception as error:  # sizes beyond all memory, and whatever a torn pickle leads to
            raise Torn(f"no message: {type(error).__name__}: {error}") from error

    def _read(self, size: int) -> bytearray:
        # Memory for what has come, not for what a torn head promises.
        data, done = bytearray(min(size, _ONCE)), 0
        while True:
            with memoryview(data) as view:
                while done < len(view):
                    n = self._socket.recv_into(view[done:])
                    if not n:
                        raise EOFError
                    done += n
            if done == size:
                return data
            data.extend(bytes(min(size - done, done)))


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
    try:
        kind, args, attributes, bug = packed
        known = issubclass(kind, Exception)
    except (TypeError, ValueError):
        known = False
    if not known:
        return ComputeError(f"the process that computes sent no error, but {packed!r:.80}")
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
