"""Logical weights and their physical copies.

A weight lies on the device of its layer. On the CPU it stays in the mapped file if its bytes can be
used there. If ggml's kernels are faster with another arrangement (its "extra" buffer types), ops
that gain read a second copy: each buffer type is asked, weight by weight, whether it serves the op.
Some dtypes are faster rearranged for a few columns and as stored for many: then prompts read one
copy and single tokens the other.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Collection, Sequence, Set
from dataclasses import dataclass
from typing import Any

from ...errors import Error
from ...gguf_file import TensorSource
from ...native import ffi, lib, proc
from ...native.mapping import FileMapping, Watch
from ...resources import closed_on_error
from ..backend import Progress
from ..graph import Graph
from ..node import Node, Weight
from ..params import INPUT, BackendParams, Optimize, layer_of
from ..system import system_info
from ..tensor import Tensor
from . import measurements, products
from .experts import Choices
from .hardware import Hardware
from .memory import Arena, Buffer, Device, Mapping
from .transfer import Transfer, transfer

_log = logging.getLogger("ggmodel.ml")
_ALIGNMENT = 32  # of tensor data, asserted by ggml's CPU backend
_PRODUCTS = ("mulmat", "mulmat_id")
# Read by every layer: each device has a copy of its own.
_SHARED = frozenset({"rope_freqs", "rope_factors_long", "rope_factors_short"})


@dataclass(frozen=True)
class Spot:
    """A device that needs a weight, and the layer that the weight counts for there."""

    device: Device
    layer: int


@dataclass(frozen=True)
class Copy:
    """A weight in memory.

    Attributes:
        kind: "mapped", "plain" or "fast", that is rearranged for products.
        nbytes: with padding.
    """

    node: Tensor
    spot: Spot
    kind: str
    nbytes: int


class Weights:
    """All weights of a backend.

    Args:
        source: the file or files. nodes: a tensor for each of its tensors.

    Attributes:
        hardware: the devices.
        extra_buffer_types: the CPU's, which rearrange weights for its kernels.
        copies: the copies that take memory, once allocated.
        in_products: names of the weights in products, once allocated.
        files: numbers of the files from which weights are read as they lie there.
        watch: tells whether one of them has changed, as far as that can be seen.
        choices: of experts in files, where all weights together are larger than the free memory.
    """

    def __init__(
        self,
        source: TensorSource,
        params: BackendParams,
        hardware: Hardware,
        nodes: Collection[Tensor],
    ):
        self.hardware, self._source, self._params, self._nodes = hardware, source, params, nodes
        self.extra_buffer_types = extra_buffer_types(hardware.cpu.handle)
        self.copies: list[Copy] = []
        self.in_products: set[str] = set()
        self.files: tuple[int, ...] = ()
        self.watch = Watch(())
        self.choices: Choices | None = None
        self._plain: dict[int, dict[Device, Any]] = {}
        self._fast: dict[int, Any] = {}
        self._plain_is_faster: dict[int, tuple[bool, ...]] = {}
        self._devices: dict[tuple[int, int], Device] = {}
        self._spots: dict[int, list[Spot]] = {}
        self._groups: list[Buffer] = []
        self._to_copy: list[Transfer] = []

    def tensor(self, node: Node, reader: Node, operand: int, fast: bool) -> Any:
        """The copy that an op should read; with `fast` the rearranged one if it exists."""
        device = self._device_of_use(node, reader, operand)
        plain = self._plain.get(node.uid, {})
        rearranged = self._fast.get(node.uid)
        product = _is_product(reader, operand) and device is self.hardware.cpu
        fast = fast and not self._wants_plain(node, reader, operand)
        if product and rearranged is not None and (fast or not plain):
            return rearranged
        if plain:
            return plain.get(device) or next(iter(plain.values()))
        if rearranged is not None:
            assert reader.op is not None
            raise Error(
                f"{node.describe()} is only kept rearranged for products, not for "
                f"{reader.op.name}; trace all graphs before backend.allocate(*graphs)"
            )
        raise Error(f"{node.describe()} has no memory yet; call backend.allocate() first")

    # placement

    def sizes(self) -> list[tuple[Spot, int]]:
        """Bytes of each copy; without allocated copies, of each weight wherever it is needed."""
        if self.copies:
            return [(copy.spot, copy.nbytes) for copy in self.copies]
        spots = self._spots or {node.uid: self._spots_of(node, []) for node in self._nodes}
        return [(spot, node.nbytes) for node in self._nodes for spot in spots[node.uid]]

    def _spots_of(self, node: Tensor, readers: list[tuple[Node, int]]) -> list[Spot]:
        assert isinstance(node.storage, Weight)
        layers = {self._layer_of_use(node, *reader) for reader in readers} or {node.storage.layer}
        first: dict[Device, int] = {}
        for layer in sorted(layers):
            first.setdefault(self._device(node, layer), layer)
        return [Spot(device, layer) for device, layer in first.items()]

    def _device_of_use(self, node: Node, reader: Node, operand: int) -> Device:
        """The device on which an op reads a weight."""
        return self._device(node, self._layer_of_use(node, reader, operand))

    def _device(self, node: Node, layer: int) -> Device:
        key = node.uid, layer
        if key not in self._devices:
            self._devices[key] = self.hardware.of_weight(node, layer)
        return self._devices[key]

    def _layer_of_use(self, node: Node, reader: Node, operand: int) -> int:
        """The layer on whose device an op reads a weight: usually the weight's own. A token
        embedding in a product is an output weight."""
        assert isinstance(node.storage, Weight)
        if node.storage.layer == INPUT:
            return self.hardware.block_count if _is_product(reader, operand) else INPUT
        if node.name.partition(".")[0] in _SHARED:
            return layer_of(reader.name, self.hardware.block_count)
        return node.storage.layer

    def allocate(self, graphs: tuple[Graph, ...], beside: int = 0) -> None:
        """Decides the copies of each weight and allocates them: all or none.

        Args:
            beside: bytes that others will take on the CPU.
        """
        with closed_on_error(self):
            self._allocate_all(graphs, beside)

    def _allocate_all(self, graphs: tuple[Graph, ...], beside: int) -> None:
        cpu = self.hardware.cpu
        readers_by_uid = _readers(graphs)
        readers = {node.uid: readers_by_uid.get(node.uid, []) for node in self._nodes}
        self._spots = {n.uid: self._spots_of(n, readers[n.uid]) for n in self._nodes}
        self.in_products = {
            n.name for n in self._nodes if any(_is_product(*r) for r in readers[n.uid])
        }
        here = [n for n in self._nodes if any(s.device is cpu for s in self._spots[n.uid])]
        short = sum(node.nbytes for node in here) + beside > system_info().free_memory
        fast = {} if short else self._choose_fast(readers)
        as_they_lie = {
            node.uid
            for node in self._nodes
            if any(self._wants_plain(node, *reader) for reader in readers[node.uid])
        }
        mapped: dict[int, list[tuple[Tensor, Spot]]] = {}
        copied: dict[Device, list[tuple[Tensor, Spot]]] = {}
        for node in self._nodes:
            for spot in self._spots[node.uid]:
                file = _mapped_file(self._source, node) if spot.device is cpu else None
                if file is not None:
                    mapped.setdefault(file, []).append((node, spot))
                elif spot.device is not cpu or node.uid not in fast or node.uid in as_they_lie:
                    copied.setdefault(spot.device, []).append((node, spot))
        mappings: list[FileMapping] = []
        for file, nodes in mapped.items():
            view = self._source.mapped(file)
            assert view is not None
            group = Mapping(view, [node for node, _ in nodes])
            # Weights that are only read rearranged take no memory in the file.
            idle = {node.uid for node, _ in nodes} & (fast.keys() - as_they_lie)
            self._keep(group, nodes, "mapped", idle)
            if len(idle) < len({node.uid for node, _ in nodes}):
                self.files += (file,)
                if isinstance(view.obj, FileMapping):
                    mappings.append(view.obj)
        self.watch = Watch(mappings)
        if short and not self.hardware.gpus:
            experts = {
                node.uid: self._plain[node.uid][cpu]
                for nodes in mapped.values()
                for node, _ in nodes
                if any(op.op and op.op.name == "mulmat_id" for op, _ in readers[node.uid])
            }
            if experts:
                self.choices = Choices(experts)
                _log.info("weights exceed the free memory: experts are read from their file")
        for device, nodes in copied.items():
            self._allocate(nodes, device, device.buffer_type, "plain")
        for buffer_type in dict.fromkeys(fast.values()):
            chosen = [n for n in self._nodes if fast.get(n.uid) == buffer_type]
            spots_of = [(n, Spot(cpu, self._layer_of_product(n))) for n in chosen]
            self._allocate(spots_of, cpu, buffer_type, "fast")

    def _layer_of_product(self, node: Tensor) -> int:
        assert isinstance(node.storage, Weight)
        layer = node.storage.layer
        return self.hardware.block_count if layer == INPUT else layer

    def _allocate(
        self, nodes: list[tuple[Tensor, Spot]], device: Device, buffer_type: Any, kind: str
    ) -> None:
        group = Buffer(
            device,
            buffer_type,
            [node for node, _ in nodes],
            usage=lib.GGML_BACKEND_BUFFER_USAGE_WEIGHTS,
            dry=not self._params.alloc_memory,
        )
        self._keep(group, nodes, kind)
        whole = kind == "fast"  # a rearranging buffer takes a tensor in one piece
        self._to_copy += [Transfer(n, group.tensors[n.uid], device, whole) for n, _ in nodes]

    def _keep(
        self,
        group: Buffer,
        nodes: list[tuple[Tensor, Spot]],
        kind: str,
        idle: Set[int] = frozenset(),
    ) -> None:
        self._groups.append(group)
        for node, spot in nodes:
            if node.uid not in idle:
                self.copies.append(Copy(node, spot, kind, group.sizes[node.uid]))
            if kind == "fast":
                self._fast[node.uid] = group.tensors[node.uid]
            else:
                self._plain.setdefault(node.uid, {})[spot.device] = group.tensors[node.uid]

    def _choose_fast(self, readers: dict[int, list[tuple[Node, int]]]) -> dict[int, Any]:
        """Weight uid → extra buffer type that serves every product the CPU computes with it.

        Empty if a device may take over large products: it reads only plain system memory.
        """
        cpu = self.hardware.cpu
        types = self.extra_buffer_types
        if not types or self.hardware.offloads or self._params.deterministic:
            return {}
        chosen: dict[int, Any] = {}
        served: dict[tuple[Any, ...], bool] = {}

        def serves(buffer_type: Any, op: Node) -> bool:
            assert op.op is not None
            # Kernels depend on nothing else.
            operands = ((x.ne, x.nb, x.dtype) for x in op.sources if x is not None)
            key = (buffer_type, op.op.name, *operands)
            if key not in served:
                served[key] = _serves(cpu, buffer_type, op)
            return served[key]

        for node in self._nodes:
            ops = [
                op
                for op, i in readers[node.uid]
                if _is_product(op, i) and self._device_of_use(node, op, i) is cpu
            ]
            for buffer_type in types if ops else ():
                if all(serves(buffer_type, op) for op in ops):
                    chosen[node.uid] = buffer_type
                    break
        return self._without_second_copies(chosen, readers)

    def _without_second_copies(
        self, chosen: dict[int, Any], readers: dict[int, list[tuple[Node, int]]]
    ) -> dict[int, Any]:
        """Leaves out weights that are always faster as stored, and those that sometimes are if
        memory is short or to be saved."""
        both: dict[int, int] = {}
        plain_is_faster = functools.cache(measurements.plain_is_faster)
        for node in self._nodes:
            if node.uid not in chosen:
                continue
            faster = plain_is_faster(node.dtype, chosen[node.uid])
            columns = [_columns(op) for op, i in readers[node.uid] if _is_product(op, i)]
            # The batches between depend on the context's length: they do not count.
            plain = [measurements.at(faster, n) for n in (min(columns), max(columns))]
            if any(plain):
                self._plain_is_faster[node.uid] = faster
                both[node.uid] = node.nbytes
            if all(plain):
                del chosen[node.uid], both[node.uid]
        if self._params.optimize is Optimize.MEMORY or (
            both and 2 * sum(both.values()) > system_info().free_memory
        ):
            for uid in both:
                del chosen[uid]
        return chosen

    def multiplied(self, product: Node) -> bool:
        """Whether our own kernel computes an op, from its weight as stored."""
        if not _is_product(product, 0):
            return False
        weight = product.sources[0]
        return (
            weight is not None
            and isinstance(weight.storage, Weight)
            and (not self.copies or weight.uid in self._plain)
            and not self._params.deterministic
            and not self.hardware.gpus
            and not product.attrs.get("full_precision")
            and products.fits(product)
            and measurements.at(measurements.own_is_faster(weight.dtype), _columns(product))
            and (weight.uid not in self._fast or self._wants_plain(weight, product, 0))
        )

    def _wants_plain(self, node: Tensor | Node, reader: Node, operand: int) -> bool:
        """Whether an op should read a weight as stored, even if a rearranged copy exists."""
        if not _is_product(reader, operand):
            return True
        faster = self._plain_is_faster.get(node.uid)
        return faster is not None and measurements.at(faster, _columns(reader))

    # values

    def load(self, progress: Progress | None, cancel: Callable[[], bool] | None) -> None:
        """Copies into every buffer that is no mapping."""
        transfer(self._source, self._to_copy, self.hardware.n_threads, progress, cancel)
        self._to_copy.clear()

    def close(self) -> None:
        while self._groups:
            self._groups.pop().close()
        self._plain.clear()
        self._fast.clear()
        self._to_copy.clear()
        self.copies.clear()
        self.files, self.watch, self.choices = (), Watch(()), None


def extra_buffer_types(device: Any) -> list[Any]:
    """The CPU's buffer types that rearrange weights for its kernels."""
    registry = lib.ggml_backend_dev_backend_reg(device)
    try:
        handles = proc(registry, "ggml_backend_dev_get_extra_bufts")(device)
    except Error:
        return []  # a build without them
    types = []
    while handles and handles[len(types)] != ffi.NULL:
        types.append(handles[len(types)])
    return types


