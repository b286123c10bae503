"""Devices, descriptions of tensors, their buffers, and access to their values."""

from __future__ import annotations

import functools
import mmap
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from typing import Any

import numpy as np

from ...errors import ComputeError, GraphError, OutOfMemory
from ...native import ffi, last_abort, lib
from ...resources import closed_on_error, need_room
from ..devices import AllocationStatus, DeviceInfo
from ..node import Node, Weight
from ..system import total_memory

_LARGE_ARENA = 1 << 16  # bytes
_SERIAL = "RPC"  # one connection, whose messages must not mix


class Arena:
    """A ggml context for tensors without data.

    Its size is an upper bound. A large one therefore lies in pages of its own, of which only those
    that are used take memory: the heap would give it pages that others have used.
    """

    def __init__(self, tensors: int, graph_nodes: int = 0):
        size = lib.ggml_tensor_overhead() * tensors
        if graph_nodes:
            size += lib.ggml_graph_overhead_custom(graph_nodes, False)
        self._pages: Any = ffi.NULL
        need_room(size, "the descriptions of tensors")
        if size >= _LARGE_ARENA:
            try:
                self._pages = ffi.from_buffer(mmap.mmap(-1, size))
            except OSError:
                raise self._lacking(size, tensors) from None
        self.ctx = lib.ggml_init({"mem_size": size, "mem_buffer": self._pages, "no_alloc": True})
        if not self.ctx:
            raise self._lacking(size, tensors)

    def _lacking(self, size: int, tensors: int) -> OutOfMemory:
        return OutOfMemory(f"{size} bytes for the descriptions of {tensors} tensors")

    def tensor(self, node: Node) -> Any:
        """A ggml tensor of the node's shape and dtype.

        A tensor without elements gets its own address: ggml's allocators would take a null pointer
        for "not yet placed".
        """
        t = lib.ggml_new_tensor_4d(self.ctx, int(node.dtype), *node.ne)
        if not t:
            raise GraphError(f"ggml cannot describe {node.describe()}: {last_abort()}")
        if not node.n_elements:
            t.data = ffi.cast("void *", t)
        lib.ggml_set_name(t, node.name.encode()[-63:])
        return t

    def close(self) -> None:
        ctx, self.ctx = self.ctx, None  # before the call, so that an interrupt frees it only once
        if ctx:
            lib.ggml_free(ctx)
        self._pages = None


class Device:
    """One open device.

    Attributes:
        info: its description.
        handle: the `ggml_backend_dev_t`. backend: the `ggml_backend_t`.
        buffer_type: of its own memory.
        status: state of the last allocation on it.
    """

    def __init__(self, info: DeviceInfo, handle: Any):
        self.info, self.handle = info, handle
        self.status = AllocationStatus.UNALLOCATED
        self.backend = lib.ggml_backend_dev_init(handle, ffi.NULL)
        if not self.backend:
            raise ComputeError(f"the device {info.name} could not be initialised")
        self.buffer_type = lib.ggml_backend_dev_buffer_type(handle)

    @property
    def name(self) -> str:
        """ggml's name for it."""
        return self.info.name

    @property
    def serial(self) -> bool:
        """Whether it takes one transfer at a time."""
        return self.info.library == _SERIAL

    def holds(self, node: Node) -> bool:
        """Whether a tensor fits there: GPUs may address less at once than they have."""
        with closing(Arena(1)) as arena:
            return lib.ggml_backend_supports_op(self.backend, arena.tensor(node))

    def close(self) -> None:
        backend, self.backend = self.backend, None
        if backend:
            lib.ggml_backend_free(backend)


class Described:
    """Tensors as ggml describes them; subclasses give them memory.

    Attributes:
        tensors: by the uid of their node.
        sizes: bytes with padding, by the uid of the node. size: their sum.

    Raises:
        OutOfMemory: a tensor is larger than any memory.
    """

    def __init__(self, device: Device, buffer_type: Any, nodes: Sequence[Node]):
        for node in nodes:
            if node.nbytes >= 1 << 63:  # ggml 0.25 refuses to describe it at all
                raise _does_not_fit(device, [node], node.nbytes)
        self.arena = Arena(len(nodes))
        with closed_on_error(self.arena):
            self.tensors = {node.uid: self.arena.tensor(node) for node in nodes}
            self.sizes = {
                node.uid: padded_size(buffer_type, self.tensors[node.uid], node) for node in nodes
            }
        self.size = sum(self.sizes.values())

    def close(self) -> None:
        """Frees the descriptions; idempotent."""
        self.arena.close()


