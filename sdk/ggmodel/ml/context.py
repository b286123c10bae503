"""Contexts, which record graphs, and executors, which compute them.

Each context records one graph and makes its tensors. An `Executor` has the memory for it, and
threads use it in turns.
"""

from __future__ import annotations

import math
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, closing
from typing import TYPE_CHECKING, Any

from ..errors import GraphError, OutOfMemory, TensorError
from ..gguf_file.types import DType
from ..resources import Closing
from .arguments import checked_methods
from .executable import Executable, Turn
from .graph import Graph, call_site, tracing
from .node import Feed, HostData, Node, State, as_array
from .table import F32, I32, OPS, Mismatch, Result, define, need, need_possible, pad4
from .tensor import Tensor

if TYPE_CHECKING:
    import numpy as np


class Executor(Closing, ABC):
    """The part of a backend that gives weights and states their memory, and compiles graphs.

    Any thread may use it: whatever computes, or needs or frees its memory, waits for its turn.
    Functions that it calls meanwhile, such as feeds, may do none of this: they get a GraphError.

    Attributes:
        turn: the turn to use it.
        closed: whether `close` was called.
        block_count: the number of layers, by which memory is reported; a subclass sets it.
    """

    block_count: int

    def __init__(self) -> None:
        self.turn = Turn()
        self.closed = False
        self._executables: weakref.WeakSet[Executable] = weakref.WeakSet()
        self._states: dict[int, Node] = {}
        self._allocated = False

    @property
    def forked(self) -> bool:
        """Whether this process is a child of the one that made the backend, and cannot use it."""
        return False

    def check_open(self) -> None:
        """Raises `GraphError` if this backend can compute no more."""
        if self.closed:
            raise GraphError("this backend is closed")

    def close(self) -> None:
        """Frees everything, after a computation under way; idempotent. A forked child leaves that
        to its parent.

        Raises:
            GraphError: called in a feed, or another function that a computation calls.
        """
        if self.closed or self.forked:
            return
        with self.turn.lock:
            self.turn.check()
            self._close()

    def _close(self) -> None:
        """`close`, in this thread's turn, or where nobody can use the backend any more."""
        if not self.closed:
            self.closed = True
            self._free()

    @abstractmethod
    def _free(self) -> None:
        """Frees everything, once."""

    def allocate(self, *graphs: Graph) -> None:
        """Places weights and states by the ops of the traced graphs, and allocates them; only the
        first call does.

        Raises:
            OutOfMemory: with the memory report.
        """
        self.check_open()
        for graph in graphs:
            _need_graph(graph)
        with self.turn.lock:
            self.check_open()  # it may have been closed while this thread waited
            if self._allocated:
                return
            self._allocate_weights(graphs)
            self._allocated = True
            for node in self._states.values():
                self._allocate_state(node)

    @abstractmethod
    def _allocate_weights(self, graphs: tuple[Graph, ...]) -> None:
        """The part of `allocate` that comes before the states."""

    def compile(self, graph: Graph, outputs: tuple[Node, ...]) -> Executable:
        """Makes the graph's schedule executable; `outputs` keep their values after a run.

        Raises:
            TensorError: the library refuses an op; names it, its operands and the model's line.
            OutOfMemory: the compute buffer does not fit.
        """
        self.check_open()
        _need_graph(graph)
        with self.turn.lock, graph.lock:
            self.turn.check()
            self.allocate()
            executable = self._compile(graph, outputs)
            self._executables.add(executable)
            return executable

    @abstractmethod
    def _compile(self, graph: Graph, outputs: tuple[Node, ...]) -> Executable:
        """`compile`, once weights and states have their memory."""

    def reserve(self, graph: Graph) -> None:
        """Allocates the compute buffers this graph needs without running it."""
        self.compile(graph, ()).close()

    def create_state(self, node: Node) -> None:
        """Gives a state tensor its memory, now or, before `allocate`, with it."""
        self.check_open()
        with self.turn.lock:
            self.check_open()
            self._create_state(node)

    def _create_state(self, node: Node) -> None:
        self._states[node.uid] = node
        try:
            if self._allocated:
                self._allocate_state(node)
        except BaseException:  # whose report counts it; the next one does not
            del self._states[node.uid]
            raise

    def free_states(self, nodes: list[Node]) -> None:
        """Frees the memory of state tensors, and the graphs that work on them.

        Raises:
            GraphError: called in a feed, or another function that a computation calls.
        """
        if not nodes or self.forked:
            return
        with self.turn.lock:
            self.turn.check()
            self._free_states(nodes)

    def _free_states(self, nodes: list[Node]) -> None:
        freed = {node.uid for node in nodes}
        for executable in list(self._executables):
            if executable.states & freed:
                executable._close()
        for node in nodes:
            self._states.pop(node.uid, None)
            if isinstance(node.storage, State) and node.storage.handle is not None:
                self._free_state(node.storage.handle)
                node.storage.handle = None

    @abstractmethod
    def _allocate_state(self, node: Node) -> None:
        """Gives the state tensor its handle, zeroed or with the initial bytes."""

    @abstractmethod
    def _free_state(self, handle: Any) -> None:
        """Frees a handle of `_allocate_state`."""


