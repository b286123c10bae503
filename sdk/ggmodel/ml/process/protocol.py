"""The protocol between a process and its child: messages, and graphs as plain data.

Before its answer the child may send log records, word of a worker's silence, and events, which the
parent answers with (go on, value). Everything is pickled: both ends are the same program. Tensor
sources travel as plain data, too.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import socket
import struct
import traceback
from collections.abc import Callable, Mapping
from io import BytesIO
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np

from ...errors import ComputeError, Error, GraphError
from ...gguf_file import GGUF, Array, DType, JoinedSource, MemorySource, TensorSource
from ...resources import closed_on_error
from ..backend import Backend
from ..graph import Graph
from ..node import Feed, HostData, Node, Site
from ..table import OPS, Op, Shape
from ..tensor import Tensor

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
        valid = issubclass(kind, Exception)
    except (TypeError, ValueError):
        valid = False
    if not valid:
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


Leaf = str | tuple[int, str]  # a weight by name, or a state by uid, with its name

# Attributes of a node that are sent, besides its shape and dtype. Values of inputs stay here.
_SENT = ("attrs", "base", "name", "nb", "offset", "op", "site", "sources")


def pack_graph(graph: Graph, leaf: Callable[[Node], Leaf]) -> bytes:
    """A graph as data.

    Args:
        leaf: gives the key of a weight or state.

    Raises:
        GraphError: an operand is neither in the graph nor a leaf.
    """
    content = graph.max_nodes, graph.batch_size, graph.inputs, graph.schedule
    file = BytesIO()
    _Packer(file, graph.inputs, leaf).dump(content)  # each op after all that it reads
    return file.getvalue()


class _Packer(pickle.Pickler):
    def __init__(self, file: BytesIO, inputs: list[Node], leaf: Callable[[Node], Leaf]):
        super().__init__(file, 5)
        self._leaf = leaf
        self._inputs: dict[int, Feed | HostData] = {
            node.uid: Feed(itemgetter(i), node.storage.trusted)
            if isinstance(node.storage, Feed)
            else HostData(np.empty(0))
            for i, node in enumerate(inputs)
        }

    def persistent_id(self, obj: Any) -> Leaf | None:
        is_leaf = isinstance(obj, Node) and obj.op is None and obj.uid not in self._inputs
        return self._leaf(obj) if is_leaf else None

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, Op):
            return _op, (obj.name,)
        if isinstance(obj, Site):
            return Site, (obj.file, obj.line, obj.function)
        if not isinstance(obj, Node):
            return NotImplemented
        values = (getattr(obj, name) for name in _SENT)
        return _node, (obj.ne, obj.dtype, self._inputs.get(obj.uid), *values)


def _op(name: str) -> Op:
    return OPS[name]


def _node(ne: Shape, dtype: DType, storage: Feed | HostData | None, *values: Any) -> Node:
    node = Tensor(ne, dtype)
    node.storage = storage
    for name, value in zip(_SENT, values, strict=True):
        setattr(node, name, value)
    return node


def unpack_graph(packed: bytes, backend: Backend, states: Mapping[int, Node]) -> Graph:
    """The graph for a backend. Feeds take their values from the step, a list.

    Args:
        states: the backend's, by the graph's uid of them.

    Raises:
        GraphError: a state is missing.
    """
    max_nodes, batch_size, inputs, schedule = _Unpacker(packed, backend, states).load()
    graph = Graph(backend, max_nodes)
    graph.batch_size, graph.inputs, graph.schedule = batch_size, inputs, schedule
    for node in (*inputs, *schedule):
        node.graph = graph
    return graph


class _Unpacker(pickle.Unpickler):
    def __init__(self, packed: bytes, backend: Backend, states: Mapping[int, Node]):
        super().__init__(BytesIO(packed))
        self._backend, self._states = backend, states

    def persistent_load(self, pid: Leaf) -> Node:
        if isinstance(pid, str):
            weight = self._backend.get(pid)
            assert weight is not None
            return weight
        uid, name = pid
        if uid not in self._states:
            raise GraphError(f"cache {name!r} was freed with its context or never allocated")
        self._states[uid].name = name
        return self._states[uid]


def describe(source: TensorSource) -> tuple[Any, ...]:
    """A source as data: files by path, others with all of their bytes."""
    if type(source) is GGUF:
        return ("gguf", os.path.abspath(source.files[0]))
    if type(source) is JoinedSource:
        return ("joined", describe(source.first), describe(source.second))
    tensors = {
        name: (info.dtype, info.shape, pickle.PickleBuffer(source.data(name)))
        for name, info in source.tensors.items()
    }
    metadata = {key: _plain(value) for key, value in source.metadata.items()}
    return ("memory", source.name, metadata, tensors)


def _plain(value: Any) -> Any:
    if not isinstance(value, Array):
        return value
    if value.dtype == "array":
        return value.tolist()
    return value.raw() if value.dtype == "string" else value.numpy()


def open_described(described: tuple[Any, ...]) -> TensorSource:
    """The inverse of `describe`.

    Raises:
        FormatError: a file is missing or has changed.
    """
    kind, *args = described
    if kind == "gguf":
        return GGUF(*args)
    if kind == "memory":
        name, metadata, tensors = args
        return MemorySource(metadata, tensors, name)
    first = open_described(args[0])
    with closed_on_error(first):
        return JoinedSource(first, open_described(args[1]))
