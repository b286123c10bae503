"""Nodes of the recorded graph: the base of every tensor, and the sources of leaves' values.

A node has its place in the graph, its layout and its host value. Leaves are tensors that no op
computes.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from ..errors import TensorError
from ..gguf_file.types import DType
from .table import Op, Shape, contiguous_strides, need, trim

if TYPE_CHECKING:
    from ..gguf_file.source import TensorInfo

_AT_ONCE = 1 << 17  # elements of `Rows` that are made at once: they fit a core's cache


class Weight:
    """A logical tensor of a file. Its physical copies belong to the backend.

    Attributes:
        info: the file's description of it.
        layer: the layer it is placed and counted with; `block_count` is the output layer, −1 the
            input (CPU, immovable).
    """

    __slots__ = ("backend", "info", "layer")

    def __init__(self, backend: Any, info: TensorInfo, layer: int):
        self.backend, self.info, self.layer = backend, info, layer


class State:
    """Memory that outlives a graph and may be written by it, such as a key/value cache.

    Attributes:
        layer: the layer on whose device it lies and in whose cache figure it is counted.
        initial: the first bytes; None is all zero.
        handle: the backend's memory for it; None before allocation.
    """

    __slots__ = ("backend", "handle", "initial", "layer")

    def __init__(self, backend: Any, layer: int, initial: bytes | None = None):
        self.backend, self.layer, self.initial = backend, layer, initial
        self.handle: Any = None


class HostData:
    """Values written by the host, read anew by every execution of the graph.

    Attributes:
        array: numpy array of the reversed shape; raw uint8 [bytes] for dtypes numpy lacks.
    """

    __slots__ = ("array",)

    def __init__(self, array: np.ndarray):
        self.array = array

    def fill(self, step: Any) -> np.ndarray:
        """The values, the same for every step."""
        return self.array


class Feed:
    """An input filled before each execution: a graph whose inputs are all feeds can be replayed.

    Attributes:
        fill: called with the run's step; returns an array that broadcasts to the reversed
            shape of the tensor, or `Rows` of that shape.
        trusted: `fill` guarantees that indices are in range. Those of other feeds are checked
            before each run, because a bad index would end the process in ggml's kernels.
    """

    __slots__ = ("fill", "trusted")

    def __init__(self, fill: Callable[[Any], Any], trusted: bool = False):
        self.fill, self.trusted = fill, trusted


class Rows:
    """Values of a feed that are made some rows at a time, as they are written: a large array, such
    as a mask, then takes no memory beside the input's own.

    Args:
        shape: of the whole array, [rows, ...].
        make: a slice of rows → their values.
    """

    def __init__(self, shape: tuple[int, ...], dtype: Any, make: Callable[[slice], np.ndarray]):
        self.shape, self.dtype, self._make = shape, dtype, make
        self._at_once = max(1, _AT_ONCE * shape[0] // max(1, math.prod(shape)))

    def write(self, target: np.ndarray) -> None:
        """Writes all rows into a dense array of this shape, or of [1, …, *shape].

        Raises:
            ValueError: the array has another shape.
        """
        lead = target.ndim - len(self.shape)
        if target.shape != (1,) * lead + self.shape:
            raise ValueError(f"values of shape {self.shape} for an input {target.shape}")
        target = target.reshape(self.shape)
        for begin in range(0, self.shape[0], self._at_once):
            rows = slice(begin, begin + self._at_once)
            target[rows] = self._make(rows)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        whole = np.empty(self.shape, self.dtype)
        self.write(whole)
        return whole if dtype is None else whole.astype(dtype, copy=False)


def exact(values: np.ndarray, dtype: Any) -> np.ndarray:
    """Values for a tensor: of integers as they are stored, of other numbers unchanged.

    Args:
        dtype: numpy's type of the tensor; None if numpy lacks it.

    Raises:
        ValueError: one of them is no integer of that type.
    """
    if dtype is None or np.dtype(dtype).kind not in "iu":
        return values
    with np.errstate(invalid="ignore"):  # NaN and infinity are told below
        cast = values.astype(dtype)
    wrong = np.flatnonzero(np.not_equal(cast, values))
    if wrong.size:
        raise ValueError(f"{values.reshape(-1)[wrong[0]]} is no {np.dtype(dtype).name}")
    return cast


def as_array(data: Any, dtype: DType) -> np.ndarray:
    """A sequence or array, such as a caller gives, as values of a tensor of F32 or I32.

    Raises:
        TensorError: they are no numbers, or no integers of that type.
    """
    try:
        array = np.asarray(data)
        if array.dtype.kind in "cSUO":
            raise TypeError("these are no real numbers of at most 64 bits")
        return np.asarray(exact(array, dtype.numpy), dtype.numpy)
    except (ValueError, TypeError) as error:
        raise TensorError(f"values for {dtype}: {error}") from None


def numbers(values: Any) -> np.ndarray:
    """The result of a feed's function as an array; TypeError if it is no array of numbers."""
    array = np.asarray(values)
    if array.dtype.hasobject:  # numpy would make NaN of None
        raise TypeError(f"it returned {values!r}, not numbers")
    return array


