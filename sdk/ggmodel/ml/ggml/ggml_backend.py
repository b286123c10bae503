"""The ggml backend: devices, memory, and the life of both."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Set
from contextlib import contextmanager

import numpy as np

from ...errors import Cancelled, GraphError, OutOfMemory, Unsupported
from ...gguf_file import TensorInfo, TensorSource
from ...gguf_file.buffer import has_changed
from ...gguf_file.types import DType
from ...native import ffi, lib
from ...resources import closed_on_error, need_room
from ..backend import Backend, CacheConfig, Progress
from ..devices import (
    AllocationStatus,
    BackendMemory,
    DeviceInfo,
    DeviceMemory,
    flash_attention_supported,
)
from ..graph import Graph
from ..node import Node, State
from ..params import INPUT, BackendParams, FlashAttention, layer_of
from ..system import system_info
from . import attention, ordered, transfer
from .compute import Compute, ComputeBuffer, Scheduler
from .hardware import Hardware
from .lowering import GGMLExecutable
from .memory import Buffer, SharedInputs, physically_possible, rows_of, set_rows_of, value_of
from .weights import Weights

# Tokens from which on copying weights to a device beats computing on the CPU: ggml's own limit.
_LARGE_BATCH = 32


class GGMLBackend(Backend):
    """ggml on the CPU and on the devices that layers are placed on.

    Attributes:
        hardware: the devices.
        weights: the weights' memory.
        inputs: memory that the inputs of all graphs share.
        attends: whether attention is computed by the kernel of our own: for sums that have one
            order, and on the CPU alone where it has vectors, since it is faster than ggml's.
    """

    def __init__(self, source: TensorSource, params: BackendParams):
        need_room(0, "the backend")
        if params.deterministic:
            ordered.find_kernels()
        super().__init__(source, params)
        self._process = os.getpid()
        self._compute: dict[bool, Compute] = {}
        self._description = 0  # bytes of the largest graph that may be kept, without its memory
        self.hardware = Hardware(params, self.block_count)
        self.inputs = SharedInputs(self.hardware.cpu, dry=not params.alloc_memory)
        # ggml says nothing about remote devices, and assumes that they have every op.
        local = [d.info for d in self.hardware.devices if d.info.library != "RPC"]
        self.flash_attention = params.flash_attention is FlashAttention.ON or (
            params.flash_attention is FlashAttention.AUTO and flash_attention_supported(local)
        )
        if params.deterministic and (self.hardware.gpus or not self.flash_attention):
            self.hardware.close()
            raise Unsupported(
                "deterministic=True computes on the CPU alone, by attention as one fused op: load "
                "with gpu_layers=0, and without flash_attention='off'"
            )
        fast = attention.instructions > attention.ANY and self.flash_attention
        self.attends = params.deterministic or (fast and self._alone)
        self.cache_config = CacheConfig(
            padding=256,
            permuted_v=not self.flash_attention,
            mask_dtype=DType.F16 if self.flash_attention else DType.F32,
            ordered=self.attends,
        )
        with closed_on_error(self.hardware):
            # Starts long before `allocate` knows which op reads what.
            self._read_ahead = transfer.ReadAhead(source, self._read_by_every_token(frozenset()))
        self.weights = Weights(source, params, self.hardware, self.tensors.values())

    def _read_by_every_token(self, tables: Set[str]) -> list[TensorInfo]:
        """Weights read in full for every token: blocks and output, but not vision or embedding
        tables (except `tables`). If they exceed memory those of experts are left out, which are
        read as they are chosen; if the others do too, all: the last would evict the first."""
        tensors = [
            info
            for name, info in self.source.tensors.items()
            if 0 <= layer_of(name, self.block_count) < self.block_count
            or name.startswith("output")
            or name in tables
        ]
        without_experts = [info for info in tensors if "_exps" not in info.name]
        free = system_info().free_memory
        for some in (tensors, without_experts) if self.params.alloc_memory else ():
            if sum(info.nbytes for info in some) <= free:
                return some
        return []

    def _allocate_weights(self, graphs: tuple[Graph, ...]) -> None:
        with self._attempt():
            cpu = self.backend_memory().cpu
            self.weights.allocate(graphs, sum(cpu.cache) + cpu.graph)
            self._check_sum()

    @contextmanager
    def _attempt(self) -> Iterator[None]:
        """Allocates: the report counts all that was allocated, and of failures the last alone."""
        if self.params.alloc_memory:
            for memory in (self.inputs, self.hardware.scratch, *self._compute.values()):
                memory.forget_failures()
        try:
            yield
        except OutOfMemory as error:
            error.memory = self.backend_memory()
            raise

    def _check_sum(self) -> None:
        """Raises `OutOfMemory` if the pieces fit, but their sum does not."""
        memory = self.backend_memory()
        needed = memory.input_weights + memory.cpu.size() - memory.mapped
        if self.params.alloc_memory and not physically_possible(needed):
            self.hardware.cpu.status = AllocationStatus.FAILED
            raise OutOfMemory(
                f"weights, cache and compute buffers need {needed:,} bytes, more than this machine "
                "has; a smaller context_length or parallel needs less"
            )

    def _read_weights(self, progress: Progress | None, cancel: Callable[[], bool] | None) -> None:
        # Copied weights leave memory, and must not be read ahead again.
        self._read_ahead.stop()
        self.weights.load(progress, cancel)
        # A token embedding that takes part in a product is the output layer, too.
        tables = {
            name for name in self.weights.in_products if layer_of(name, self.block_count) == INPUT
        }
        mapped = {copy.node.name for copy in self.weights.copies if copy.kind == "mapped"}
        tensors = [i for i in self._read_by_every_token(tables) if i.name in mapped]
        for piece in transfer.pieces(self.source, tensors):
            if cancel is not None and cancel():
                raise Cancelled("loading was cancelled")
            transfer.populate(piece)

    def _compile(self, graph: Graph, outputs: tuple[Node, ...]) -> GGMLExecutable:
        with self._attempt():
            parts = self.compute_for(graph), self.weights, self.inputs
            executable = GGMLExecutable(self, graph, outputs, *parts, self.attends)
        if graph.replayable:
            self._description = max(self._description, executable.description)
        return executable

    def compute_for(self, graph: Graph) -> Compute:
        """The compute memory that a graph shares with others.

        A scheduler of ggml either lets devices take over large products of weights in system
        memory or does not. Where that matters, large batches have a scheduler of their own. An
        unknown batch counts as small.
        """
        offload = self.hardware.offloads and graph.batch_size >= _LARGE_BATCH
        compute = self._compute.get(offload)
        if compute is None:
            hardware = self.hardware
            buffer = ComputeBuffer(hardware) if not hardware.gpus else None
            compute = self._compute[offload] = buffer or Scheduler(hardware, offload)
        return compute

    @property
    def _alone(self) -> bool:
        """Whether the CPU computes everything."""
        return len(self.hardware.devices) == 1

    def batches_to_reserve(self, largest: int) -> list[int]:
        few = _LARGE_BATCH - 1 if self.hardware.offloads else 0
        return [n for n in (few, 1) if 0 < n < largest]

    # states

    def _allocate_state(self, node: Node) -> None:
        assert isinstance(node.storage, State)
        device = self.hardware.of_state(node, node.storage.layer)
        with self._attempt():
            memory = Buffer(device, device.buffer_type, [node], dry=not self.params.alloc_memory)
        node.storage.handle = memory
        if not self.params.alloc_memory or not memory.handle:
            return
        # Attention multiplies unwritten cells by a zero weight, which NaN would survive.
        if device is self.hardware.cpu:
            transfer.clear(memory.handle)
        else:
            lib.ggml_backend_buffer_clear(memory.handle, 0)
        if node.storage.initial:
            self._write_state(node, node.storage.initial)

    def _write_state(self, node: Node, data: bytes) -> None:
        assert isinstance(node.storage, State)
        memory = node.storage.handle
        if memory is None:
            node.storage.initial = data
        elif self.params.alloc_memory and memory.handle:
            source = ffi.from_buffer(data)
            lib.ggml_backend_tensor_set(memory.tensors[node.uid], source, 0, node.nbytes)

    def _free_state(self, handle: Buffer) -> None:
        handle.close()

    def _read_state(self, node: Node) -> np.ndarray:
        assert isinstance(node.storage, State)
        if not self.params.alloc_memory:
            raise GraphError("this backend was made with alloc_memory=False and has no values")
        return value_of(node.storage.handle.tensors[node.uid], node).copy()

    def _read_rows(self, node: Node, rows: np.ndarray) -> np.ndarray:
        assert isinstance(node.storage, State)
        return rows_of(node.storage.handle.tensors[node.uid], node, rows)

    def _write_rows(self, node: Node, rows: np.ndarray, data: np.ndarray) -> None:
        assert isinstance(node.storage, State)
        set_rows_of(node.storage.handle.tensors[node.uid], node, rows, data)

    @property
    def compute_seconds(self) -> float:
        """Seconds that ggml has computed so far."""
        return self.hardware.threads.seconds

    def check_files(self) -> None:
        if self.weights.watch.changed:  # a few microseconds, since every token asks
            self.source.check_unchanged(self.weights.files)
            raise has_changed(f"a file of {self.source.name}")  # it asked none

    # memory

    def backend_memory(self) -> BackendMemory:
        with self.turn.lock:
            return self._memory()

    def _memory(self) -> BackendMemory:
        hardware, slots = self.hardware, self.block_count + 1
        reports = {
            d: DeviceMemory(
                d.name, [0] * slots, [0] * slots, status=d.status, device=d.info.device_id
            )
            for d in hardware.devices
        }
        memory = BackendMemory(reports[hardware.cpu], [reports[d] for d in hardware.gpus])
        memory.mapped = sum(c.nbytes for c in self.weights.copies if c.kind == "mapped")
        for spot, nbytes in self.weights.sizes():
            if spot.layer == INPUT and spot.device is hardware.cpu:
                memory.input_weights += nbytes
            else:
                reports[spot.device].weights[max(spot.layer, 0)] += nbytes
        for node in self._states.values():
            assert isinstance(node.storage, State)
            layer = min(node.storage.layer, self.block_count)
            handle = node.storage.handle
            size = handle.size if handle is not None else node.nbytes
            reports[hardware.of_state(node, layer)].cache[layer] += size
        for compute in self._compute.values():
            for device, size in compute.sizes.items():
                reports[device].graph += size
        memory.cpu.graph += self.inputs.size + self.hardware.scratch.size
        memory.cpu.graph += self.kept_graphs * self._description
        return memory

    def backend_devices(self) -> list[DeviceInfo]:
        used = {memory.device: memory.size() for memory in self.backend_memory().gpus}
        return [
            gpu.info
            for gpu in self.hardware.gpus
            if not self._allocated or used[gpu.info.device_id]
        ]

    # life

    def _release(self) -> None:
        for compute in self._compute.values():
            compute.close()
        self.inputs.close()
        self._read_ahead.stop()
        self.weights.close()
        self.hardware.close()

    @property
    def forked(self) -> bool:
        return self._process != os.getpid()

    def check_open(self) -> None:
        if self.closed:
            super().check_open()
        if self.forked:
            raise GraphError(
                "this model was loaded before the process forked: its compute threads stayed "
                "behind; load it again here, or start processes with 'spawn'"
            )

    def __del__(self) -> None:
        # For models that are dropped rather than closed: this object holds all of the memory.
        if getattr(self, "weights", None) is not None and not self.forked:
            self._close()
