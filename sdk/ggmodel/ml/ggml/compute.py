"""Compute buffers: the memory of intermediate results, and the runs of graphs in it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from time import perf_counter
from typing import Any

from ...errors import ComputeError
from ...native import ffi, lib
from ..devices import AllocationStatus
from .hardware import Hardware
from .memory import Arena, Device, physically_possible

COMPUTES_NOTHING = frozenset(
    {
        lib.GGML_OP_NONE,
        lib.GGML_OP_RESHAPE,
        lib.GGML_OP_VIEW,
        lib.GGML_OP_PERMUTE,
        lib.GGML_OP_TRANSPOSE,
    }
)


def need_success(status: int) -> None:
    """Raises `ComputeError` unless ggml's status is success."""
    if status != lib.GGML_STATUS_SUCCESS:
        raise ComputeError(f"ggml stopped computing with status {int(status)}")


def nodes_of(cgraph: Any) -> list[Any]:
    """The ops of a graph, in order."""
    return [lib.ggml_graph_node(cgraph, i) for i in range(lib.ggml_graph_n_nodes(cgraph))]


class Compute(ABC):
    """Lays graphs out in memory that they share, one after the other, and runs them.

    Attributes:
        generation: counts up whenever all graphs laid out before become invalid.
        sizes: bytes by device, the last failed attempt included.
    """

    def __init__(self) -> None:
        self.generation = 0
        self.sizes: dict[Device, int] = {}

    def forget_failures(self) -> None:
        """Has `sizes` count the memory alone that was taken."""
        self.sizes = {device: self._taken(device) for device in self.sizes}

    @abstractmethod
    def _taken(self, device: Device) -> int:
        """Bytes taken on the device."""

    @abstractmethod
    def measure(self, cgraph: Any, most_tensors: int) -> bool:
        """Records the graph's need in `sizes`; it cannot be laid out afterwards. False if the
        machine has less memory."""

    @abstractmethod
    def lay_out(self, cgraph: Any, most_tensors: int) -> bool:
        """Gives every tensor of the graph its address; False if memory is short.

        Args:
            most_tensors: nodes and leaves, at most.
        """

    @abstractmethod
    def compute(self, cgraph: Any, meanwhile: Callable[[], None] | None = None) -> int:
        """Runs a graph that is laid out; returns ggml's status.

        Args:
            meanwhile: called while devices compute; never if this thread computes all.
        """

    @abstractmethod
    def compute_apart(self, cgraph: Any, visit: Callable[[Any], None] | None = None) -> list[float]:
        """Runs a graph that is laid out node by node, one at a time.

        Args:
            visit: called with each node, whose value the next one may overwrite.

        Returns:
            Seconds by node; 0 for those that compute nothing, such as views.

        Raises:
            ComputeError: ggml stopped.
        """

    @abstractmethod
    def compute_in_pieces(self, cgraph: Any, stops: Mapping[Any, Callable[[], None]]) -> None:
        """Runs a graph that is laid out, and calls the function of each node in `stops` right after
        it was computed.

        Raises:
            ComputeError: ggml stopped.
        """

    @abstractmethod
    def close(self) -> None:
        """Frees the memory; idempotent."""