_uids = itertools.count(1)
T = TypeVar("T", bound="Node")


class Site:
    """A source line of a model: file, line number, function name."""

    __slots__ = ("file", "function", "line")

    def __init__(self, file: str, line: int, function: str):
        self.file, self.line, self.function = file, line, function

    def __str__(self) -> str:
        return f"{self.file}:{self.line} in {self.function}"


class Node:
    """A tensor: either the result of an op, or a leaf with a storage.

    Attributes:
        ne: all four dims, dim 0 fastest. nb: strides in bytes.
        op, sources, attrs: how it is computed; op is None for a leaf.
        storage: the source of a leaf's value.
        base, offset: for a view, the tensor that owns the memory and the byte it begins at.
        graph: the `Graph` it belongs to; None for weights and states, which serve every graph.
        site: the model's source line that made it.
    """

    __slots__ = (
        "attrs",
        "base",
        "dtype",
        "graph",
        "name",
        "named",
        "nb",
        "ne",
        "offset",
        "op",
        "site",
        "sources",
        "storage",
        "uid",
        "value",
    )

    def __init__(self, ne: Shape, dtype: DType, *, name: str = "", nb: Shape | None = None):
        self.uid = next(_uids)
        self.ne = ne
        self.dtype = dtype
        self.nb = nb if nb is not None else contiguous_strides(ne, dtype)
        self.name = name
        self.named = bool(name)
        self.op: Op | None = None
        self.sources: tuple[Node | None, ...] = ()
        self.attrs: dict[str, Any] = {}
        self.storage: Weight | State | HostData | Feed | None = None
        self.base: Node | None = None
        self.offset = 0
        self.graph: Any = None
        self.site: Site | None = None
        self.value: np.ndarray | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Dims without trailing ones, dim 0 fastest; at least one."""
        return trim(self.ne)

    @property
    def owner(self) -> Node:
        """The tensor whose memory this is: of a view its base, otherwise itself."""
        return self if self.base is None else self.base

    @property
    def n_elements(self) -> int:
        """Elements in all dims."""
        a, b, c, d = self.ne
        return a * b * c * d

    @property
    def nbytes(self) -> int:
        """Bytes of a contiguous copy."""
        return self.dtype.row_size(self.ne[0]) * self.ne[1] * self.ne[2] * self.ne[3]

    def dim(self, n: int) -> int:
        """Elements along dim n, 0 ≤ n ≤ 3."""
        return self.ne[_axis(n)]

    def stride(self, n: int) -> int:
        """Bytes from one element of dim n to the next, 0 ≤ n ≤ 3."""
        return self.nb[_axis(n)]

    @property
    def is_contiguous(self) -> bool:
        """Whether the elements lie side by side in order."""
        return self.nb == contiguous_strides(self.ne, self.dtype) or not self.n_elements

    @property
    def has_rows(self) -> bool:
        """Whether the elements of dim 0 lie side by side."""
        return self.nb[0] == self.dtype.type_size

    def adopt_name(self, name: str) -> None:
        """Takes the module's name unless an inner module or the author named it."""
        if not self.named and self.op is not None:
            self.name, self.named = name, True

    def describe(self) -> str:
        """Kind, name, dtype and shape, for messages."""
        kind = {Weight: "weight ", State: "cache ", HostData: "input ", Feed: "feed "}
        label = kind.get(type(self.storage), "") + (repr(self.name) if self.name else "tensor")
        return f"{label} {self.dtype.name} {list(self.shape)}"

    def __repr__(self) -> str:
        return f"<Tensor {self.describe()}>"


def _axis(n: int) -> int:
    if type(n) is not int or not 0 <= n <= 3:
        raise TensorError(f"a tensor has dims 0 to 3, not {n!r}")
    return n


def need_writable(x: Node) -> None:
    """Raises `Mismatch` where x lies in a weight."""
    owner = x.owner
    need(
        not isinstance(owner.storage, Weight),
        lambda: (
            f"{owner.describe()} cannot be written: it may lie in the mapped file, and other "
            "graphs read it; write to a duplicate() or to a tensor of ctx.layer(i)"
        ),
    )


def cut(node: Node) -> None:
    """Has a node forget how it is computed, which frees the nodes that it is computed from."""
    node.sources, node.attrs, node.base, node.graph = (), {}, None, None


def failure(
    op: str,
    operands: tuple[Node | None, ...],
    attrs: dict[str, Any],
    scope: str,
    site: Site | None,
    reason: str,
) -> TensorError:
    """The error for an impossible op, with all that an author needs to find it."""
    settings = "".join(f", {k}={v!r}" for k, v in attrs.items())
    inner = ", ".join("None" if x is None else x.describe() for x in operands)
    where = "".join((f"\n  in module {scope}" if scope else "", f"\n  at {site}" if site else ""))
    return TensorError(f"{op}: {reason}\n  operands: {inner}{settings}{where}")


def impossible(node: Node, reason: str) -> TensorError:
    """The `failure` of an op that was recorded."""
    assert node.op is not None
    scope = node.name.rpartition(".")[0]
    return failure(node.op.name, node.sources, node.attrs, scope, node.site, reason)