class Buffer(Described):
    """Tensors that lie together in memory of one type.

    Args:
        device: the memory's device.
        usage: one of ggml's GGML_BACKEND_BUFFER_USAGE_…; 0 is any.
        dry: takes no memory; all else is the same.

    Raises:
        OutOfMemory: the device has less memory.
    """

    def __init__(
        self, device: Device, buffer_type: Any, nodes: Sequence[Node], *, usage: int = 0, dry: bool
    ):
        super().__init__(device, buffer_type, nodes)
        self.handle: Any = None
        with closed_on_error(self):
            if dry:
                # ggml's plans ask the tensors of rearranged weights, in extra types of the CPU, for
                # their kernels. A buffer without any byte would not set these.
                extra = device.info.library == "CPU" and buffer_type != device.buffer_type
                self.handle = lib.ggml_backend_buft_alloc_buffer(buffer_type, int(extra))
                for t in self.tensors.values():
                    t.buffer = self.handle
                    if extra:
                        lib.ggml_backend_buffer_init_tensor(self.handle, t)
            elif self.size:
                self._allocate(device, buffer_type, nodes)
        if self.handle:
            lib.ggml_backend_buffer_set_usage(self.handle, usage)

    def _allocate(self, device: Device, buffer_type: Any, nodes: Sequence[Node]) -> None:
        device.status = AllocationStatus.FAILED
        host = lib.ggml_backend_buft_is_host(buffer_type)
        if not host or physically_possible(self.size):
            self.handle = lib.ggml_backend_alloc_ctx_tensors_from_buft(self.arena.ctx, buffer_type)
        if not self.handle:
            raise _does_not_fit(device, nodes, self.size)
        device.status = AllocationStatus.ALLOCATED

    def close(self) -> None:
        handle, self.handle = self.handle, None
        if handle:
            lib.ggml_backend_buffer_free(handle)
        super().close()


def _does_not_fit(device: Device, nodes: Sequence[Node], nbytes: int) -> OutOfMemory:
    what = nodes[0].describe() if len(nodes) == 1 else f"{len(nodes)} tensors"
    return OutOfMemory(f"{nbytes:,} bytes for {what} do not fit in the memory of {device.name}")


class SharedInputs:
    """Memory for the inputs of one graph at a time: all graphs share it, as each run writes its
    inputs anew.

    Args:
        device: the memory's device.
        dry: takes no memory; all else is the same.

    Attributes:
        size: bytes: those of the largest graph so far, the last failed attempt included.
        generation: counts up whenever the memory moves, which it does only to grow. Graphs placed
            before become invalid.
    """

    def __init__(self, device: Device, *, dry: bool):
        self._device, self._dry = device, dry
        self._handle: Any = None
        self._actual = self.size = self.generation = 0

    def forget_failures(self) -> None:
        """Has `size` count the memory alone that was taken."""
        self.size = self._actual

    def place(self, nodes: Sequence[Node]) -> Described:
        """Places the inputs of a graph; the result is closed with the graph.

        Raises:
            OutOfMemory: the device has less memory; nothing has changed but `size`.
        """
        placed = Described(self._device, self._device.buffer_type, nodes)
        with closed_on_error(placed):
            self.size = max(self._actual, placed.size)
            if self.size > self._actual or not self._handle:
                self._grow(nodes)
            self._put(placed, nodes)
        return placed

    def _put(self, placed: Described, nodes: Sequence[Node]) -> None:
        if self._dry:
            for t in placed.tensors.values():
                t.buffer = self._handle
            return
        at = int(ffi.cast("uintptr_t", lib.ggml_backend_buffer_get_base(self._handle)))
        for node in nodes:
            if node.n_elements:
                address = ffi.cast("void *", at)
                lib.ggml_backend_tensor_alloc(self._handle, placed.tensors[node.uid], address)
            at += placed.sizes[node.uid]

    def _grow(self, nodes: Sequence[Node]) -> None:
        kind = self._device.buffer_type
        if self._dry:
            handle = lib.ggml_backend_buft_alloc_buffer(kind, 0)
        else:
            self._device.status = AllocationStatus.FAILED
            possible = physically_possible(self.size)
            handle = possible and lib.ggml_backend_buft_alloc_buffer(kind, self.size)
            if not handle:
                raise _does_not_fit(self._device, nodes, self.size)
            self._device.status = AllocationStatus.ALLOCATED
        self.close()
        self._handle, self._actual = handle, self.size

    def close(self) -> None:
        """Frees the memory; idempotent."""
        handle, self._handle = self._handle, None
        if handle:
            self.generation += 1
            lib.ggml_backend_buffer_free(handle)


