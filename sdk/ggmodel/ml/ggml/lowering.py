"""A recorded graph in ggml: lowering, layout, execution."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ...errors import GraphError, OutOfMemory
from ...gguf_file.types import DType
from ...native import ffi, last_abort, lib
from ..backend import Backend
from ..devices import AllocationStatus
from ..executable import Executable, index_checks
from ..graph import Fill, Graph, fill_of, write_inputs
from ..node import Node, State, Weight, cut, impossible
from .attention import Attention
from .compute import Compute, need_success
from .emitters import EMITTERS
from .endings import Ending, endings
from .experts import ExpertsAhead
from .hardware import Hardware
from .memory import (
    Arena,
    Described,
    SharedInputs,
    lies_in_host_memory,
    physically_possible,
    value_of,
)
from .ordered import Ordered, ours
from .products import Products, serves
from .weights import Weights

# The most tensors that ggml makes of an op, tried with two kinds of operands: convolutions are the
# longest composites.
_MOST_TENSORS = {"conv_1d": 16, "conv_2d": 16, "conv_3d": 16, "rwkv_wkv7": 8}
_MOST_OF_OTHERS = 4


class GGMLExecutable(Executable):
    """A graph in ggml, laid out in one of the backend's compute memories.

    With the backend's `alloc_memory` False it only measures its need, and cannot run.

    Args:
        compute: memory of results, which other graphs use, too. inputs: that of inputs.
        attends: attention is computed by the kernel of our own.

    Attributes:
        description: bytes of the graph itself, besides inputs and results.
    """

    def __init__(
        self,
        backend: Backend,
        graph: Graph,
        outputs: tuple[Node, ...],
        compute: Compute,
        weights: Weights,
        inputs: SharedInputs,
        attends: bool,
    ):
        super().__init__(backend.turn)
        self._backend, self._compute, self._weights = backend, compute, weights
        self._shared = inputs
        self._dry = not backend.params.alloc_memory
        self._in_order, self._attends = backend.params.deterministic, attends
        self._tensors: dict[int, Any] = {}
        self._values: dict[int, np.ndarray] = {}  # this graph's values that lie in host memory
        self.states: set[int] = set()
        self._inputs: Described | None = None
        self._arena: Arena | None = None
        self._schedule, self._outputs = tuple(graph.schedule), outputs
        self._endings: dict[int, Ending] = {}
        self._one_by_one = False  # all ops have tensors of their own
        self._generation = (-1, -1)  # of the memory of results and of inputs
        try:
            self._fills = self._make_inputs(graph)
            views = {node: view for _, view, node in self._fills}
            self._checks = [] if self._dry else index_checks(graph, views)
            self._lay_out()
        except BaseException:
            self._close()
            raise

    # building

    def _make_inputs(self, graph: Graph) -> list[Fill]:
        """Places inputs apart from results: the allocator would reuse their memory."""
        if not graph.inputs:
            return []
        self._inputs = self._shared.place(graph.inputs)
        self._tensors.update(self._inputs.tensors)
        if self._dry:
            return []
        return [fill_of(node, value_of(self._tensors[node.uid], node)) for node in graph.inputs]

    def _lower(self) -> int:
        """Builds ggml's graph anew; returns an upper bound of its number of tensors."""
        if self._arena is not None:
            self._arena.close()
        ops = [node for node in self._schedule if node.op is not None]
        count = sum(_MOST_TENSORS.get(node.op.name, _MOST_OF_OTHERS) for node in ops if node.op)
        count += 64
        self._arena = Arena(count, count)
        ctx = self._arena.ctx
        self._cgraph = lib.ggml_new_graph_custom(ctx, count, False)
        n_threads = self._weights.hardware.n_threads
        self._products = Products(ctx, n_threads, self._in_order)
        self._ordered = Ordered(ctx, self._products) if self._in_order else None
        self._attention = Attention(ctx, n_threads, self._in_order) if self._attends else None
        choices = self._weights.choices
        self._ahead = None if choices is None else ExpertsAhead(ctx, ops, choices)
        self._endings = self._find_endings()
        inner = {x.uid for ending in self._endings.values() for x in ending.inner}
        leaves = 0
        for node in self._schedule:
            if node.uid in inner:
                self._tensors.pop(node.uid, None)
                continue
            if not node.n_elements:
                self._tensors[node.uid] = self._arena.tensor(node)
                continue
            ending = self._endings.get(node.uid)
            try:
                t = self._emit(ctx, node) if ending is None else self._end(node, ending)
            except OverflowError as error:
                raise impossible(node, f"a number is too large for ggml: {error}") from None
            self._tensors[node.uid] = t
            if node.base is not None:
                t.nb = node.nb  # tidier than ggml's, see tidy_strides
            lib.ggml_set_name(t, node.name.encode()[-63:])
            lib.ggml_build_forward_expand(self._cgraph, t)
            leaves += len(node.sources) + 1  # an op may need one of its own
        return lib.ggml_graph_n_nodes(self._cgraph) + leaves

    def _find_endings(self) -> dict[int, Ending]:
        """The ops that are computed as one, by the uid of the last; each alone if one by one."""
        if not serves(DType.F32) or self._weights.hardware.gpus:
            return {}
        if self._one_by_one:
            return endings(self._schedule, self._schedule, lambda node: False)
        return endings(self._schedule, self._outputs, self._ends)

    def _ends(self, node: Node) -> bool:
        """Whether an op is a product by a kernel of our own for one matrix."""
        assert node.op is not None
        if node.op.name != "mulmat":
            return False
        return ours(node) if self._in_order else self._weights.multiplied(node)

    def _end(self, node: Node, ending: Ending) -> Any:
        """The tensor of the last op of an ending."""

        def tensor(place: tuple[Node, int] | None) -> Any:
            if place is None:
                return ffi.NULL
            adds, i = place
            return self._operand(adds.sources[i], i, adds, True)

        bias, factor, residual = map(tensor, (ending.bias, ending.factor, ending.residual))
        end = ending.activation, bias, factor, residual
        x = ending.x
        if not ending.in_product:
            t = self._products.finish(self._operand(x, 0, ending.ops[0], True), end)
        else:
            operands = tuple(self._operand(y, i, x, True) for i, y in enumerate(x.sources))
            by = self._products if self._ordered is None else self._ordered
            t = by.multiply(*operands, shared=self._are_fixed(x), end=end)
        if not t:
            raise impossible(node, f"ggml refused it: {last_abort()}")
        return t

    def _emit(self, ctx: Any, node: Node) -> Any:
        assert node.op is not None
        emitter = EMITTERS[node.op.name]
        cpu = self._weights.hardware.cpu.backend
        for fast in (True, False):
            operands = tuple(self._operand(x, i, node, fast) for i, x in enumerate(node.sources))
            if self._ahead is not None and node.op.name == "mulmat_id":
                operands = self._ahead.follow(node, operands)
            if node.op.name == "flash_attention" and self._attention is not None:
                t = self._attention.attend(operands, node.attrs)
            elif self._ordered is not None:
                t = self._emit_ordered(self._ordered, ctx, node, operands)
            elif self._weights.multiplied(node):
                t = self._products.multiply(*operands, shared=self._are_fixed(node))
            else:
                t = emitter(ctx, operands, node.attrs)
            if not t:
                raise impossible(node, f"ggml refused it: {last_abort()}")
            # The CPU is the scheduler's last resort, and must support every op.
            if lib.ggml_backend_supports_op(cpu, t):
                _settle(self._weights.hardware, t, node)
                return t
        raise impossible(node, "ggml's CPU backend has no kernel for these dtypes and layouts")

    def _emit_ordered(self, by: Ordered, ctx: Any, node: Node, operands: tuple[Any, ...]) -> Any:
        """`_emit` of an op whose sums have one order."""
        assert node.op is not None
        if node.op.name in ("mulmat", "mulmat_id"):
            multiply = by.multiply if ours(node) else by.product
            return multiply(*operands, shared=self._are_fixed(node))
        return EMITTERS[node.op.name](ctx, operands, {**node.attrs, "product": by.product})

    def _are_fixed(self, node: Node) -> bool:
        """Whether nothing overwrites what a product reads beside its weight."""
        read = [x for x in node.sources[1:] if x is not None]
        return not any(isinstance(x.owner.storage, State) for x in read)

    def _operand(self, x: Node | None, i: int, reader: Node, fast: bool) -> Any:
        if x is None:
            return ffi.NULL
        if isinstance(x.storage, Weight):
            return self._weights.tensor(x, reader, i, fast)
        if isinstance(x.storage, State):
            if x.storage.handle is None:
                raise GraphError(f"{x.describe()} was freed with its context or never allocated")
            self.states.add(x.uid)
            return x.storage.handle.tensors[x.uid]
        return self._tensors[x.uid]

    def _lay_out(self) -> None:
        compute = self._compute
        tensors = self._lower()
        # An upper bound: memory that is freed and reused counts twice.
        possible = physically_possible(sum(node.nbytes for node in self._schedule))
        if self._dry or not possible:
            possible = compute.measure(self._cgraph, tensors)
            tensors = self._lower()  # measuring may leave a graph in pieces
        if not self._dry:
            self._mark(self._outputs)
            if not possible:
                self._weights.hardware.cpu.status = AllocationStatus.FAILED
            if not possible or not compute.lay_out(self._cgraph, tensors):
                self._lower()
                compute.measure(self._cgraph, tensors)
                raise OutOfMemory(
                    "the compute buffer of this graph does not fit in memory; "
                    "a smaller batch_size needs less"
                )
        assert self._arena is not None
        self.description = lib.ggml_used_mem(self._arena.ctx)
        self._generation = compute.generation, self._shared.generation

    def _mark(self, outputs: tuple[Node, ...]) -> None:
        for node in outputs:
            t = self.tensor(node)
            if t:
                lib.ggml_set_output(t)
                if t.view_src:  # views, and ops that ggml does in place on a copy
                    lib.ggml_set_output(t.view_src)

    # running

    @property
    def valid(self) -> bool:
        latest = self._compute.generation, self._shared.generation
        return self._arena is not None and self._generation == latest

    def _check_valid(self) -> None:
        super()._check_valid()
        self._backend.check_open()

    def _run(self, step: Any, meanwhile: Callable[[], None] | None) -> None:
        self._fill(step)
        status = self._compute.compute(self._cgraph, meanwhile)
        if self._weights.watch.suspect() or status != lib.GGML_STATUS_SUCCESS:
            self._backend.check_files()
            need_success(status)

    def run_apart(self, step: Any = None) -> list[float]:
        """`run`, one op at a time.

        Returns:
            Seconds by op of the graph's schedule, summed over ggml's nodes for it; 0 for ops that
            compute nothing, such as views, and for ops that a product, or the last op of an
            ending, computes with its own.
        """
        return self._alone(self._run_apart, step)

    def _run_apart(self, step: Any) -> list[float]:
        self._fill(step)
        seconds = self._compute.compute_apart(self._cgraph)
        self._backend.check_files()
        totals, at = [], 0
        for node in self._schedule:
            spent = 0.0
            if node.uid in self._tensors and node.n_elements:
                result = self._tensors[node.uid]
                while True:  # an op's last tensor is its result
                    last = lib.ggml_graph_node(self._cgraph, at) == result
                    spent, at = spent + seconds[at], at + 1
                    if last:
                        break
            totals.append(spent)
        places = {node.uid: i for i, node in enumerate(self._schedule)}
        for last, ending in self._endings.items():
            if ending.in_product:
                at = places[last]
                totals[places[ending.x.uid]], totals[at] = totals[at], 0.0
        return totals

    def _run_each(self, step: Any, visit: Callable[[Node, np.ndarray], None]) -> None:
        if any(ending.inner for ending in self._endings.values()):
            self._one_by_one = True
            self._values.clear()
            try:
                self._lay_out()
            except BaseException:
                self._close()
                raise
        made: dict[Any, list[Node]] = {}
        for node in self._schedule:
            if node.n_elements and (node.dtype.numpy is not None or node.is_contiguous):
                made.setdefault(self._tensors[node.uid], []).append(node)

        def pass_on(t: Any) -> None:
            for node in made.get(t, ()):
                visit(node, value_of(t, node))

        self._fill(step)
        self._compute.compute_apart(self._cgraph, pass_on)
        self._backend.check_files()

    def _run_edited(self, step: Any, edits: Mapping[Node, Callable[[np.ndarray], object]]) -> None:
        def change(node: Node) -> Callable[[], None]:
            t = self._tensors[node.uid]

            def changed() -> None:
                value = value_of(t, node)
                edits[node](value)
                if not lies_in_host_memory(t):
                    lib.ggml_backend_tensor_set(t, ffi.from_buffer(value), 0, value.nbytes)

            return changed

        self._fill(step)
        stops = {self._tensors[node.uid]: change(node) for node in edits}
        self._compute.compute_in_pieces(self._cgraph, stops)
        self._backend.check_files()

    def _fill(self, step: Any) -> None:
        """Writes the inputs and checks the indices of a run."""
        if self._dry:
            raise GraphError("this backend was made with alloc_memory=False and cannot compute")
        write_inputs(self._fills, step)
        for check in self._checks:
            check.run()

    def keep_only(self, outputs: tuple[Node, ...]) -> None:
        kept = {node.uid for node in outputs} | {node.uid for _, _, node in self._fills}
        self._tensors = {uid: t for uid, t in self._tensors.items() if uid in kept}
        self._schedule, self._endings = (), {}
        for node in outputs:
            cut(node)

    def tensor(self, node: Node) -> Any:
        """The ggml tensor of a node of this graph, or of a state that it reads."""
        t = self._tensors.get(node.uid)
        if t is None and isinstance(node.storage, State) and node.storage.handle is not None:
            t = node.storage.handle.tensors[node.uid]
        return t

    def _value(self, node: Node) -> np.ndarray:
        if (value := self._values.get(node.uid)) is not None:
            return value
        t = self.tensor(node)
        if t is None:
            return self._backend.read(node)
        value = value_of(t, node)
        if node.uid in self._tensors and lies_in_host_memory(t):
            self._values[node.uid] = value
        return value

    def _close(self) -> None:
        self._tensors.clear()
        self._values.clear()
        self._fills = []
        for part in (self._arena, self._inputs):
            if part is not None:
                part.close()
        self._arena = self._inputs = None

    def __del__(self) -> None:
        if hasattr(self, "_arena"):  # Ctrl-C may end the making before anything is set
            self._close()


def _settle(hardware: Hardware, t: Any, node: Node) -> None:
    """Ensures that some device can compute an op where its result must lie, such as in a state
    that it writes: the scheduler would end the process otherwise."""
    if not hardware.gpus:
        return
    devices = hardware.devices
    if any(x is not None and not x.n_elements for x in node.sources):
        # Only the CPU's kernels accept operands without memory. The scheduler leaves tensors
        # that are marked as inputs to the CPU.
        devices = [hardware.cpu]
        lib.ggml_set_input(t)
    if not t.view_src or not t.view_src.buffer:
        return
    home = lib.ggml_backend_buffer_get_type(t.view_src.buffer)
    if not any(
        lib.ggml_backend_supports_buft(d.backend, home)
        and lib.ggml_backend_supports_op(d.backend, t)
        for d in devices
    ):
        name = ffi.string(lib.ggml_backend_buft_name(home)).decode()
        raise impossible(node, f"its result lies in memory of {name}, which has no kernel for it")
