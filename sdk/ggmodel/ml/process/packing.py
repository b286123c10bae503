"""Graphs and tensor sources as plain data, and back."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Mapping
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np

from ...closing import closed_on_error
from ...errors import GraphError
from ...gguf_file import GGUF, Array, DType, JoinedSource, MemorySource, TensorSource
from ..backend import Backend
from ..graph import Graph
from ..node import Node, Site
from ..storage import Feed, HostData
from ..table import OPS, Shape
from ..tensor import Tensor

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
