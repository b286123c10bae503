"""Descriptions of tensors, their buffers, and access to their values."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import GraphError, OutOfMemory
from ...native import ffi, last_abort, lib
from ..memory import AllocationStatus
from ..node import Node
from ..storage import Weight
from ..system import total_memory

if TYPE_CHECKING:
    from .hardware import Device


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


class Buffer:
    """Tensors that lie together in memory of one type.

    Args:
        device: the memory's device.
        usage: one of ggml's GGML_BACKEND_BUFFER_USAGE_…
        dry: takes no memory; all else is the same.

    Attributes:
        tensors: by the uid of their node.
        sizes: bytes with padding, by the uid of the node.

    Raises:
        OutOfMemory: the device has less memory.
    """

    def __init__(
        self, device: Device, buffer_type: Any, nodes: Sequence[Node], *, usage: int, dry: bool
    ):
        for node in nodes:
            if node.nbytes >= 1 << 63:  # ggml 0.25 refuses to describe it at all
                raise _does_not_fit(device, [node], node.nbytes)
        self.arena = Arena(len(nodes))
        self.handle: Any = None
        try:
            self.tensors = {node.uid: self.arena.tensor(node) for node in nodes}
            self.sizes = {
                node.uid: padded_size(buffer_type, self.tensors[node.uid], node) for node in nodes
            }
            self.size = sum(self.sizes.values())
            if dry:
                self.handle = lib.ggml_backend_buft_alloc_buffer(buffer_type, 0)
                for t in self.tensors.values():
                    t.buffer = self.handle
            elif self.size:
                self._allocate(device, buffer_type, nodes)
        except BaseException:
            self.close()
            raise
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
        self.arena.close()


def _does_not_fit(device: Device, nodes: Sequence[Node], nbytes: int) -> OutOfMemory:
    what = nodes[0].describe() if len(nodes) == 1 else f"{len(nodes)} tensors"
    return OutOfMemory(f"{nbytes:,} bytes for {what} do not fit in the memory of {device.name}")


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


def lies_in_host_memory(t: Any) -> bool:
    """Whether `value_of` returns the tensor's memory itself."""
    return bool(t.buffer) and lib.ggml_backend_buffer_is_host(t.buffer)


def _memory(t: Any, nbytes: int) -> np.ndarray:
    if lies_in_host_memory(t):
        return np.frombuffer(ffi.buffer(t.data, nbytes), np.uint8)
    copy = np.empty(nbytes, np.uint8)
    lib.ggml_backend_tensor_get(t, ffi.from_buffer(copy), 0, nbytes)
    return copy
