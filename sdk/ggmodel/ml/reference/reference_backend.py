"""The reference backend: weights are read from their source on use, states are plain arrays."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ...errors import Cancelled, OutOfMemory
from ...gguf_file import TensorSource
from ...gguf_file.types import DType
from ..backend import Backend, CacheConfig, Progress
from ..graph import Graph
from ..memory import AllocationStatus, BackendMemory, DeviceMemory
from ..node import Node
from ..params import BackendParams, FlashAttention
from ..placement import INPUT
from ..storage import State, Weight
from .elements import Elements
from .executable import ReferenceExecutable


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
        found = self._decoded.get(node.uid)
        if found is None:
            found = self._decoded[node.uid] = Elements(self.bytes_of(node), node, keep=True)
        return found

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
