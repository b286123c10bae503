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
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np

from ...errors import ComputeError, Error, GraphError
from ...gguf_file import GGUF, Array, DType, JoinedSource, MemorySource, TensorSource
from ...resources import closed_on_error
from ..backend import Backend
from ..graph import Graph
from ..node import Feed, HostData, Node, Site
from ..table import OPS, Shape
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


Line = tuple[str, int, str] | None  # a `Site`
Leaf = str | tuple[int, str]  # a weight by name, or a state by uid, with its name

_NONE = -1  # the number of an absent operand


class PackedInput(NamedTuple):
    """A feed, or the host's values."""

    name: str
    ne: Shape
    dtype: DType
    fed: bool
    trusted: bool
    site: Line


class PackedOp(NamedTuple):
    """An op of the schedule; operands and base are numbers in the graph's table."""

    op: str
    sources: tuple[int, ...]
    attrs: dict[str, Any]
    name: str
    ne: Shape
    dtype: DType
    nb: Shape
    base: int
    offset: int
    site: Line


class PackedGraph(NamedTuple):
    """A graph as a table without references: inputs, leaves, then ops in order of execution.

    Attributes:
        outputs: numbers in the table.
    """

    max_nodes: int
    batch_size: int
    inputs: list[PackedInput]
    leaves: list[Leaf]
    ops: list[PackedOp]
    outputs: list[int]


def pack_graph(
    graph: Graph, outputs: tuple[Node, ...], leaf: Callable[[Node], Leaf]
) -> tuple[PackedGraph, dict[int, int]]:
    """A graph as data.

    Args:
        leaf: gives the key of a weight or state.

    Returns:
        The data, and the numbers of inputs and ops by uid.

    Raises:
        GraphError: an operand is neither in the graph nor a leaf.
    """
    inputs = [_pack_input(node) for node in graph.inputs]
    places = {node.uid: i for i, node in enumerate(graph.inputs)}
    found: dict[int, Node] = {}
    for node in graph.schedule:
        for x in node.sources:
            if x is not None and x.op is None and x.uid not in places:
                found[x.uid] = x
    leaves = [leaf(x) for x in found.values()]
    table = places | {uid: len(inputs) + i for i, uid in enumerate(found)}
    ops: list[PackedOp] = []
    for node in graph.schedule:
        assert node.op is not None
        sources = tuple(_NONE if x is None else table[x.uid] for x in node.sources)
        base = _NONE if node.base is None else table[node.base.uid]
        table[node.uid] = places[node.uid] = len(table)
        ops.append(
            PackedOp(
                node.op.name, sources, node.attrs, node.name, node.ne, node.dtype, node.nb,
                base, node.offset, _line(node.site),
            )
        )  # fmt: skip
    wanted = [places[node.uid] for node in outputs if node.uid in places]
    return PackedGraph(graph.max_nodes, graph.batch_size, inputs, leaves, ops, wanted), places


def _pack_input(node: Node) -> PackedInput:
    fed = isinstance(node.storage, Feed)
    trusted = isinstance(node.storage, Feed) and node.storage.trusted
    return PackedInput(node.name, node.ne, node.dtype, fed, trusted, _line(node.site))


def _line(site: Site | None) -> Line:
    return None if site is None else (site.file, site.line, site.function)


def unpack_graph(
    packed: PackedGraph, backend: Backend, states: Mapping[int, Node]
) -> tuple[Graph, list[Node]]:
    """The graph for a backend, and its table. Feeds take their values from the step, a list.

    Args:
        states: the backend's, by the graph's uid of them.

    Raises:
        GraphError: a state is missing.
    """
    graph = Graph(backend, packed.max_nodes)
    graph.batch_size = packed.batch_size
    table: list[Node] = []
    for i, x in enumerate(packed.inputs):
        node = Tensor(x.ne, x.dtype, name=x.name)
        node.storage = Feed(itemgetter(i), x.trusted) if x.fed else HostData(np.empty(0))
        node.graph, node.site = graph, _site(x.site)
        table.append(node)
    graph.inputs = list(table)
    table += [_unpack_leaf(leaf, backend, states) for leaf in packed.leaves]
    for x in packed.ops:
        node = Tensor(x.ne, x.dtype, name=x.name, nb=x.nb)
        node.op, node.attrs, node.offset = OPS[x.op], x.attrs, x.offset
        node.sources = tuple(None if i == _NONE else table[i] for i in x.sources)
        node.base = None if x.base == _NONE else table[x.base]
        node.graph, node.site = graph, _site(x.site)
        table.append(node)
        graph.schedule.append(node)
    return graph, table


def _unpack_leaf(leaf: Leaf, backend: Backend, states: Mapping[int, Node]) -> Node:
    if isinstance(leaf, str):
        weight = backend.get(leaf)
        assert weight is not None
        return weight
    uid, name = leaf
    if uid not in states:
        raise GraphError(f"cache {name!r} was freed with its context or never allocated")
    states[uid].name = name
    return states[uid]


def _site(line: Line) -> Site | None:
    return None if line is None else Site(*line)


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
