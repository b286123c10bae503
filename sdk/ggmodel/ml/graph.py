"""The recorded graph: the ops of `forward`, before any backend has seen them.

A graph is recorded once and may be executed by any backend. It knows three things about each op:
its operands, its module of the model, and its line in the model's source. An `Executable` of it
fills its inputs by `write_inputs`.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import ComputeError, Error, GraphError, TensorError
from ..gguf_file.types import DType
from .node import Feed, HostData, Node, Rows, Site, T, exact, failure, numbers
from .table import OPS, Layout, Mismatch, Op, Operand, need_possible, tidy_strides

# The first frame outside of these folders is the author's line. The layers that architectures
# share are read like an author's: no frame of theirs may be around it.
_SDK = Path(__file__).resolve().parent.parent
_MACHINERY = tuple(str(_SDK / part) + "/" for part in ("ml", "nn", "model", "kvcache", "runner"))
_SHARED = {str(_SDK / "nn" / name) for name in ("decoder.py", "sandwich.py")}
_machinery: dict[str, bool] = {}

_thread = threading.local()


def call_site() -> Site | None:
    """The innermost frame that is not part of the SDK's machinery."""
    frame = sys._getframe(2)
    while frame is not None:
        code = frame.f_code
        file = code.co_filename
        inside = _machinery.get(file)
        if inside is None:
            path = str(Path(file).resolve())
            inside = _machinery[file] = path.startswith(_MACHINERY) and path not in _SHARED
        if not inside:
            return Site(file, frame.f_lineno, code.co_name)
        frame = frame.f_back
    return None


class Graph:
    """The ops recorded by one context, and the order in which they are executed.

    Attributes:
        backend: the backend whose attention and cache settings apply while recording.
        schedule: the ops to execute, in order; grows by `forward`.
        inputs: host tensors and feeds that the schedule reads, in order of first use.
        scope: path of the module being traced ("blk.3.attn"), names the ops.
        calls: a list, if wanted, of each returned call of a module: `forward`, arguments, result.
        tap: a function, if wanted, of each call of a module, `forward` and its result: it returns
            the result that the caller gets.
        changed: takes each recorded op and gives the tensor in its place; None leaves all as they
            are.
        lock: held while the schedule grows or is compiled.
    """

    def __init__(self, backend: Any, max_nodes: int):
        self.backend = backend
        self.max_nodes = max_nodes
        self.schedule: list[Node] = []
        self.inputs: list[Node] = []
        self.scope = ""
        self.calls: list[tuple[Callable[..., Any], tuple, Any]] | None = None
        self.tap: Callable[[Callable[..., Any], Any], Any] | None = None
        self.changed: Callable[[Any], Any] | None = None
        self.batch_size = 0  # a hint for backends that copy weights to a device; 0 is unknown
        self.closed = False
        self.lock = threading.RLock()
        self.recorded = 0
        self._visited: set[int] = set()  # scheduled, or an input

    def forward(self, *roots: Node) -> None:
        """Schedules each root after everything it reads, in the order recorded.

        Roots that are already scheduled stay in place. The graph has no edges for writes into
        memory that other ops read: they happen in the order of these calls.
        """
        with self.lock:
            for root in roots:
                self._schedule(root)

    def _schedule(self, root: Node) -> None:
        pending: dict[int, Node] = {}
        stack = [root]
        while stack:
            node = stack.pop()
            if node.uid in pending or node.uid in self._visited:
                continue
            if node.op is None:
                if isinstance(node.storage, (HostData, Feed)):
                    self._visited.add(node.uid)
                    self.inputs.append(node)
                continue
            pending[node.uid] = node
            stack.extend(s for s in node.sources if s is not None)
        for uid in sorted(pending):
            self._visited.add(uid)
            self.schedule.append(pending[uid])

    def forget(self) -> None:
        """Drops what was recorded, once an executable needs no more of it."""
        self.schedule, self.inputs = [], []
        self._visited.clear()

    @property
    def replayable(self) -> bool:
        """Whether all inputs are feeds, so that a compiled graph serves every step."""
        return all(isinstance(node.storage, Feed) for node in self.inputs)

    def admit(self) -> None:
        """Counts one more recorded op; raises `GraphError` when closed or past the node limit."""
        if self.closed:
            raise GraphError("this context is closed; make a new one with backend.new_context()")
        self.recorded += 1
        if self.recorded > self.max_nodes:
            raise GraphError(
                f"the graph has more than {self.max_nodes} ops; "
                "make its context with backend.new_context_size(n)"
            )


def current_graph() -> Graph | None:
    """The graph being traced in this thread."""
    return getattr(_thread, "graph", None)


@contextmanager
def tracing(graph: Graph) -> Iterator[None]:
    """Within the block, ops whose operands belong to no graph join this one."""
    outer = current_graph()
    _thread.graph = graph
    try:
        yield
    finally:
        _thread.graph = outer


def in_scope(name: str, call: Callable[..., Any], args: tuple, kwargs: dict[str, Any]) -> Any:
    """Calls with `name` appended to the traced graph's scope, and names the result after it."""
    graph = current_graph()
    if graph is None or not name:
        return call(*args, **kwargs)
    outer = graph.scope
    graph.scope = f"{outer}.{name}" if outer else name
    try:
        result = call(*args, **kwargs)
        if graph.tap is not None:
            result = graph.tap(call, result)
        adopt = getattr(result, "adopt_name", None)
        if adopt is not None:
            adopt(graph.scope)
        if graph.calls is not None:
            graph.calls.append((call, args, result))
        return result
    finally:
        graph.scope = outer


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
    return node if graph.changed is None else graph.changed(node)


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


def values_of(node: Node, feed: Feed, step: Any) -> np.ndarray:
    """The values of a feed for a step, in the shape of its tensor.

    Raises:
        ComputeError: `fill` fails or returns another shape; names the feed's line.
    """
    try:
        values = exact(numbers(feed.fill(step)), node.dtype.numpy)
        return np.broadcast_to(values, node.ne[::-1])
    except Error:
        raise
    except Exception as error:
        raise _unfilled(node, error) from error


Fill = tuple[Callable[[Any], Any], np.ndarray, Node]
"""An input's values by step, the memory that takes them, and the input."""


def fill_of(node: Node, target: np.ndarray) -> Fill:
    """The `Fill` of an input whose memory is `target`."""
    assert isinstance(node.storage, Feed | HostData)
    return node.storage.fill, target, node


def write_inputs(fills: Iterable[Fill], step: Any) -> None:
    """Writes all values of a step into the graph's inputs; raises as `values_of` does."""
    node = None
    try:
        for fill, target, node in fills:  # noqa: B007 (named when it fails)
            values = fill(step)
            if isinstance(values, Rows):
                values.write(target)
                continue
            if not isinstance(values, np.ndarray) or values.dtype.hasobject:
                values = numbers(values)
            if values.dtype != target.dtype:
                values = exact(values, target.dtype)
            target[...] = values
    except Error:
        raise
    except Exception as error:
        assert node is not None
        raise _unfilled(node, error) from error


def _unfilled(node: Node, error: Exception) -> ComputeError:
    site = f"\n  at {node.site}" if node.site else ""
    return ComputeError(
        f"{node.describe()} could not be filled: {type(error).__name__}: {error}{site}"
    )