class ComputeBuffer(Compute):
    """One allocator for all graphs of the CPU.

    Graphs stay laid out until the memory moves, which it does only to grow.
    """

    def __init__(self, hardware: Hardware):
        super().__init__()
        self._device, self._threads = hardware.cpu, hardware.threads
        self._scratch = hardware.scratch
        self._allocator = lib.ggml_gallocr_new(self._device.buffer_type)

    def measure(self, cgraph: Any, most_tensors: int) -> bool:
        needed = ffi.new("size_t[1]")
        before = self._begin_moving()  # memory that is too small for the graph is freed at once
        lib.ggml_gallocr_reserve_n_size(self._allocator, cgraph, ffi.NULL, ffi.NULL, needed)
        self._end_moving(before)
        self.sizes[self._device] = max(self.sizes.get(self._device, 0), needed[0])
        possible = physically_possible(needed[0])
        if possible:
            self._scratch.measure(nodes_of(cgraph))
        return possible

    def _begin_moving(self) -> int:
        """Called before the memory may move; after an interrupt it counts as moved."""
        self.generation += 1
        return self._taken(self._device)

    def _end_moving(self, before: int) -> None:
        if self._taken(self._device) == before:
            self.generation -= 1

    def _taken(self, device: Device) -> int:
        return lib.ggml_gallocr_get_buffer_size(self._allocator, 0)

    def lay_out(self, cgraph: Any, most_tensors: int) -> bool:
        self._device.status = AllocationStatus.FAILED
        if not self.measure(cgraph, most_tensors):
            return False
        before = self._begin_moving()
        done = lib.ggml_gallocr_reserve(self._allocator, cgraph)
        self._end_moving(before)
        if not done or not lib.ggml_gallocr_alloc_graph(self._allocator, cgraph):
            return False
        self._scratch.take(nodes_of(cgraph))
        self.sizes[self._device] = self._taken(self._device)
        self._device.status = AllocationStatus.ALLOCATED
        return True

    def compute(self, cgraph: Any, meanwhile: Callable[[], None] | None = None) -> int:
        began = self._threads.begin()
        status = lib.ggml_backend_graph_compute(self._device.backend, cgraph)
        self._threads.end(began)
        return status

    def compute_apart(self, cgraph: Any, visit: Callable[[Any], None] | None = None) -> list[float]:
        arena, backend = Arena(0, 1), self._device.backend
        alone = lib.ggml_new_graph_custom(arena.ctx, 1, False)
        seconds: list[float] = []
        started = self._threads.begin()
        try:
            for node in nodes_of(cgraph):
                seconds.append(0.0)
                if node.op not in COMPUTES_NOTHING:
                    lib.ggml_graph_clear(alone)
                    lib.ggml_graph_add_node(alone, node)
                    began = perf_counter()
                    status = lib.ggml_backend_graph_compute(backend, alone)
                    seconds[-1] = perf_counter() - began
                    need_success(status)
                if visit is not None:
                    visit(node)
        finally:
            self._threads.end(started)
            arena.close()
        return seconds

    def compute_in_pieces(self, cgraph: Any, stops: Mapping[Any, Callable[[], None]]) -> None:
        nodes, backend = nodes_of(cgraph), self._device.backend
        arena = Arena(0, len(nodes))
        piece = lib.ggml_new_graph_custom(arena.ctx, len(nodes), False)
        started = self._threads.begin()
        try:
            for i, node in enumerate(nodes):
                lib.ggml_graph_add_node(piece, node)
                stop = stops.get(node)
                if stop is not None or i == len(nodes) - 1:
                    need_success(lib.ggml_backend_graph_compute(backend, piece))
                    lib.ggml_graph_clear(piece)
                if stop is not None:
                    stop()
        finally:
            self._threads.end(started)
            arena.close()

    def close(self) -> None:
        allocator, self._allocator = self._allocator, None
        if allocator:
            self.generation += 1
            lib.ggml_gallocr_free(allocator)


