"""The base of every tensor: its place in the recorded graph, its layout, its host value."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, TypeVar

from ..errors import GraphError, TensorError
from ..gguf_file.types import DType
from .graph import Graph, Site, call_site, current_graph, tracing
from .storage import Feed, HostData, State, Weight
from .table import (
    OPS,
    Layout,
    Mismatch,
    Op,
    Operand,
    Shape,
    contiguous_strides,
    need_possible,
    tidy_strides,
    trim,
)

if TYPE_CHECKING:
    import numpy as np

_uids = itertools.count(1)
T = TypeVar("T", bound="Node")


class Node:
    """A tensor: either the result of an op, or a leaf with a storage.

    Attributes:
        ne: all four dims, dim 0 fastest. nb: strides in bytes.
        op, sources, attrs: how it is computed; op is None for a leaf.
        storage: the source of a leaf's value.
        base, offset: for a view, the tensor that owns the memory and the byte it begins at.
        graph: the graph it belongs to; None for weights and states, which serve every graph.
        site: the model's source line that made it.
    """

    __slots__ = (
        "attrs",
        "base",
        "dtype",
        "graph",
        "name",
        "named",
        "nb",
        "ne",
        "offset",
        "op",
        "site",
        "sources",
        "storage",
        "uid",
        "value",
    )

    def __init__(self, ne: Shape, dtype: DType, *, name: str = "", nb: Shape | None = None):
        self.uid = next(_uids)
        self.ne = ne
        self.dtype = dtype
        self.nb = nb if nb is not None else contiguous_strides(ne, dtype)
        self.name = name
        self.named = bool(name)
        self.op: Op | None = None
        self.sources: tuple[Node | None, ...] = ()
        self.attrs: dict[str, Any] = {}
        self.storage: Weight | State | HostData | Feed | None = None
        self.base: Node | None = None
        self.offset = 0
        self.graph: Graph | None = None
        self.site: Site | None = None
        self.value: np.ndarray | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Dims without trailing ones, dim 0 fastest; at least one."""
        return trim(self.ne)

    @property
    def owner(self) -> Node:
        """The tensor whose memory this is: of a view its base, otherwise itself."""
        return self if self.base is None else self.base

    @property
    def n_elements(self) -> int:
        """Elements in all dims."""
        a, b, c, d = self.ne
        return a * b * c * d

    @property
    def nbytes(self) -> int:
        """Bytes of a contiguous copy."""
        return self.dtype.row_size(self.ne[0]) * self.ne[1] * self.ne[2] * self.ne[3]

    def dim(self, n: int) -> int:
        """Elements along dim n, 0 ≤ n ≤ 3."""
        return self.ne[_axis(n)]

    def stride(self, n: int) -> int:
        """Bytes from one element of dim n to the next, 0 ≤ n ≤ 3."""
        return self.nb[_axis(n)]

    @property
    def is_contiguous(self) -> bool:
        """Whether the elements lie side by side in order."""
        return self.nb == contiguous_strides(self.ne, self.dtype) or not self.n_elements

    @property
    def has_rows(self) -> bool:
        """Whether the elements of dim 0 lie side by side."""
        return self.nb[0] == self.dtype.type_size

    def adopt_name(self, name: str) -> None:
        """Takes the module's name unless an inner module or the author named it."""
        if not self.named and self.op is not None:
            self.name, self.named = name, True

    def describe(self) -> str:
        """Kind, name, dtype and shape, for messages."""
        kind = {Weight: "weight ", State: "cache ", HostData: "input ", Feed: "feed "}
        label = kind.get(type(self.storage), "") + (repr(self.name) if self.name else "tensor")
        return f"{label} {self.dtype.name} {list(self.shape)}"

    def __repr__(self) -> str:
        return f"<Tensor {self.describe()}>"


def _axis(n: int) -> int:
    if type(n) is not int or not 0 <= n <= 3:
        raise TensorError(f"a tensor has dims 0 to 3, not {n!r}")
    return n


