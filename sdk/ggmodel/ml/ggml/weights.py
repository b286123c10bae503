"""Logical weights and their physical copies.

A weight is mapped where the CPU can use the file's bytes as they lie. Where ggml's kernels are
faster with another arrangement (its "extra" buffer types), the ops that profit read a second copy:
each buffer type itself is asked, weight by weight, whether it serves the op.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ...errors import Cancelled, Error, OutOfMemory
from ...native import ffi, lib, proc
from ..backend import Progress
from ..graph import Graph
from ..node import Node
from ..placement import weights_of
from ..storage import Weight
from ..tensor import Tensor
from .lowering import Arena, physically_possible

if TYPE_CHECKING:
    from .backend import GGMLBackend

_ALIGNMENT = 32  # of tensor data, asserted by ggml's CPU backend
_CHUNK = 16 << 20  # bytes copied between two looks at `cancel`
_PRODUCTS = ("mulmat", "mulmat_id")


class Buffers:
    """Memory of one buffer type for some of the weights."""

    def __init__(self, nodes: Sequence[Node], buffer_type: Any):
        self.arena = Arena(len(nodes))
        self.tensors = {node.uid: self.arena.tensor(node) for node in nodes}
        size = lib.ggml_backend_alloc_ctx_tensors_from_buft_size(self.arena.ctx, buffer_type)
        self.handle: Any = None
        if physically_possible(size):
            self.handle = lib.ggml_backend_alloc_ctx_tensors_from_buft(self.arena.ctx, buffer_type)
        if not self.handle:
            self.arena.close()
            raise OutOfMemory(f"{size:,} bytes of weights do not fit in memory")
        lib.ggml_backend_buffer_set_usage(self.handle, lib.GGML_BACKEND_BUFFER_USAGE_WEIGHTS)

    def close(self) -> None:
        lib.ggml_backend_buffer_free(self.handle)
        self.arena.close()


class Mapping:
    """Weights that lie in a mapped file."""

    def __init__(self, view: memoryview, nodes: list[Node]):
        self._view = ffi.from_buffer(view)  # keeps the file mapped
        self._base = int(ffi.cast("uintptr_t", self._view))
        self.arena = Arena(len(nodes))
        self.handle = lib.ggml_backend_cpu_buffer_from_ptr(self._view, view.nbytes)
        lib.ggml_backend_buffer_set_usage(self.handle, lib.GGML_BACKEND_BUFFER_USAGE_WEIGHTS)
        self.tensors = {node.uid: self._place(node) for node in nodes}

    def _place(self, node: Node) -> Any:
        assert isinstance(node.storage, Weight)
        t = self.arena.tensor(node)
        if not node.n_elements:
            return t
        address = ffi.cast("void *", self._base + node.storage.info.offset)
        lib.ggml_backend_tensor_alloc(self.handle, t, address)
        return t

    def close(self) -> None:
        lib.ggml_backend_buffer_free(self.handle)
        self.arena.close()
        self._view = None


class Weights:
    """All weights of a backend."""

    def __init__(self, backend: GGMLBackend):
        self._backend = backend
        self.nodes = weights_of(backend)
        self._plain: dict[int, Any] = {}
        self._fast: dict[int, Any] = {}
        self._groups: list[Buffers | Mapping] = []
        self._to_copy: list[tuple[Tensor, Any, bool]] = []

    def tensor(self, node: Node, reader: Node, operand: int, fast: bool) -> Any:
        """The copy that an op should read; with `fast` the rearranged one where there is one."""
        assert reader.op is not None
        product = operand == 0 and reader.op.name in _PRODUCTS
        if product and node.uid in self._fast and (fast or node.uid not in self._plain):
            return self._fast[node.uid]
        t = self._plain.get(node.uid)
        if t is None and node.uid in self._fast:
            raise Error(
                f"{node.describe()} is only kept rearranged for products, not for "
                f"{reader.op.name}; trace all graphs before backend.allocate(*graphs)"
            )
        if t is None:
            raise Error(f"{node.describe()} has no memory yet; call backend.allocate() first")
        return t

    def allocate(self, graphs: tuple[Graph, ...]) -> None:
        """Decides for each weight which copies there are and allocates them."""
        fast = self._choose_fast(graphs)
        readers = _other_readers(graphs)
        mapped: dict[int, list[Node]] = {}
        copied: list[Tensor] = []
        for node in self.nodes.values():
            file = _mapped_file(self._backend, node)
            if file is not None:
                mapped.setdefault(file, []).append(node)
            elif node.uid not in fast or node.uid in readers:
                copied.append(node)
        for file, nodes in mapped.items():
            view = self._backend.source.mapped(file)
            assert view is not None
            self._keep(Mapping(view, nodes), self._plain)
        if copied:
            self._allocate(copied, lib.ggml_backend_cpu_buffer_type(), self._plain)
        for buffer_type in dict.fromkeys(fast.values()):
            chosen = [n for n in self.nodes.values() if fast.get(n.uid) == buffer_type]
            self._allocate(chosen, buffer_type, self._fast)

    def _allocate(self, nodes: list[Tensor], buffer_type: Any, index: dict[int, Any]) -> None:
        group = Buffers(nodes, buffer_type)
        self._keep(group, index)
        whole = index is self._fast  # a rearranging buffer takes a tensor in one piece
        self._to_copy += [(n, group.tensors[n.uid], whole) for n in nodes]

    def _keep(self, group: Buffers | Mapping, index: dict[int, Any]) -> None:
        self._groups.append(group)
        index.update(group.tensors)

    def _choose_fast(self, graphs: tuple[Graph, ...]) -> dict[int, Any]:
        """Weight uid → extra buffer type that serves every product it takes part in."""
        types = self._backend.extra_buffer_types
        if not types:
            return {}
        products: dict[int, list[Node]] = {}
        for graph in graphs:
            for op in graph.schedule:
                weight = op.sources[0] if op.sources else None
                if weight is None or not isinstance(weight.storage, Weight):
                    continue
                if op.op is not None and op.op.name in _PRODUCTS:
                    products.setdefault(weight.uid, []).append(op)
        chosen: dict[int, Any] = {}
        for uid, ops in products.items():
            for buffer_type in types:
                if all(_serves(self._backend, buffer_type, op) for op in ops):
                    chosen[uid] = buffer_type
                    break
        return chosen

    def load(self, progress: Progress | None, cancel: Callable[[], bool] | None) -> None:
        """Copies into every buffer that is no mapping."""
        total = sum(node.nbytes for node, _, _ in self._to_copy) or 1
        done = 0
        for node, t, whole in self._to_copy:
            data = self._backend.source.data(node.name)
            step = data.nbytes if whole else _CHUNK
            for start in range(0, data.nbytes, step):
                if cancel is not None and cancel():
                    raise Cancelled("loading was cancelled")
                piece = data[start : start + step]
                lib.ggml_backend_tensor_set(t, ffi.from_buffer(piece), start, piece.nbytes)
                done += piece.nbytes
                if progress is not None and done < total:
                    progress(done / total)
        self._to_copy.clear()
        if progress is not None:
            progress(1.0)

    @property
    def rearranged(self) -> list[Tensor]:
        """The weights that have a second copy, arranged anew, beside the plain one."""
        both = self._fast.keys() & self._plain.keys()
        return [node for node in self.nodes.values() if node.uid in both]

    @property
    def mapped_bytes(self) -> int:
        """Bytes that lie in mapped files rather than in memory of their own."""
        return sum(
            node.nbytes
            for group in self._groups
            if isinstance(group, Mapping)
            for node in self.nodes.values()
            if node.uid in group.tensors
        )

    def close(self) -> None:
        while self._groups:
            self._groups.pop().close()
        self._plain.clear()
        self._fast.clear()


def extra_buffer_types(device: Any) -> list[Any]:
    """The buffer types in which the CPU's kernels want their weights rearranged."""
    registry = lib.ggml_backend_dev_backend_reg(device)
    try:
        found = proc(registry, "ggml_backend_dev_get_extra_bufts")(device)
    except Error:
        return []  # a build without them
    types = []
    while found and found[len(types)] != ffi.NULL:
        types.append(found[len(types)])
    return types


