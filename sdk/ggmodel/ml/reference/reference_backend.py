"""The reference backend: weights are read from their source on use, states are plain arrays, and
recorded graphs are interpreted op by op."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ...errors import Cancelled, ComputeError, GraphError, OutOfMemory
from ...gguf_file import TensorSource
from ...gguf_file.types import DType
from ..backend import Backend, CacheConfig, Progress
from ..devices import AllocationStatus, BackendMemory, DeviceMemory
from ..executable import Executable, index_checks
from ..graph import Graph, fill_of, write_inputs
from ..node import Node, State, Weight, impossible
from ..params import INPUT, BackendParams, FlashAttention
from .elements import Elements, can_decode, can_encode
from .evaluators import BYTEWISE, EVALUATORS


class ReferenceBackend(Backend):
    """numpy on the CPU. Only results are rounded, to the dtypes that the graph declares. Flash
    attention is off unless requested, so that both forms of attention can be compared.

    The memory report counts weights at their size in the file, without decoded blocks.
    """

    def __init__(self, source: TensorSource, params: BackendParams):
        super().__init__(source, params)
        self.flash_attention = params.flash_attention is FlashAttention.ON
        self.cache_config = CacheConfig(
            permuted_v=not self.flash_attention,
            mask_dtype=DType.F16 if self.flash_attention else DType.F32,
        )
        self._decoded: dict[int, Elements] = {}
        self._graph_size = 0

    def _allocate_weights(self, graphs: tuple[Graph, ...]) -> None:
        """Nothing: weights are read on use."""

    def _read_weights(self, progress: Progress | None, cancel: Callable[[], bool] | None) -> None:
        if cancel is not None and cancel():
            raise Cancelled("loading was cancelled")
        if progress is not None:
            progress(1.0)

    def _compile(self, graph: Graph, outputs: tuple[Node, ...]) -> ReferenceExecutable:
        executable = ReferenceExecutable(self, graph, outputs)
        self._graph_size = max(self._graph_size, executable.size)
        return executable

    # weights

    def bytes_of(self, weight: Node) -> np.ndarray:
        """The file's bytes, uint8, read-only."""
        return np.frombuffer(self.source.data(weight.name), np.uint8)

    def weight(self, node: Node) -> Elements:
        """A weight's elements, which keep their decoded blocks."""
        decoded = self._decoded.get(node.uid)
        if decoded is None:
            decoded = self._decoded[node.uid] = Elements(self.bytes_of(node), node, keep=True)
        return decoded

    # states

    def _allocate_state(self, node: Node) -> None:
        assert isinstance(node.storage, State)
        if not self.params.alloc_memory:
            return
        try:
            node.storage.handle = np.zeros(node.nbytes, np.uint8)
        except (MemoryError, ValueError) as error:
            reason = f"{node.nbytes:,} bytes for {node.describe()}: {error}"
            raise OutOfMemory(reason, self.backend_memory()) from None
        if node.storage.initial:
            self._write_state(node, node.storage.initial)

    def _write_state(self, node: Node, data: bytes) -> None:
        assert isinstance(node.storage, State)
        if node.storage.handle is None:
            node.storage.initial = data
        else:
            node.storage.handle[:] = np.frombuffer(data, np.uint8)

    def _free_state(self, handle: np.ndarray) -> None:
        """Nothing: an array is freed with its last reference."""

    def _read_state(self, node: Node) -> np.ndarray:
        assert isinstance(node.storage, State)
        raw: np.ndarray = node.storage.handle.copy()
        kind = node.dtype.numpy
        return raw if kind is None else raw.view(kind).reshape(node.ne[::-1])

    def _read_rows(self, node: Node, rows: np.ndarray) -> np.ndarray:
        assert isinstance(node.storage, State)
        return node.storage.handle.reshape(-1, node.nb[1])[rows]

    def _write_rows(self, node: Node, rows: np.ndarray, data: np.ndarray) -> None:
        assert isinstance(node.storage, State)
        node.storage.handle.reshape(-1, node.nb[1])[rows] = data

    # memory

    def backend_memory(self) -> BackendMemory:
        with self.turn.lock:
            return self._memory()

    def _memory(self) -> BackendMemory:
        slots = self.block_count + 1
        cpu = DeviceMemory("CPU", [0] * slots, [0] * slots, self._graph_size)
        if self._allocated:
            cpu.status = AllocationStatus.ALLOCATED
        memory = BackendMemory(cpu)
        for node in self.tensors.values():
            assert isinstance(node.storage, Weight)
            if node.storage.layer == INPUT:
                memory.input_weights += node.nbytes
            else:
                cpu.weights[node.storage.layer] += node.nbytes
            if self.source.mapped(node.storage.info.file) is not None:
                memory.mapped += node.nbytes
        for node in self._states.values():
            assert isinstance(node.storage, State)
            # States beyond the last layer count with the output layer.
            cpu.cache[min(node.storage.layer, self.block_count)] += node.nbytes
        return memory

    # life

    def _release(self) -> None:
        self._decoded.clear()