def record(self: T, op_name: str, *others: Node | None, **attrs: Any) -> T:
    """Checks the operands of a primitive op against the table and records it.

    The op joins the graph of its first operand that has one, else the graph being traced in this
    thread.

    Raises:
        GraphError: outside of a trace, or operands of two graphs.
        TensorError: the operands do not fit; names op, operands, shapes and the model's line.
    """
    op = OPS[op_name]
    operands: tuple[Node | None, ...] = (self, *others)
    graph = _graph_of(op, operands)
    try:
        operands = tuple([_prepare(x, op.operands[i], graph) for i, x in enumerate(operands)])
        result = op.rule(*operands, **attrs)
        need_possible(result.ne, result.dtype)
    except (Mismatch, ZeroDivisionError) as error:
        reason = str(error) if isinstance(error, Mismatch) else "an operand has no elements"
        raise failure(op_name, operands, attrs, graph.scope, call_site(), reason) from None
    graph.admit()
    nb = None if result.nb is None else tidy_strides(result.ne, result.nb, result.dtype)
    node = type(self)(result.ne, result.dtype, nb=nb)
    node.op, node.sources, node.attrs, node.graph = op, operands, attrs, graph
    node.site = call_site()
    node.name = f"{graph.scope}.{op_name}" if graph.scope else op_name
    if result.alias is not None:
        node.base = result.alias.owner
        node.offset = result.alias.offset + result.offset
    return node


def cut(node: Node) -> None:
    """Has a node forget how it is computed, which frees the nodes that it is computed from."""
    node.sources, node.attrs, node.base, node.graph = (), {}, None, None


def failure(
    op: str,
    operands: tuple[Node | None, ...],
    attrs: dict[str, Any],
    scope: str,
    site: Site | None,
    reason: str,
) -> TensorError:
    """The error for an impossible op, with all that an author needs to find it."""
    settings = "".join(f", {k}={v!r}" for k, v in attrs.items())
    inner = ", ".join("None" if x is None else x.describe() for x in operands)
    where = "".join((f"\n  in module {scope}" if scope else "", f"\n  at {site}" if site else ""))
    return TensorError(f"{op}: {reason}\n  operands: {inner}{settings}{where}")


def impossible(node: Node, reason: str) -> TensorError:
    """The `failure` of an op that was recorded."""
    assert node.op is not None
    scope = node.name.rpartition(".")[0]
    return failure(node.op.name, node.sources, node.attrs, scope, node.site, reason)


def _graph_of(op: Op, operands: tuple[Node | None, ...]) -> Graph:
    graph = None
    for x in operands:
        if x is None:
            continue
        if not isinstance(x, Node):
            raise TensorError(f"{op.name} takes tensors, not {type(x).__name__} ({x!r})")
        if x.graph is not None:
            if graph is not None and x.graph is not graph:
                raise GraphError(
                    f"{op.name}: {x.describe()} belongs to another graph; compute it there and "
                    "hand its values over with ctx.input().from_floats(...)"
                )
            graph = x.graph
    if graph is None:
        graph = current_graph()
    if graph is None:
        raise GraphError(
            f"{op.name}: none of the operands belongs to a graph and none is being traced; "
            "write `with ctx.trace():` around the ops"
        )
    return graph


def _prepare(x: Node | None, spec: Operand, graph: Graph) -> Node | None:
    """The operand, converted or made contiguous where the kernels need it."""
    if x is None:
        if not spec.optional:
            raise Mismatch(f"operand {spec.name!r} is missing")
        return None
    if x.dtype not in spec.dtypes:
        if spec.cast is None or x.dtype.is_integer:
            raise Mismatch(f"{spec.name} is {x.dtype.name}; it must be {_listed(spec.dtypes)}")
        return _convert(x, graph, "cast", dtype=spec.cast)
    if (spec.layout is Layout.CONTIGUOUS and not x.is_contiguous) or (
        spec.layout is Layout.ROWS and not x.has_rows
    ):
        return _convert(x, graph, "contiguous")
    return x


def _listed(dtypes: frozenset[DType]) -> str:
    plain = [d.name for d in sorted(dtypes) if not d.is_quantized]
    return ", ".join(plain) + (" or quantised" if len(plain) < len(dtypes) else "")


def _convert(x: Node, graph: Graph, op: str, **attrs: Any) -> Node:
    with tracing(graph):
        return record(x, op, **attrs)