def _mapped_file(backend: GGMLBackend, node: Tensor) -> int | None:
    """The file whose mapping serves the weight as it lies, or None."""
    assert isinstance(node.storage, Weight)
    info = node.storage.info
    view = backend.source.mapped(info.file)
    if view is None or info.offset % _ALIGNMENT:
        return None
    return info.file


def _other_readers(graphs: tuple[Graph, ...]) -> set[int]:
    """Uids of weights that any op but a product reads, or no op at all in these graphs."""
    seen: set[int] = set()
    for graph in graphs:
        for op in graph.schedule:
            assert op.op is not None
            for i, x in enumerate(op.sources):
                if x is not None and (i or op.op.name not in _PRODUCTS):
                    seen.add(x.uid)
    return seen


def _serves(backend: GGMLBackend, buffer_type: Any, op: Node) -> bool:
    """Whether the CPU computes a product on a weight that lies in this buffer type."""
    from .emitters import EMITTERS

    assert op.op is not None
    arena = Arena(8)
    buffer = lib.ggml_backend_buft_alloc_buffer(buffer_type, 0)
    try:
        operands = tuple(ffi.NULL if x is None else arena.tensor(x) for x in op.sources)
        operands[0].buffer = buffer
        t = EMITTERS[op.op.name](arena.ctx, operands, op.attrs)
        return bool(t) and lib.ggml_backend_supports_op(backend.cpu, t)
    finally:
        lib.ggml_backend_buffer_free(buffer)
        arena.close()