class ReferenceExecutable(Executable):
    """The schedule of a graph at the time of compilation.

    Inputs have memory of their own, which a run fills. Results have memory from the op that makes
    them to their last reader, outputs until the next run.

    Attributes:
        size: the most bytes of inputs and results at one time.
    """

    def __init__(self, backend: ReferenceBackend, graph: Graph, outputs: tuple[Node, ...]):
        super().__init__(backend.turn)
        self._backend = backend
        self._schedule = tuple(graph.schedule)
        for node in self._schedule:
            _check_formats(node)
        self._dying = _last_uses(self._schedule, {n.owner.uid for n in outputs})
        self.size = sum(n.nbytes for n in graph.inputs) + self._peak()
        try:
            self._memory = {n.uid: np.zeros(n.nbytes, np.uint8) for n in graph.inputs}
        except (MemoryError, ValueError) as error:
            memory = backend.backend_memory()
            memory.cpu.graph = max(memory.cpu.graph, self.size)
            reason = f"the graph's inputs do not fit in memory: {error}"
            raise OutOfMemory(reason, memory) from None
        self._fills = [fill_of(n, self._whole(n)) for n in graph.inputs]
        self._checks = index_checks(graph, {node: target for _, target, node in self._fills})
        self._closed = False

    def _whole(self, node: Node) -> np.ndarray:
        """The memory of an input in the form that `Feed` and `HostData` fill."""
        memory = self._memory[node.uid]
        return memory if node.dtype.numpy is None else Elements(memory, node).raw

    def _peak(self) -> int:
        sizes = {n.uid: n.nbytes for n in self._schedule if n.base is None}
        alive = peak = 0
        for node, dying in zip(self._schedule, self._dying, strict=True):
            alive += sizes.get(node.uid, 0)
            peak = max(peak, alive)
            alive -= sum(sizes[uid] for uid in dying)
        return peak

    @property
    def valid(self) -> bool:
        return not self._closed and not self._backend.closed

    def _run(self, step: Any, meanwhile: Callable[[], None] | None) -> None:
        self._run_each(step, lambda node, value: None)

    def _run_each(self, step: Any, visit: Callable[[Node, np.ndarray], None]) -> None:
        write_inputs(self._fills, step)
        for check in self._checks:
            check.run()
        try:
            with np.errstate(all="ignore"):  # infinities and NaN are legal values
                for node, dying in zip(self._schedule, self._dying, strict=True):
                    self._evaluate(node)
                    if node.n_elements:
                        visit(node, self._value(node))
                    for uid in dying:
                        del self._memory[uid]
        finally:
            self._backend.check_files()

    def _run_edited(self, step: Any, edits: Mapping[Node, Callable[[np.ndarray], object]]) -> None:
        def visit(node: Node, value: np.ndarray) -> None:
            if node in edits:
                edits[node](value)

        self._run_each(step, visit)

    def _evaluate(self, node: Node) -> None:
        assert node.op is not None
        try:
            if node.base is None:
                self._memory[node.uid] = np.empty(node.nbytes, np.uint8)
            if node.n_elements:
                operands = tuple(None if x is None else self._elements(x) for x in node.sources)
                EVALUATORS[node.op.name](self._elements(node), operands, node.attrs)
        except IndexError as error:  # computed indices; those of inputs were checked before
            raise ComputeError(f"{node.op.name}: {error}\n  at {node.site}") from None
        except MemoryError as error:
            reason = f"{node.op.name} into {node.describe()}: {error}"
            raise OutOfMemory(reason, self._backend.backend_memory()) from None

    def _elements(self, node: Node) -> Elements:
        if isinstance(node.storage, Weight):
            return self._backend.weight(node)
        owner = node.owner
        if isinstance(owner.storage, State):
            memory = owner.storage.handle
            if memory is None:
                raise GraphError(
                    f"{owner.describe()} was freed with its context or never allocated"
                )
        elif isinstance(owner.storage, Weight):
            memory = self._backend.bytes_of(owner)
        else:
            memory = self._memory.get(owner.uid)
            if memory is None:
                raise GraphError(f"{node.describe()} has no value; name it as an output")
        return Elements(memory, node)

    def _value(self, node: Node) -> np.ndarray:
        raw = self._elements(node).raw
        return raw if node.dtype.numpy is not None else raw.reshape(-1)

    def _close(self) -> None:
        self._closed = True
        self._memory.clear()
        self._fills = []
        self._checks = []


def _check_formats(node: Node) -> None:
    """Raises `TensorError` for an op on a block format without a decoder, or into one without an
    encoder."""
    assert node.op is not None
    if node.op.name in BYTEWISE:
        return
    writes_blocks = node.dtype.numpy is None and not can_encode(node.dtype)
    unread = [x for x in node.sources if x is not None and not can_decode(x.dtype)]
    if writes_blocks or unread:
        dtype = node.dtype if writes_blocks else unread[0].dtype
        reason = f"the reference backend cannot {'write' if writes_blocks else 'read'} {dtype.name}"
        raise impossible(node, reason)


def _last_uses(schedule: tuple[Node, ...], kept: set[int]) -> list[list[int]]:
    """For each op the results that it uses last, by uid."""
    last: dict[int, int] = {}
    for i, node in enumerate(schedule):
        for x in (node, *node.sources):
            owner = None if x is None else x.owner
            if owner is not None and owner.op is not None and owner.uid not in kept:
                last[owner.uid] = i
    dying: list[list[int]] = [[] for _ in schedule]
    for uid, i in last.items():
        dying[i].append(uid)
    return dying