class Scheduler(Compute):
    """ggml's scheduler over several devices. It holds one graph: laying out the next ends it.

    Args:
        offload: let devices take over large products of weights in system memory.
    """

    def __init__(self, hardware: Hardware, offload: bool):
        super().__init__()
        self._devices, self._offload = hardware.devices, offload
        self._threads, self._scratch = hardware.threads, hardware.scratch
        self._handle: Any = None
        self._capacity = 0

    def _open(self, most_tensors: int) -> None:
        """Makes or resets the scheduler, whose tables have a fixed size; ends its graph."""
        self.generation += 1
        if self._handle and most_tensors <= self._capacity:
            lib.ggml_backend_sched_reset(self._handle)
            return
        self.close()
        self._capacity = max(1024, 1 << (most_tensors - 1).bit_length())
        backends = ffi.new("ggml_backend_t[]", [d.backend for d in self._devices])
        self._handle = lib.ggml_backend_sched_new(
            backends, ffi.NULL, len(backends), self._capacity, False, self._offload
        )

    def measure(self, cgraph: Any, most_tensors: int) -> bool:
        self._open(most_tensors)
        needed = ffi.new("size_t[]", len(self._devices))
        lib.ggml_backend_sched_reserve_size(self._handle, cgraph, needed)
        possible = physically_possible(needed[len(self._devices) - 1])
        if possible:
            self._scratch.measure(self._on_cpu(cgraph))
        lib.ggml_backend_sched_reset(self._handle)
        for device, size in zip(self._devices, needed, strict=True):
            self.sizes[device] = max(self.sizes.get(device, 0), size)
        return possible

    def _on_cpu(self, cgraph: Any) -> list[Any]:
        """The ops that the CPU computes."""
        cpu, home = self._devices[-1].backend, lib.ggml_backend_sched_get_tensor_backend
        return [node for node in nodes_of(cgraph) if home(self._handle, node) == cpu]

    def lay_out(self, cgraph: Any, most_tensors: int) -> bool:
        self._open(most_tensors)
        for device in self._devices:
            device.status = AllocationStatus.FAILED
        if not lib.ggml_backend_sched_alloc_graph(self._handle, cgraph):
            lib.ggml_backend_sched_reset(self._handle)
            return False
        self._scratch.take(self._on_cpu(cgraph))
        for device in self._devices:
            device.status = AllocationStatus.ALLOCATED
            self.sizes[device] = self._taken(device)
        return True

    def _taken(self, device: Device) -> int:
        return lib.ggml_backend_sched_get_buffer_size(self._handle, device.backend)

    def compute(self, cgraph: Any, meanwhile: Callable[[], None] | None = None) -> int:
        began = self._threads.begin()
        try:
            status = lib.ggml_backend_sched_graph_compute_async(self._handle, cgraph)
            if meanwhile is not None and status == lib.GGML_STATUS_SUCCESS:
                meanwhile()
        finally:
            lib.ggml_backend_sched_synchronize(self._handle)
            self._threads.end(began)
        return status

    def compute_apart(self, cgraph: Any, visit: Callable[[Any], None] | None = None) -> list[float]:
        seconds: dict[Any, float] = {}
        began = 0.0

        def asked(_: Any) -> bool:
            nonlocal began
            began = perf_counter()
            return True

        def computed(node: Any) -> None:
            seconds[node] = perf_counter() - began
            if visit is not None:
                visit(node)

        self._observed(cgraph, asked, computed)
        nodes = nodes_of(cgraph)
        return [0.0 if n.op in COMPUTES_NOTHING else seconds.get(n, 0.0) for n in nodes]

    def compute_in_pieces(self, cgraph: Any, stops: Mapping[Any, Callable[[], None]]) -> None:
        self._observed(cgraph, lambda node: node in stops, lambda node: stops[node]())

    def _observed(
        self, cgraph: Any, stops: Callable[[Any], bool], visit: Callable[[Any], None]
    ) -> None:
        """Runs a graph, and stops after each node for which `stops` is true to call `visit`."""
        failed: list[BaseException] = []

        @ffi.callback("bool(struct ggml_tensor *, bool, void *)")
        def observe(node: Any, ask: bool, _: Any) -> bool:
            if ask:
                return stops(node)
            try:
                visit(node)
            except BaseException as error:  # must not pass through C
                failed.append(error)
            return not failed

        started = self._threads.begin()
        lib.ggml_backend_sched_set_eval_callback(self._handle, observe, ffi.NULL)
        try:
            need_success(lib.ggml_backend_sched_graph_compute(self._handle, cgraph))
        finally:
            lib.ggml_backend_sched_set_eval_callback(self._handle, ffi.NULL, ffi.NULL)
            self._threads.end(started)
        if failed:
            raise failed[0]

    def close(self) -> None:
        handle, self._handle = self._handle, None
        if handle:
            self.generation += 1
            lib.ggml_backend_sched_free(handle)
