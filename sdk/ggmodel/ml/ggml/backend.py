"""The backend: devices, threads, memory."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import Any

import numpy as np

from ...errors import ComputeError, GraphError, OutOfMemory
from ...gguf import TensorSource
from ...gguf.types import DType
from ...native import ThreadPool, ffi, lib, proc
from ..backend import Backend, BackendParams, CacheConfig, FlashAttention, Progress
from ..graph import Graph
from ..memory import AllocationStatus, BackendMemory
from ..node import Node
from ..placement import INPUT, count_memory
from ..storage import State, Weight
from ..system import available_cores
from ..tensor import Tensor
from .lowering import Arena, ComputeBuffer, GGMLExecutable, host_view, physically_possible
from .weights import Weights, extra_buffer_types

log = logging.getLogger("ggmodel.ml")


class StateMemory:
    """The memory of one state tensor."""

    def __init__(self, node: Node, buffer_type: Any):
        self.arena = Arena(1)
        self.handle: Any = None
        if physically_possible(node.nbytes):
            self.tensor = self.arena.tensor(node)
            if not node.n_elements:
                return
            self.handle = lib.ggml_backend_alloc_ctx_tensors_from_buft(self.arena.ctx, buffer_type)
        if not self.handle:
            self.arena.close()
            raise OutOfMemory(f"{node.nbytes:,} bytes for {node.describe()} do not fit in memory")
        # Never-written cells are multiplied by a zero weight in attention; NaN would survive that.
        lib.ggml_backend_buffer_clear(self.handle, 0)

    def close(self) -> None:
        if self.handle:
            lib.ggml_backend_buffer_free(self.handle)
            self.handle = None
        self.arena.close()


class GGMLBackend(Backend):
    """ggml on the CPU.

    Attributes:
        cpu: the `ggml_backend_t`.
        compute_buffer: shared by all graphs, which take turns.
    """

    def __init__(self, source: TensorSource, params: BackendParams):
        super().__init__(source, params)
        device = lib.ggml_backend_dev_by_type(lib.GGML_BACKEND_DEVICE_TYPE_CPU)
        self.cpu = lib.ggml_backend_dev_init(device, ffi.NULL)
        if not self.cpu:
            raise ComputeError("ggml's CPU backend could not be initialised")
        self.extra_buffer_types = extra_buffer_types(device)
        # ggml's threads wait for each other in a spin: more of them than cores all but stand still.
        cores = available_cores()
        self.n_threads = min(params.num_threads or cores, cores)
        if params.num_threads > cores:
            log.warning("threads: %d wanted, %d used", params.num_threads, cores)
        self._pool = ThreadPool(self.n_threads)
        self._pool.attach(self.cpu)
        registry = lib.ggml_backend_dev_backend_reg(device)
        proc(registry, "ggml_backend_set_n_threads")(self.cpu, self.n_threads)
        self.compute_buffer = ComputeBuffer(lib.ggml_backend_cpu_buffer_type())
        self.flash_attention = params.flash_attention is not FlashAttention.OFF
        self.cache_config = CacheConfig(
            padding=256,
            permuted_v=not self.flash_attention,
            mask_dtype=DType.F16 if self.flash_attention else DType.F32,
        )
        self._process = os.getpid()
        self.weights = Weights(self)

    def get(self, name: str) -> Tensor | None:
        return self.weights.nodes.get(name)

    def allocate(self, *graphs: Graph) -> None:
        self.check_open()
        if self._allocated:
            return
        try:
            self.weights.allocate(graphs)
            memory = self.backend_memory()
            if not physically_possible(memory.size() - memory.mapped):
                raise OutOfMemory(
                    f"weights, cache and compute buffers need {memory.size() - memory.mapped:,} "
                    "bytes, more than this machine has; a smaller context_length or parallel "
                    "needs less"
                )
            self._allocated = True
            for node in self._states.values():
                self._allocate_state(node)
        except OutOfMemory as error:
            error.memory = self.backend_memory()
            raise

    def _read_weights(self, progress: Progress | None, cancel: Callable[[], bool] | None) -> None:
        self.weights.load(progress, cancel)

    def _compile(self, graph: Graph, outputs: tuple[Node, ...]) -> GGMLExecutable:
        return GGMLExecutable(self, graph, outputs)

    # states

    def _allocate_state(self, node: Node) -> None:
        assert isinstance(node.storage, State)
        try:
            memory = StateMemory(node, lib.ggml_backend_cpu_buffer_type())
        except OutOfMemory as error:
            error.memory = self.backend_memory()
            raise
        node.storage.handle = memory
        if node.storage.initial:
            data = ffi.from_buffer(node.storage.initial)
            lib.ggml_backend_tensor_set(memory.tensor, data, 0, node.nbytes)

    def _free_state(self, handle: StateMemory) -> None:
        handle.close()

    def read(self, node: Node) -> np.ndarray:
        self.check_open()
        if isinstance(node.storage, Weight):
            raw = np.frombuffer(self.source.data(node.name), np.uint8)
            return raw if node.dtype.numpy is None else raw.view(node.dtype.numpy)
        if isinstance(node.storage, State) and node.storage.handle is not None:
            return host_view(node.storage.handle.tensor, node).copy()
        raise GraphError(f"{node.describe()} has no value")

    # memory

    def backend_memory(self) -> BackendMemory:
        memory = count_memory(self.block_count, self.weights.nodes.values(), self._states.values())
        for node in self.weights.rearranged:
            assert isinstance(node.storage, Weight)
            # A tied embedding is rearranged for its use as the output.
            layer = self.block_count if node.storage.layer == INPUT else node.storage.layer
            memory.cpu.weights[layer] += node.nbytes
        inputs = sum(executable.input_bytes for executable in self._executables)
        memory.cpu.graph = self.compute_buffer.size + inputs
        memory.mapped = self.weights.mapped_bytes
        if self._allocated:
            memory.cpu.status = AllocationStatus.ALLOCATED
        return memory

    # life

    def _release(self) -> None:
        self.compute_buffer.close()
        self.weights.close()
        lib.ggml_backend_free(self.cpu)
        self._pool.close()

    def check_open(self) -> None:
        super().check_open()
        if self._process != os.getpid():
            raise GraphError(
                "this model was loaded before the process forked: its compute threads stayed "
                "behind; load it again here, or start processes with 'spawn'"
            )

    def __del__(self) -> None:
        # For models that are dropped rather than closed; whatever holds memory hangs on this one.
        if getattr(self, "weights", None) is not None and self._process == os.getpid():
            self.close()
