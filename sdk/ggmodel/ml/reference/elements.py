"""Elements of tensors in memory as exact numbers, and the table of evaluators for them.

An evaluator takes the elements of the result and of the operands (None for an absent one) and the
op's attributes, and writes the result. Arrays have all four axes of the reversed shape: a tensor
[k, m] is an array [1, 1, m, k].
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from ...errors import Unsupported
from ...gguf_file.types import DType
from ..node import Node
from ..tensor import to_float32


class Elements:
    """The elements of one tensor, which may be a strided window into the memory of another.

    Attributes:
        raw: of the reversed shape; uint8 [d3, d2, d1, blocks, bytes of a block] for dtypes that
            numpy lacks (block formats, and BF16 as blocks of one).
    """

    __slots__ = ("_decoded", "_keep", "dtype", "raw", "shape")

    def __init__(self, memory: np.ndarray, node: Node, keep: bool = False):
        """`memory`: uint8, of the tensor that owns it. `keep`: the elements never change, so blocks
        are decoded only once."""
        self.dtype = node.dtype
        self.shape = node.ne[::-1]
        shape, strides, kind = self.shape, node.nb[::-1], node.dtype.numpy
        if kind is None:
            blocks = node.ne[0] // node.dtype.block_size
            shape = (*shape[:3], blocks, node.dtype.type_size)
            strides = (*strides, 1)
            kind = np.dtype(np.uint8)
        if node.n_elements:
            self.raw = np.ndarray(shape, kind, memory, node.offset, strides)
        else:
            self.raw = np.zeros(shape, kind)
        self._keep = keep
        self._decoded: np.ndarray | None = None

    def read(self) -> np.ndarray:
        """The values as float64, or integers as they are; read-only."""
        if self.dtype.numpy is None:
            values = self._decoded
            if values is None:
                blocks = np.ascontiguousarray(self.raw).reshape(-1)
                values = to_float32(blocks, self.dtype, self.shape[::-1])
                if self._keep:
                    self._decoded = values
            return values.astype(np.float64)
        return self.raw if self.dtype.is_integer else self.raw.astype(np.float64, copy=False)

    def write(self, values: np.ndarray) -> None:
        """Rounds values of the tensor's shape to its dtype: in one step, or through float32 for
        formats that are defined on it."""
        assert values.shape == self.shape, (values.shape, self.shape)
        self.raw[...] = encode(values, self.dtype)


def encode(values: np.ndarray, dtype: DType) -> np.ndarray:
    """Values [..., n] in the form of `Elements.raw`. Integers drop the fraction of floats.

    Raises:
        Unsupported: a block format without an encoder.
    """
    if dtype.numpy is not None:
        return values.astype(dtype.numpy, copy=False)
    from gguf.constants import GGMLQuantizationType
    from gguf.quants import quantize

    rows = np.ascontiguousarray(values, np.float32)
    try:
        data = quantize(rows, GGMLQuantizationType(dtype.value))
    except (ValueError, NotImplementedError, KeyError) as error:
        raise Unsupported(f"values cannot be rounded to {dtype.name}: {error}") from error
    blocks = values.shape[-1] // dtype.block_size
    return data.view(np.uint8).reshape(*values.shape[:-1], blocks, dtype.type_size)


@cache
def can_decode(dtype: DType) -> bool:
    """Whether `Elements.read` supports the dtype."""
    if dtype.numpy is None:
        try:
            to_float32(np.zeros(dtype.type_size, np.uint8), dtype, (dtype.block_size,))
        except Unsupported:
            return False
    return True


@cache
def can_encode(dtype: DType) -> bool:
    """Whether `Elements.write` supports the dtype."""
    try:
        encode(np.zeros(dtype.block_size), dtype)
    except Unsupported:
        return False
    return True


Evaluator = Callable[[Elements, tuple[Elements | None, ...], dict[str, Any]], None]
EVALUATORS: dict[str, Evaluator] = {}

# Ops that move elements of any format without decoding them.
BYTEWISE = frozenset({"contiguous", "duplicate", "reshape", "view", "permute", "repeat", "concat"})


def evaluates(name: str) -> Callable[[Evaluator], Evaluator]:
    """Enters the decorated evaluator for the op `name`."""

    def enter(evaluator: Evaluator) -> Evaluator:
        EVALUATORS[name] = evaluator
        return evaluator

    return enter


def computes(name: str) -> Callable[[Callable[..., np.ndarray]], Callable[..., np.ndarray]]:
    """Enters a function of the operands' values, with the attributes as keywords; its result is
    rounded to the op's dtype."""

    def enter(function: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
        def evaluate(out: Elements, x: tuple[Elements | None, ...], attrs: dict[str, Any]) -> None:
            out.write(function(*(None if e is None else e.read() for e in x), **attrs))

        EVALUATORS[name] = evaluate
        return function

    return enter


def tiled(x: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """x repeated along every axis to fill the shape: ggml's broadcasting."""
    return np.tile(x, [n // m for n, m in zip(shape, x.shape, strict=True)])


def in_range(ids: np.ndarray, bound: int) -> np.ndarray:
    """The indices.

    Raises:
        IndexError: one is not below `bound`, or negative, which numpy would count from the end.
    """
    if ids.size and not (ids.min() >= 0 and ids.max() < bound):
        raise IndexError(f"an index is {ids.min()} or {ids.max()}, not 0 to {bound - 1}")
    return ids