def _need_graph(graph: object) -> None:
    if not isinstance(graph, Graph):
        raise GraphError(f"{graph!r:.80} is no graph; a context's is `ctx.graph`")


_INPUT = -1  # in place of a layer: system memory


@define("arange")
def _arange(start: float, stop: float, step: float) -> Result:
    shown = f"arange({start}, {stop}, {step})"
    need(all(map(math.isfinite, (start, stop, step))), f"{shown}: finite numbers are needed")
    need(step != 0 and (stop - start) / step > 0, f"{shown} is empty")
    need((stop - start) / step < 1 << 31, f"{shown} is too long")
    count = math.ceil((stop - start) / step)
    return Result((count, 1, 1, 1), F32)


@checked_methods(
    "compute",
    "compute_with_notify",
    own=("empty", "zeros", "from_bytes", "from_floats", "from_ints"),
)
class Context(Closing):
    """Records one graph. `input()` and `layer(i)` give views of it that create tensors."""

    def __init__(self, backend: Executor, max_nodes: int):
        self.backend = backend
        self.graph = Graph(backend, max_nodes)
        self._place: int | None = None
        self._states: list[Node] = []

    def _view(self, place: int) -> Context:
        self._check_open()
        view = object.__new__(Context)
        view.__dict__ = {**self.__dict__, "_place": place}
        return view

    def input(self) -> Context:
        """A view that creates tensors in system memory, filled by the host."""
        return self._view(_INPUT)

    def layer(self, i: int) -> Context:
        """A view that creates tensors on layer i's device; they live until the context closes."""
        last = self.backend.block_count
        if i < 0:
            raise TensorError(f"layer {i}: layers count from 0")
        if i > last > 0:
            raise TensorError(f"layer {i}: the model has 0 to {last - 1}; {last} is its output")
        return self._view(i)

    def trace(self) -> AbstractContextManager[None]:
        """Within the block, ops whose operands are all weights or states join this graph."""
        self._check_open()
        return tracing(self.graph)

    # makers of tensors

    def empty(self, dtype: DType, *shape: int) -> Tensor:
        """A tensor [*shape] to be filled; zero until then."""
        return self._create(dtype, shape, None)

    def zeros(self, dtype: DType, *shape: int) -> Tensor:
        """A tensor [*shape] of zeros."""
        return self._create(dtype, shape, None)

    def from_bytes(self, dtype: DType, data: bytes | memoryview, *shape: int) -> Tensor:
        """A tensor [*shape] of the given bytes.

        Raises:
            TensorError: shape and dtype need another number of bytes.
        """
        return self._create(dtype, shape, memoryview(data).cast("B"))

    def from_floats(self, data: Any, *shape: int) -> Tensor:
        """An F32 tensor [*shape] of a sequence or array; the shape defaults to the array's,
        reversed."""
        return self._from_array(data, F32, shape)

    def from_ints(self, data: Any, *shape: int) -> Tensor:
        """An I32 tensor [*shape] of a sequence or array; the shape defaults to the array's,
        reversed.

        Raises:
            TensorError: a value is no 32-bit integer.
        """
        return self._from_array(data, I32, shape)

    def arange(self, start: float, stop: float, step: float = 1.0, dtype: DType = F32) -> Tensor:
        """start, start + step, … below stop: [ceil((stop − start) / step)]."""
        op = OPS["arange"]
        attrs = {"start": start, "stop": stop, "step": step}
        try:
            result = op.rule(**attrs)
        except Mismatch as error:
            raise TensorError(str(error)) from None
        self.graph.admit()
        node = Tensor(result.ne, result.dtype, name="arange")
        node.op, node.attrs, node.graph = op, attrs, self.graph
        return node.cast(dtype)

    def feed(
        self,
        fill: Callable[[Any], Any],
        dtype: DType,
        *shape: int,
        trusted: bool = False,
        name: str = "feed",
    ) -> Tensor:
        """An input [*shape] that is filled before each run: `fill(step)` returns an array that
        broadcasts to the reversed shape. Indices are checked unless the feed is trusted."""
        if not callable(fill):
            raise TensorError(f"a feed is filled by a function of the step, not by {fill!r:.80}")
        node = self._leaf(DType(dtype), shape, name)
        try:
            need_possible(node.ne, node.dtype)
        except Mismatch as error:
            raise OutOfMemory(f"{node.describe()}: {error}") from None
        node.graph = self.graph
        node.storage = Feed(fill, trusted)
        node.site = call_site()
        return node

    def constant(self, data: Any, dtype: DType = I32) -> Tensor:
        """An input of the values of a sequence or array, the same for each run: I32 or F32 [its
        shape, reversed]. Unlike `from_ints`, it lets a graph be run again.

        Raises:
            TensorError: the values do not fit the dtype.
        """
        values = as_array(data, dtype)
        if values.flags.writeable or values.base is not None:
            values = values.copy()  # the caller may change its own
        return self.feed(lambda _: values, dtype, *(values.shape[::-1] or (1,)), name="constant")

    def _from_array(self, data: Any, dtype: DType, shape: tuple[int, ...]) -> Tensor:
        import numpy as np

        array = as_array(data, dtype)
        flat = np.ascontiguousarray(array).reshape(-1).data  # casting no elements needs one dim
        return self._create(dtype, shape or array.shape[::-1] or (1,), flat.cast("B"))

    def _leaf(self, dtype: DType, shape: tuple[int, ...], name: str = "") -> Tensor:
        self._check_open()
        if not 1 <= len(shape) <= 4 or any(type(n) is not int or n < 0 for n in shape):
            raise TensorError(f"shape {list(shape)}: one to four dims, none negative, are needed")
        if shape[0] % dtype.block_size:
            raise TensorError(
                f"shape {list(shape)}: {dtype.block_size} must divide dim 0 ({dtype.name})"
            )
        return Tensor(pad4(shape), dtype, name=name)

    def _create(self, dtype: DType, shape: tuple[int, ...], data: memoryview | None) -> Tensor:
        if self._place is None:
            raise GraphError("create tensors on ctx.input() or ctx.layer(i), not on the context")
        node = self._leaf(DType(dtype), shape)
        if data is not None and data.nbytes != node.nbytes:
            raise TensorError(f"{node.describe()} takes {node.nbytes} bytes, not {data.nbytes}")
        if self._place == _INPUT:
            node.graph = self.graph
            node.storage = HostData(_host_array(node, data))
        else:
            node.storage = State(self.backend, self._place, None if data is None else bytes(data))
            self._states.append(node)
            self.backend.create_state(node)
        return node

    # execution

    def forward(self, *tensors: Node) -> Context:
        """Appends tensors and their operands to the graph, in call order."""
        self._check_open()
        for t in tensors:
            if t.graph is not None and t.graph is not self.graph:
                raise GraphError(f"{t.describe()} belongs to another graph")
        self.graph.forward(*tensors)
        return self

    def compute(self, *tensors: Tensor) -> None:
        """Runs the graph, and gives these tensors their values; without any it only runs."""
        self.forward(*tensors)
        run_once(self.graph, tensors)

    def compute_with_notify(self, begun: Callable[[], None], *tensors: Tensor) -> None:
        """`compute`, calling `begun` once the graph is laid out and about to run."""
        if not callable(begun):
            raise TensorError(f"compute_with_notify calls {begun!r:.80}, which is no function")
        self.forward(*tensors)
        run_once(self.graph, tensors, begun)

    def reserve(self) -> None:
        """Allocates the buffers this graph needs without running it."""
        self._check_open()
        self.backend.reserve(self.graph)

    def set_batch_size(self, n: int) -> Context:
        """Hints how many tokens the graph processes; n ≤ 0 is ignored."""
        if n > 0:
            self.graph.batch_size = n
        return self

    def max_graph_nodes(self) -> int:
        """The most ops the graph may hold."""
        return self.graph.max_nodes

    def close(self) -> None:
        """Frees the tensors made by `layer(i)`, after a computation under way; idempotent.

        Raises:
            GraphError: called in a feed of this backend, with such tensors.
        """
        if not self.graph.closed:
            self.graph.closed = True
            try:
                if not self.backend.closed:
                    self.backend.free_states(self._states)
            except GraphError:
                self.graph.closed = False
                raise
            self._states.clear()

    def _check_open(self) -> None:
        if self.graph.closed:
            raise GraphError("this context is closed; make a new one with backend.new_context()")
        if self.backend.closed:
            raise GraphError("the backend of this context is closed")


def run_once(
    graph: Graph, tensors: tuple[Tensor, ...], begun: Callable[[], None] = lambda: None
) -> None:
    """Runs a graph, after `begun`, and gives these tensors their values; leaves have their own."""
    backend = graph.backend
    backend.check_open()
    with backend.turn.lock, closing(backend.compile(graph, tensors)) as executable:
        backend.turn.alone(begun)
        executable.run()
        for t in tensors:
            if t.op is not None:
                t.value = executable.value(t).copy()


def _host_array(node: Node, data: memoryview | None) -> np.ndarray:
    import numpy as np

    try:
        if node.dtype.numpy is None:
            array = np.zeros(node.nbytes, np.uint8)
        else:
            array = np.zeros(node.ne[::-1], node.dtype.numpy)
    except (MemoryError, ValueError) as error:
        raise OutOfMemory(f"{node.nbytes:,} bytes for {node.describe()}: {error}") from None
    if data is not None:
        array.reshape(-1).view(np.uint8)[:] = np.frombuffer(data, np.uint8)
    return array