class Mapping(Buffer):
    """Weights in a mapped file."""

    def __init__(self, view: memoryview, nodes: Iterable[Node]):
        nodes = list(nodes)
        self._view = ffi.from_buffer(view)  # keeps the file mapped
        self._base = int(ffi.cast("uintptr_t", self._view))
        self.arena = Arena(len(nodes))
        self.handle = lib.ggml_backend_cpu_buffer_from_ptr(self._view, view.nbytes)
        lib.ggml_backend_buffer_set_usage(self.handle, lib.GGML_BACKEND_BUFFER_USAGE_WEIGHTS)
        self.tensors = {node.uid: self._place(node) for node in nodes}
        self.sizes = {node.uid: node.nbytes for node in nodes}

    def _place(self, node: Node) -> Any:
        assert isinstance(node.storage, Weight)
        t = self.arena.tensor(node)
        if not node.n_elements:
            return t
        address = ffi.cast("void *", self._base + node.storage.info.offset)
        lib.ggml_backend_tensor_alloc(self.handle, t, address)
        return t

    def close(self) -> None:
        super().close()
        self._view = None


def padded_size(buffer_type: Any, t: Any, node: Node) -> int:
    """Bytes of a separate tensor in memory of this type."""
    if not node.n_elements:
        return 0
    alignment = lib.ggml_backend_buft_get_alignment(buffer_type)
    # Not less than our own figure: ggml's may have overflowed.
    size = max(node.nbytes, lib.ggml_backend_buft_get_alloc_size(buffer_type, t))
    return -(-size // alignment) * alignment


def physically_possible(nbytes: int) -> bool:
    """False beyond the memory of the machine or of the control groups: the system might grant it
    nevertheless, and end the process when it is written."""
    return nbytes <= _most_memory()


@functools.cache
def _most_memory() -> int:
    """Cached, because every layout of a graph asks for it and it hardly ever changes."""
    try:
        return total_memory()
    except (AttributeError, ValueError, OSError):  # not a Unix
        return 1 << 46


def value_of(t: Any, node: Node) -> np.ndarray:
    """A tensor's value as a numpy array of the reversed shape, raw bytes where numpy lacks the
    dtype: the memory itself if the host has it, else a copy."""
    if not node.n_elements:
        kind = node.dtype.numpy
        return np.zeros(0, np.uint8) if kind is None else np.zeros(node.ne[::-1], kind)
    if node.dtype.numpy is None:
        if not node.is_contiguous:
            raise GraphError(f"{node.describe()} is no dense block of memory; make it contiguous")
        return _memory(t, node.nbytes)
    span = node.dtype.type_size + sum((n - 1) * b for n, b in zip(node.ne, node.nb, strict=True))
    return np.ndarray(node.ne[::-1], node.dtype.numpy, _memory(t, span), 0, node.nb[::-1])


def rows_of(t: Any, node: Node, rows: np.ndarray) -> np.ndarray:
    """A copy of rows int64 [n] of a dense tensor, uint8 [n, bytes of a row]."""
    if lies_in_host_memory(t):
        return _memory(t, node.nbytes).reshape(-1, node.nb[1])[rows]
    copy = np.empty((len(rows), node.nb[1]), np.uint8)
    for begin, end in _runs(rows):
        to, first = ffi.from_buffer(copy[begin:end]), int(rows[begin]) * node.nb[1]
        lib.ggml_backend_tensor_get(t, to, first, (end - begin) * node.nb[1])
    return copy


def set_rows_of(t: Any, node: Node, rows: np.ndarray, data: np.ndarray) -> None:
    """Sets rows int64 [n] of a dense tensor to uint8 [n, bytes of a row]; a ValueError for data of
    another shape."""
    if data.shape != (len(rows), node.nb[1]):
        raise ValueError(f"{len(rows)} rows have no {data.shape} bytes")
    if lies_in_host_memory(t):
        _memory(t, node.nbytes).reshape(-1, node.nb[1])[rows] = data
        return
    for begin, end in _runs(rows):
        values, first = ffi.from_buffer(data[begin:end]), int(rows[begin]) * node.nb[1]
        lib.ggml_backend_tensor_set(t, values, first, (end - begin) * node.nb[1])


def _runs(rows: np.ndarray) -> Iterator[tuple[int, int]]:
    """Begin and end of each stretch of consecutive numbers."""
    breaks = (np.flatnonzero(np.diff(rows) != 1) + 1).tolist()
    return zip([0, *breaks], [*breaks, len(rows)], strict=True) if len(rows) else iter(())


def lies_in_host_memory(t: Any) -> bool:
    """Whether `value_of` returns the tensor's memory itself."""
    return bool(t.buffer) and lib.ggml_backend_buffer_is_host(t.buffer)


def _memory(t: Any, nbytes: int) -> np.ndarray:
    if lies_in_host_memory(t):
        return np.frombuffer(ffi.buffer(t.data, nbytes), np.uint8)
    copy = np.empty(nbytes, np.uint8)
    lib.ggml_backend_tensor_get(t, ffi.from_buffer(copy), 0, nbytes)
    return copy