def _is_product(reader: Node, operand: int) -> bool:
    return operand == 0 and reader.op is not None and reader.op.name in _PRODUCTS


def _readers(graphs: Sequence[Graph]) -> dict[int, list[tuple[Node, int]]]:
    """The ops that read each weight, with the operand's number, by the weight's uid."""
    readers: dict[int, list[tuple[Node, int]]] = {}
    for graph in graphs:
        for op in graph.schedule:
            for i, x in enumerate(op.sources):
                if x is not None and isinstance(x.storage, Weight):
                    readers.setdefault(x.uid, []).append((op, i))
    return readers


def _mapped_file(source: TensorSource, node: Tensor) -> int | None:
    """The number of the file whose mapping serves the weight, or None."""
    assert isinstance(node.storage, Weight)
    info = node.storage.info
    view = source.mapped(info.file)
    if view is None or info.offset % _ALIGNMENT:
        return None
    return info.file


def _columns(product: Node) -> int:
    """The number of columns of a product; for experts, the average of each."""
    weight, x = product.sources[:2]
    assert weight is not None and x is not None and product.op is not None
    if product.op.name == "mulmat":
        return x.ne[1]
    return max(1, product.ne[1] * product.ne[2] // weight.ne[2])


def _serves(cpu: Device, buffer_type: Any, op: Node) -> bool:
    """Whether the CPU computes a product with a weight in this buffer type."""
    from .emitters import EMITTERS

    assert op.op is not None
    arena = Arena(8)
    buffer = lib.ggml_backend_buft_alloc_buffer(buffer_type, 0)
    try:
        operands = tuple(ffi.NULL if x is None else arena.tensor(x) for x in op.sources)
        operands[0].buffer = buffer
        t = EMITTERS[op.op.name](arena.ctx, operands, op.attrs)
        return bool(t) and lib.ggml_backend_supports_op(cpu.backend, t)
    finally:
        lib.ggml_backend_buffer_free(buffer)
        arena.close()
