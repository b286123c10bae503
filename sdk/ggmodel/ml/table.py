"""The op table: one entry per primitive op, read by everything that handles ops.

An entry has the operands (the dtypes and memory layouts that its kernels take) and the rule that
checks shapes and gives the result's shape and dtype. Tensor methods record entries, backends look
up an emitter or evaluator by the entry's name. All shapes are ggml order: dim 0 is the fastest.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..gguf_file.types import DType

Shape = tuple[int, int, int, int]

F32, F16, BF16, I32, I64 = DType.F32, DType.F16, DType.BF16, DType.I32, DType.I64
ANY = frozenset(DType)
FLOATS = frozenset({F32, F16, BF16})
FULL = frozenset({F32})
HALF = frozenset({F32, F16})
_MOST_BYTES = 1 << 48  # the address space of a process
# Dtypes with kernels for products, look-ups and conversions. ggml rounds activations to Q8_1 and
# Q8_K while it multiplies; weights of these types would be a call of a null pointer.
NUMBERS = FLOATS | {t for t in DType if t.is_quantized} - {DType.Q8_1, DType.Q8_K}


class Layout(enum.IntEnum):
    """A kernel's demand on an operand's memory; a weaker operand is made contiguous first."""

    ANY = 0
    ROWS = 1  # elements of dim 0 lie side by side
    CONTIGUOUS = 2


@dataclass(frozen=True)
class Operand:
    """One operand of an op.

    Attributes:
        dtypes: accepted as they are.
        cast: the dtype that other float dtypes are converted to; None makes them an error.
        layout: the memory layout the kernels need.
        optional: may be None.
        selects: for indices, the operand that they select from and its dim.
    """

    name: str
    dtypes: frozenset[DType] = FULL
    cast: DType | None = None
    layout: Layout = Layout.ANY
    optional: bool = False
    selects: tuple[int, int] | None = None


def dense(name: str, dtypes: frozenset[DType] = FULL, optional: bool = False) -> Operand:
    """An operand whose kernels want contiguous memory, and F32 for other float dtypes."""
    return Operand(name, dtypes, F32, Layout.CONTIGUOUS, optional)


class Result(NamedTuple):
    """A rule's answer: shape, dtype and, for a result that shares memory, its place there.

    Attributes:
        alias: the operand, a `Node`, whose memory the result shares; `nb` and `offset` (bytes,
            relative to that operand's first byte) place it there.
    """

    ne: Shape
    dtype: DType
    alias: Any = None
    nb: Shape | None = None
    offset: int = 0


Rule = Callable[..., Result]
"""Computes a result from operands and attributes."""


class Mismatch(Exception):
    """Raised by rules: the operands do not fit; the recorder adds op, shapes and source line."""


@dataclass(frozen=True)
class Op:
    """An entry of the table.

    Attributes:
        own: no method of the given interface (see docs/ml.md) records it.
    """

    name: str
    operands: tuple[Operand, ...]
    rule: Rule
    own: bool = False


OPS: dict[str, Op] = {}


def define(name: str, *operands: Operand, own: bool = False) -> Callable[[Rule], Rule]:
    """Decorator: enters the rule that it decorates into the table under `name`; see `Op`."""

    def enter(rule: Rule) -> Rule:
        if name in OPS:
            raise ValueError(f"op {name!r} is defined twice")
        OPS[name] = Op(name, operands, rule, own)
        return rule

    return enter


def need(condition: bool, message: str | Callable[[], str]) -> None:
    """Raises `Mismatch` unless the condition holds. A costly message of a frequent op is passed as
    a function."""
    if not condition:
        raise Mismatch(message if isinstance(message, str) else message())


def need_possible(ne: Shape, dtype: DType) -> None:
    """Raises `Mismatch` for negative dims and for sizes beyond any memory, which would overflow."""
    size = dtype.type_size
    for n in ne:  # written out for the sake of speed: every op comes here
        if n < 0:
            raise Mismatch(f"{list(trim(ne))} has a negative dim")
        size *= n or 1
    if size // dtype.block_size > _MOST_BYTES:
        raise Mismatch(f"{list(trim(ne))} is larger than any memory")


def contiguous_strides(ne: Shape, dtype: DType) -> Shape:
    """Strides in bytes of a contiguous tensor; dim 0 counts blocks for quantised types."""
    size, block = dtype.type_size, dtype.block_size
    nb1 = size * (ne[0] // block)
    nb2 = nb1 * ne[1]
    return (size, nb1, nb2, nb2 * ne[2])


def tidy_strides(ne: Shape, nb: Shape, dtype: DType) -> Shape:
    """The strides, with contiguous ones for dims of a single element.

    Such strides lead nowhere, but some of ggml's kernels step through all rows with the stride of
    dim 1, and its checks would take the tensor for scattered.
    """
    size, n = dtype.type_size, ne[0] // dtype.block_size
    _, n1, n2, n3 = ne
    nb0 = size if n == 1 else nb[0]
    nb1 = nb0 * n if n1 == 1 else nb[1]
    nb2 = nb1 * n1 if n2 == 1 else nb[2]
    nb3 = nb2 * n2 if n3 == 1 else nb[3]
    return (nb0, nb1, nb2, nb3)


def pad4(shape: Any) -> Shape:
    """A shape of one to four dims, filled up with ones."""
    a, b, c, d = (*shape, 1, 1, 1)[:4]
    return (a, b, c, d)


def trim(ne: Shape) -> tuple[int, ...]:
    """A shape without trailing ones; at least one dim stays."""
    n = 4
    while n > 1 and ne[n - 1] == 1:
        n -= 1
    return ne[:n]


def repeats_into(small: Shape, big: Shape) -> bool:
    """Whether `small` tiles `big` exactly in every dim (ggml's broadcasting)."""
    return all(s > 0 and b % s == 0 for s, b in zip(small, big, strict=True))
