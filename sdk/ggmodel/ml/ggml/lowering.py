"""A recorded graph in ggml: lowering, memory, execution."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import ComputeError, GraphError, OutOfMemory
from ...native import ffi, last_abort, lib
from ..backend import Executable
from ..graph import Graph
from ..indices import index_checks
from ..node import Node, failure
from ..storage import Feed, HostData, State, Weight
from .emitters import EMITTERS

if TYPE_CHECKING:
    from .backend import GGMLBackend

_MOST_TENSORS_AN_OP = 8  # conv_3d is the longest composite of ggml's own


class Arena:
    """A ggml context for tensors without data."""

    def __init__(self, tensors: int, graph_nodes: int = 0):
        size = lib.ggml_tensor_overhead() * tensors
        if graph_nodes:
            size += lib.ggml_graph_overhead_custom(graph_nodes, False)
        self.ctx = lib.ggml_init({"mem_size": size, "mem_buffer": ffi.NULL, "no_alloc": True})
        if not self.ctx:
            raise OutOfMemory(f"{size} bytes for the descriptions of {tensors} tensors")

    def tensor(self, node: Node) -> Any:
        """A ggml tensor of the node's shape and dtype.

        One without elements gets an address at once, that of itself: ggml's allocators take a
        null pointer for "not yet placed".
        """
        t = lib.ggml_new_tensor_4d(self.ctx, int(node.dtype), *node.ne)
        if not t:
            raise GraphError(f"ggml cannot describe {node.describe()}: {last_abort()}")
        if not node.n_elements:
            t.data = ffi.cast("void *", t)
        lib.ggml_set_name(t, node.name.encode()[-63:])
        return t

    def close(self) -> None:
        if self.ctx:
            lib.ggml_free(self.ctx)
            self.ctx = None


def physically_possible(nbytes: int) -> bool:
    """False for more memory than the machine has: the system might promise it all the same, and
    end the process when it is written."""
    try:
        return nbytes <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # not a Unix
        return nbytes < 1 << 46


class ComputeBuffer:
    """One allocator for the intermediate results of all graphs; they take turns in its memory.

    Attributes:
        generation: counts up whenever the memory moves; graphs laid out before are then dead.
    """

    def __init__(self, buffer_type: Any):
        self._allocator = lib.ggml_gallocr_new(buffer_type)
        self.generation = 0

    @property
    def size(self) -> int:
        """Bytes."""
        return lib.ggml_gallocr_get_buffer_size(self._allocator, 0)

    def lay_out(self, cgraph: Any) -> bool:
        """Gives every tensor of the graph its address; False when memory cannot be had."""
        needed = ffi.new("size_t[1]")
        lib.ggml_gallocr_reserve_n_size(self._allocator, cgraph, ffi.NULL, ffi.NULL, needed)
        if not physically_possible(needed[0]):
            return False
        before = self.size
        done = lib.ggml_gallocr_reserve(self._allocator, cgraph)
        if self.size != before:
            self.generation += 1
        return done and lib.ggml_gallocr_alloc_graph(self._allocator, cgraph)

    def close(self) -> None:
        if self._allocator:
            lib.ggml_gallocr_free(self._allocator)
            self._allocator = None
            self.generation += 1


class GGMLExecutable(Executable):
    """A graph in ggml, laid out in the backend's compute buffer.

    Attributes:
        states: uids of the state tensors it works on; the backend closes it before they are freed.
    """

    def __init__(self, backend: GGMLBackend, graph: Graph, outputs: tuple[Node, ...]):
        self._backend: GGMLBackend = backend
        self._tensors: dict[int, Any] = {}
        self.states: set[int] = set()
        self._buffer: Any = None
        self._inputs: Arena | None = None
        self._arena: Arena | None = None
        self.generation = -1
        try:
            self._fills = self._make_inputs(graph)
            if self._buffer:
                self.input_bytes = lib.ggml_backend_buffer_get_size(self._buffer)
            self._checks = index_checks(graph, dict(self._fills))
            self._lower(graph)
            self._lay_out(outputs)
        except BaseException:
            self.close()
            raise

    # building

    def _make_inputs(self, graph: Graph) -> list[tuple[Node, np.ndarray]]:
        """Inputs lie in a buffer of their own: the allocator would reuse their memory."""
        if not graph.inputs:
            return []
        self._inputs = Arena(len(graph.inputs))
        for node in graph.inputs:
            self._tensors[node.uid] = self._inputs.tensor(node)
        cpu = lib.ggml_backend_cpu_buffer_type()
        if physically_possible(sum(node.nbytes for node in graph.inputs)):
            self._buffer = lib.ggml_backend_alloc_ctx_tensors_from_buft(self._inputs.ctx, cpu)
        if not self._buffer and any(node.n_elements for node in graph.inputs):
            raise OutOfMemory(
                "the graph's inputs do not fit in memory", self._backend.backend_memory()
            )
        return [(node, host_view(self._tensors[node.uid], node)) for node in graph.inputs]

    def _lower(self, graph: Graph) -> None:
        # Operands outside of the schedule (leaves) are created too, hence the generous bound.
        count = len(graph.schedule) * _MOST_TENSORS_AN_OP + 64
        self._arena = Arena(count, count)
        ctx = self._arena.ctx
        self._cgraph = lib.ggml_new_graph_custom(ctx, count, False)
        for node in graph.schedule:
            if not node.n_elements:
                self._tensors[node.uid] = self._arena.tensor(node)
                continue
            self._tensors[node.uid] = t = self._emit(ctx, node)
            if node.base is not None:
                t.nb = node.nb  # tidier than ggml's, see tidy_strides
            lib.ggml_set_name(t, node.name.encode()[-63:])
            lib.ggml_build_forward_expand(self._cgraph, t)

    def _emit(self, ctx: Any, node: Node) -> Any:
        assert node.op is not None
        emitter = EMITTERS[node.op.name]
        for fast in (True, False):
            operands = tuple(self._operand(x, i, node, fast) for i, x in enumerate(node.sources))
            try:
                t = emitter(ctx, operands, node.attrs)
            except OverflowError as error:
                self._refuse(node, f"a number is too large for ggml: {error}")
            if not t:
                self._refuse(node, f"ggml refused it: {last_abort()}")
            if lib.ggml_backend_supports_op(self._backend.cpu, t):
                return t
        self._refuse(node, "ggml's CPU backend has no kernel for these dtypes and layouts")

    def _refuse(self, node: Node, reason: str) -> Any:
        scope = node.name.rpartition(".")[0]
        assert node.op is not None
        raise failure(node.op.name, node.sources, node.attrs, scope, node.site, reason)

    def _operand(self, x: Node | None, i: int, reader: Node, fast: bool) -> Any:
        if x is None:
            return ffi.NULL
        if isinstance(x.storage, Weight):
            return self._backend.weights.tensor(x, reader, i, fast)
        if isinstance(x.storage, State):
            if x.storage.handle is None:
                raise GraphError(f"{x.describe()} was freed with its context or never allocated")
            self.states.add(x.uid)
            return x.storage.handle.tensor
        return self._tensors[x.uid]

    def _lay_out(self, outputs: tuple[Node, ...]) -> None:
        for node in outputs:
            t = self.tensor(node)
            if t:
                lib.ggml_set_output(t)
                if t.view_src:  # of views, and of ops that ggml does in place on a copy
                    lib.ggml_set_output(t.view_src)
        memory = self._backend.compute_buffer
        if not memory.lay_out(self._cgraph):
            raise OutOfMemory(
                "the compute buffer of this graph does not fit in memory; "
                "a smaller batch_size needs less",
                self._backend.backend_memory(),
            )
        self.generation = memory.generation

    # running

    @property
    def valid(self) -> bool:
        return (
            self._arena is not None and self.generation == self._backend.compute_buffer.generation
        )

    def run(self, step: Any = None) -> None:
        if not self.valid:
            raise GraphError("this graph's memory is gone; compile it again")
        self._backend.check_open()
        for node, view in self._fills:
            storage = node.storage
            if isinstance(storage, Feed):
                view[...] = storage.values(node, step)
            elif isinstance(storage, HostData):
                view[...] = storage.array
        for check in self._checks:
            check.run()
        status = lib.ggml_backend_graph_compute(self._backend.cpu, self._cgraph)
        if status != lib.GGML_STATUS_SUCCESS:
            raise ComputeError(f"ggml stopped computing with status {int(status)}")

    def tensor(self, node: Node) -> Any:
        """The ggml tensor of a node of this graph, or of a leaf that it reads."""
        t = self._tensors.get(node.uid)
        if t is None and isinstance(node.storage, State) and node.storage.handle is not None:
            t = node.storage.handle.tensor
        return t

    def value(self, node: Node) -> np.ndarray:
        if not self.valid:
            raise GraphError("this graph's memory is gone; compile it again")
        t = self.tensor(node)
        if t is None:
            return self._backend.read(node)
        return host_view(t, node)

    def close(self) -> None:
        self._tensors.clear()
        self._fills = []
        for arena in (self._arena, self._inputs):
            if arena is not None:
                arena.close()
        self._arena = self._inputs = None
        if self._buffer:
            lib.ggml_backend_buffer_free(self._buffer)
            self._buffer = None

    def __del__(self) -> None:
        self.close()


def host_view(t: Any, node: Node) -> np.ndarray:
    """A tensor's memory as a numpy array of the reversed shape; raw bytes where numpy lacks the
    dtype."""
    if node.dtype.numpy is None:
        if not node.is_contiguous:
            raise GraphError(f"{node.describe()} is no dense block of memory; make it contiguous")
        return _memory(t.data, node.nbytes)
    if not node.n_elements:
        return np.zeros(node.ne[::-1], node.dtype.numpy)
    span = node.dtype.type_size + sum((n - 1) * b for n, b in zip(node.ne, node.nb, strict=True))
    return np.ndarray(node.ne[::-1], node.dtype.numpy, _memory(t.data, span), 0, node.nb[::-1])


def _memory(data: Any, nbytes: int) -> np.ndarray:
    return np.frombuffer(ffi.buffer(data, nbytes), np.uint8)
