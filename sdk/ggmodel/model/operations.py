"""Named, invertible operations between the tensors of a Hugging Face checkpoint and a GGUF file.

All arrays are numpy, row-major: a linear weight is [out, in]. Operations work both ways, so one
declaration loads checkpoints, writes GGUF and pairs activations. Weights of F16 and BF16 come to
them as float32, and are rounded once: when the result is stored.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ..errors import ConfigError
from ..gguf_file import DType

_MOST = 1 << 16  # tensors that are stacked: a count comes from a file


def value_of(config: Any, dim: int | str) -> int:
    """A number, or the config attribute of that name."""
    if isinstance(dim, int):
        return dim
    try:
        value = getattr(config, dim)
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(f"{type(config).__name__}.{dim} has no value: {error}") from error
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigError(f"{type(config).__name__}.{dim} is {value!r:.40}, not an integer")
    return value


class Operation(ABC):
    """One tensor to one tensor."""

    def shape(self, shape: tuple[int, ...], config: Any) -> tuple[int, ...]:
        """The shape of the GGUF tensor, in numpy's order, given that of the checkpoint's."""
        return shape

    @abstractmethod
    def to_gguf(self, x: np.ndarray, config: Any) -> np.ndarray:
        """The GGUF tensor of a checkpoint's tensor."""

    @abstractmethod
    def to_hf(self, x: np.ndarray, config: Any) -> np.ndarray:
        """The inverse of `to_gguf`."""

    def results(self, x: np.ndarray, config: Any) -> np.ndarray:
        """Maps results [.., width] of the reference's module to those of a module whose weights
        went through `to_gguf`. They differ if rows of weights change their order."""
        return x


class Indices(Operation):
    """Indices, of 64 bits in checkpoints and I32 in files of any type."""

    def to_gguf(self, x: np.ndarray, config: Any) -> np.ndarray:
        return x.astype(np.int32)

    def to_hf(self, x: np.ndarray, config: Any) -> np.ndarray:
        return x.astype(np.int64)


@dataclass(frozen=True)
class PermuteRope(Operation):
    """Rows from rotary halves, as transformers rotates, to neighbours, as ggml's norm type does.

    Within each head row i of the first half and row i of the second become rows 2i and 2i + 1.

    Args:
        heads: number of heads or the config attribute that holds it.
    """

    heads: int | str

    def to_gguf(self, x: np.ndarray, config: Any) -> np.ndarray:
        return self._swap(x, config, 2, -1)

    def to_hf(self, x: np.ndarray, config: Any) -> np.ndarray:
        return self._swap(x, config, -1, 2)

    def results(self, x: np.ndarray, config: Any) -> np.ndarray:
        return self.to_gguf(x.reshape(-1, x.shape[-1]).T, config).T.reshape(x.shape)

    def _swap(self, x: np.ndarray, config: Any, a: int, b: int) -> np.ndarray:
        heads = value_of(config, self.heads)
        if heads < 1 or x.shape[0] % (2 * heads):
            raise ConfigError(f"{x.shape[0]} rows are not {heads} heads of pairs")
        return x.reshape(heads, a, b, *x.shape[1:]).swapaxes(1, 2).reshape(x.shape)


@dataclass(frozen=True)
class PartsOfHeads(Operation):
    """Rows of a fused tensor from [head, part, row], where each head has its query, its key and its
    value together, to [part, head, row]: all queries, then all keys, then all values.

    Args:
        heads: number of heads or the config attribute that holds it.
        parts: of each head, of equally many rows.
    """

    heads: int | str
    parts: int = 3

    def to_gguf(self, x: np.ndarray, config: Any) -> np.ndarray:
        return self._swap(x, value_of(config, self.heads), self.parts)

    def to_hf(self, x: np.ndarray, config: Any) -> np.ndarray:
        return self._swap(x, self.parts, value_of(config, self.heads))

    def results(self, x: np.ndarray, config: Any) -> np.ndarray:
        return self.to_gguf(x.reshape(-1, x.shape[-1]).T, config).T.reshape(x.shape)

    def _swap(self, x: np.ndarray, outer: int, inner: int) -> np.ndarray:
        if min(outer, inner) < 1 or x.shape[0] % (outer * inner):
            raise ConfigError(f"{x.shape[0]} rows are not {outer} · {inner} parts of heads")
        return x.reshape(outer, inner, -1, *x.shape[1:]).swapaxes(0, 1).reshape(x.shape)


@dataclass(frozen=True)
class Transpose(Operation):
    """Swaps the last two dims: of a matrix or of a stack of them; a bias stays as it is."""

    def shape(self, shape: tuple[int, ...], config: Any) -> tuple[int, ...]:
        return (*shape[:-2], shape[-1], shape[-2]) if len(shape) > 1 else shape

    def to_gguf(self, x: np.ndarray, config: Any) -> np.ndarray:
        return x.swapaxes(-1, -2) if x.ndim > 1 else x

    def to_hf(self, x: np.ndarray, config: Any) -> np.ndarray:
        return self.to_gguf(x, config)


@dataclass(frozen=True)
class AddConstant(Operation):
    """Adds a constant: a norm that multiplies by 1 + w is stored with the one baked in."""

    amount: float

    def to_gguf(self, x: np.ndarray, config: Any) -> np.ndarray:
        return x + x.dtype.type(self.amount)

    def to_hf(self, x: np.ndarray, config: Any) -> np.ndarray:
        return x - x.dtype.type(self.amount)


@dataclass(frozen=True)
class NegatedExp(Operation):
    """−exp of the checkpoint's numbers: logarithms of rates become rates below 0."""

    def to_gguf(self, x: np.ndarray, config: Any) -> np.ndarray:
        return -np.exp(x)

    def to_hf(self, x: np.ndarray, config: Any) -> np.ndarray:
        return np.log(-x)


@dataclass(frozen=True)
class Reshape(Operation):
    """The same numbers in another shape, in numpy's order. A size is a number or the config
    attribute that holds it; 0 is that of the same dim, and −1 what the others leave.

    Args:
        in_file, in_checkpoint: of the tensor in files, and in checkpoints.
    """

    in_file: tuple[int | str, ...]
    in_checkpoint: tuple[int | str, ...]

    def shape(self, shape: tuple[int, ...], config: Any) -> tuple[int, ...]:
        return self.to_gguf(np.broadcast_to(np.float32(0), shape), config).shape

    def to_gguf(self, x: np.ndarray, config: Any) -> np.ndarray:
        return _reshaped(x, self.in_file, config)

    def to_hf(self, x: np.ndarray, config: Any) -> np.ndarray:
        return _reshaped(x, self.in_checkpoint, config)


def _reshaped(x: np.ndarray, sizes: tuple[int | str, ...], config: Any) -> np.ndarray:
    shape = [value_of(config, n) or x.shape[i] for i, n in enumerate(sizes)]
    try:
        return x.reshape(shape)
    except ValueError as error:
        raise ConfigError(f"{list(x.shape)} cannot become {list(sizes)}, {shape}") from error


class Chain(Operation):
    """Operations one after the other, the first on the checkpoint's tensor."""

    def __init__(self, *operations: Operation):
        self.operations = operations

    def shape(self, shape: tuple[int, ...], config: Any) -> tuple[int, ...]:
        for operation in self.operations:
            shape = operation.shape(shape, config)
        return shape

    def to_gguf(self, x: np.ndarray, config: Any) -> np.ndarray:
        for operation in self.operations:
            x = operation.to_gguf(x, config)
        return x

    def to_hf(self, x: np.ndarray, config: Any) -> np.ndarray:
        for operation in reversed(self.operations):
            x = operation.to_hf(x, config)
        return x

    def results(self, x: np.ndarray, config: Any) -> np.ndarray:
        for operation in self.operations:
            x = operation.results(x, config)
        return x


@dataclass(frozen=True)
class LastRows(Operation):
    """The last rows of a table: files have no positions of tokens that are no text, which some
    checkpoints have first. Those come back as zeros.

    Args:
        rows: their number, or the config attribute that holds it.
        others: the number of those before them.
    """

    rows: int | str
    others: int = 0

    def shape(self, shape: tuple[int, ...], config: Any) -> tuple[int, ...]:
        return (min(shape[0], value_of(config, self.rows)), *shape[1:])

    def to_gguf(self, x: np.ndarray, config: Any) -> np.ndarray:
        return x[max(0, len(x) - value_of(config, self.rows)) :]

    def to_hf(self, x: np.ndarray, config: Any) -> np.ndarray:
        return np.pad(x, ((self.others, 0), (0, 0)))


class Sources(ABC):
    """The tensors of a checkpoint that a GGUF tensor is made of, if it is not just one.

    Attributes:
        dtype: the type of quantised blocks, where `join` gives bytes (uint8); None for numbers.
    """

    dtype: ClassVar[DType | None] = None

    @abstractmethod
    def names(self, config: Any) -> list[str]:
        """The names of all sources, relative to the enclosing fields."""

    @abstractmethod
    def shape(self, shapes: list[tuple[int, ...]], config: Any) -> tuple[int, ...]:
        """The shape of the joined tensor, in numpy's order, given those of the sources. For
        quantised blocks it counts numbers, not bytes."""

    @abstractmethod
    def join(self, parts: list[np.ndarray], config: Any) -> np.ndarray:
        """The one tensor made of the sources, which are in the order of `names`."""

    @abstractmethod
    def split(self, x: np.ndarray, config: Any) -> dict[str, np.ndarray | tuple[Any, np.ndarray]]:
        """The inverse: name → tensor, or (index within that tensor, part)."""

    def results(self, x: np.ndarray, config: Any) -> np.ndarray:
        """Maps results [.., width] of the module with the source as its weight to those of the
        module with this tensor."""
        return x


@dataclass(frozen=True)
class Stack(Sources):
    """n tensors stacked along a new first dim ("experts.{}.w1").

    Args:
        template: the name with {} in place of the number.
        n: the number of tensors, or the config attribute that holds it.
    """

    template: str
    n: int | str

    def names(self, config: Any) -> list[str]:
        n = value_of(config, self.n)
        if not 0 <= n <= _MOST:
            raise ConfigError(f"{self.template}: {self.n} says {n} tensors; at most {_MOST}")
        return [self.template.format(i) for i in range(n)]

    def shape(self, shapes: list[tuple[int, ...]], config: Any) -> tuple[int, ...]:
        if len(set(shapes)) > 1:
            raise ConfigError(f"{self.template}: tensors of different shapes, {shapes}")
        return (len(shapes), *shapes[0])

    def join(self, parts: list[np.ndarray], config: Any) -> np.ndarray:
        return np.stack(parts)

    def split(self, x: np.ndarray, config: Any) -> dict[str, Any]:
        names = self.names(config)
        if len(names) != len(x):
            raise ConfigError(f"{self.template}: {len(x)} tensors are stacked, not {len(names)}")
        return dict(zip(names, x, strict=True))


@dataclass(frozen=True)
class Concat(Sources):
    """Tensors one after the other, along rows.

    Args:
        sources: their names.
        rows: the number of rows of each, numbers or config attributes: their sum is compared, as
            some programs save such tensors in parts of another length.
    """

    sources: tuple[str, ...]
    rows: tuple[int | str, ...]

    def names(self, config: Any) -> list[str]:
        return [*self.sources]

    def shape(self, shapes: list[tuple[int, ...]], config: Any) -> tuple[int, ...]:
        total = sum(value_of(config, n) for n in self.rows)
        if sum(shape[0] for shape in shapes) != total or len({s[1:] for s in shapes}) > 1:
            raise ConfigError(f"{', '.join(self.sources)}: {shapes}; they have {total} rows in all")
        return (total, *shapes[0][1:])

    def join(self, parts: list[np.ndarray], config: Any) -> np.ndarray:
        return np.concatenate(parts)

    def split(self, x: np.ndarray, config: Any) -> dict[str, Any]:
        ends = np.cumsum([value_of(config, n) for n in self.rows])[:-1]
        return dict(zip(self.sources, np.split(x, ends), strict=True))


class _Rows(Sources):
    """Some rows of the one tensor `name`, counted along `axis`."""

    name: str
    axis: int

    @abstractmethod
    def _rows(self, total: int | None, config: Any) -> slice:
        """The rows, of `total` that there are; None leaves that unchecked."""

    def names(self, config: Any) -> list[str]:
        return [self.name]

    def shape(self, shapes: list[tuple[int, ...]], config: Any) -> tuple[int, ...]:
        (whole,) = shapes
        rows, axis = self._rows(self._count(whole), config), self.axis % max(len(whole), 1)
        return (*whole[:axis], len(range(whole[axis])[rows]), *whole[axis + 1 :])

    def join(self, parts: list[np.ndarray], config: Any) -> np.ndarray:
        (whole,) = parts
        return whole[self._along(whole.ndim, self._rows(self._count(whole.shape), config))]

    def split(self, x: np.ndarray, config: Any) -> dict[str, Any]:
        return {self.name: (self._along(x.ndim, self._rows(None, config)), x)}

    def results(self, x: np.ndarray, config: Any) -> np.ndarray:
        return x[..., self._rows(x.shape[-1], config)]

    def _count(self, shape: tuple[int, ...]) -> int:
        return shape[self.axis] if -len(shape) <= self.axis < len(shape) else 0

    def _along(self, dims: int, rows: slice) -> tuple[slice, ...]:
        return *(slice(None),) * (self.axis % dims), rows


@dataclass(frozen=True)
class Part(_Rows):
    """Some neighbouring rows of a fused tensor ("qkv_proj", "gate_up_proj").

    Args:
        name: of the fused tensor.
        index: of this part.
        rows: the number of rows of every part, in order: numbers or config attributes.
        axis: along which rows are counted; −1 for the columns of stacked experts.
    """

    name: str
    index: int
    rows: tuple[int | str, ...]
    axis: int = 0

    def split(self, x: np.ndarray, config: Any) -> dict[str, Any]:
        self._check(self._count(x.shape), value_of(config, self.rows[self.index]))
        return super().split(x, config)

    def _rows(self, total: int | None, config: Any) -> slice:
        sizes = [value_of(config, r) for r in self.rows]
        if total is not None:
            self._check(total, sum(sizes))
        start = sum(sizes[: self.index])
        return slice(start, start + sizes[self.index])

    def _check(self, rows: int, expected: int) -> None:
        if rows != expected:
            raise ConfigError(f"{self.name}: {rows} rows, not {expected} as {self.rows} say")


@dataclass(frozen=True)
class HeadPart(Sources):
    """Some neighbouring rows of each head of a fused tensor ("kv_b_proj.weight"), as a matrix a
    head: [heads, rows, in].

    Args:
        name: of the fused tensor.
        index: of this part.
        rows: the number of rows of every part of a head, in order: numbers or config attributes.
        heads: the number of heads, or the config attribute that holds it.
    """

    name: str
    index: int
    rows: tuple[int | str, ...]
    heads: int | str

    def names(self, config: Any) -> list[str]:
        return [self.name]

    def shape(self, shapes: list[tuple[int, ...]], config: Any) -> tuple[int, ...]:
        return self.join([np.broadcast_to(np.float32(0), shapes[0])], config).shape

    def join(self, parts: list[np.ndarray], config: Any) -> np.ndarray:
        (whole,), (heads, rows, total) = parts, self._sizes(config)
        if whole.ndim != 2 or len(whole) != heads * total:
            raise ConfigError(
                f"{self.name}: {list(whole.shape)} are not {heads} heads of {total} rows"
            )
        return whole.reshape(heads, total, -1)[:, rows]

    def split(self, x: np.ndarray, config: Any) -> dict[str, Any]:
        heads, rows, total = self._sizes(config)
        places = np.arange(heads * total).reshape(heads, total)[:, rows]
        return {self.name: (places.reshape(-1), x.reshape(places.size, -1))}

    def _sizes(self, config: Any) -> tuple[int, slice, int]:
        """Heads, the rows of one, and how many these are among."""
        sizes = [value_of(config, size) for size in self.rows]
        start = sum(sizes[: self.index])
        return value_of(config, self.heads), slice(start, start + sizes[self.index]), sum(sizes)


@dataclass(frozen=True)
class Interleaved(_Rows):
    """Every n-th row of an interleaved tensor ("gate_up_proj": gate, up, gate, up, …).

    Args:
        name: of the interleaved tensor.
        index: of the first row.
        n: number of tensors that are interleaved.
        axis: along which rows are counted; by default the columns.
    """

    name: str
    index: int
    n: int
    axis: int = -1

    def _rows(self, total: int | None, config: Any) -> slice:
        if total is not None and (total == 0 or total % self.n):
            raise ConfigError(f"{self.name}: {total} rows are not {self.n} tensors interleaved")
        return slice(self.index, None, self.n)


@dataclass(frozen=True)
class HeadRows(Sources):
    """Parts of each head of a fused tensor, whose heads lie one after the other, each with all its
    parts: one part of all heads, then the next.

    Args:
        name: of the fused tensor.
        parts: the parts taken, by their numbers.
        rows: the number of rows of every part of a head: numbers or config attributes.
        heads: number of heads or the config attribute that holds it.
    """

    name: str
    parts: tuple[int, ...]
    rows: tuple[int | str, ...]
    heads: int | str

    def names(self, config: Any) -> list[str]:
        return [self.name]

    def shape(self, shapes: list[tuple[int, ...]], config: Any) -> tuple[int, ...]:
        (whole,), (order, total) = shapes, self._order(config)
        if not whole or whole[0] != total:
            raise ConfigError(f"{self.name}: {list(whole)}; {total} rows are {self.heads} heads")
        return (len(order), *whole[1:])

    def join(self, parts: list[np.ndarray], config: Any) -> np.ndarray:
        return parts[0][self._order(config)[0]]

    def split(self, x: np.ndarray, config: Any) -> dict[str, Any]:
        return {self.name: (self._order(config)[0], x)}

    def results(self, x: np.ndarray, config: Any) -> np.ndarray:
        return x[..., self._order(config)[0]]

    def _order(self, config: Any) -> tuple[np.ndarray, int]:
        """The rows taken, and the number of all."""
        sizes, heads = [value_of(config, n) for n in self.rows], value_of(config, self.heads)
        all_rows = np.arange(sum(sizes) * heads).reshape(heads, -1)
        each = np.split(all_rows, np.cumsum(sizes)[:-1], axis=1)
        return np.concatenate([each[part].reshape(-1) for part in self.parts]), all_rows.size


@dataclass(frozen=True)
class MXFP4Blocks(Sources):
    """Blocks of 32 numbers of four bits with a common power of two, as gpt-oss is published. They
    become ggml's blocks without rounding (MXFP4 of the OCP's Microscaling Formats, version 1.0).

    A tensor NAME [.., rows, width] is stored as NAME_blocks [.., rows, width/32, 16], neighbours in
    one byte, the first in the lower bits, and NAME_scales [.., rows, width/32], exponents plus 127.
    In ggml's block the scale comes first, then bytes with numbers i and i + 16. The operation of
    the field is for numbers and not applied: rows are outputs already.

    Args:
        index, n: every n-th row from `index` on, where gate and up are interleaved.
    """

    name: str
    index: int = 0
    n: int = 1

    dtype: ClassVar[DType | None] = DType.MXFP4

    def names(self, config: Any) -> list[str]:
        return [f"{self.name}_blocks", f"{self.name}_scales"]

    def shape(self, shapes: list[tuple[int, ...]], config: Any) -> tuple[int, ...]:
        blocks, scales = shapes
        if len(scales) < 2 or blocks != (*scales, 16) or scales[-2] % self.n:
            raise ConfigError(f"{self.name}: blocks {list(blocks)} and scales {list(scales)}")
        *before, rows, groups = scales
        return (*before, rows // self.n, groups * 32)

    def join(self, parts: list[np.ndarray], config: Any) -> np.ndarray:
        shape = self.shape([part.shape for part in parts], config)
        if any(part.dtype != np.uint8 for part in parts):
            raise ConfigError(f"{self.name}: blocks and scales are bytes, uint8")
        rows = slice(self.index, None, self.n)
        blocks, scales = parts[0][..., rows, :, :], parts[1][..., rows, :, None]
        numbers = np.stack([blocks & 15, blocks >> 4], -1).reshape(*blocks.shape[:-1], 32)
        halves = numbers[..., :16] | numbers[..., 16:] << 4
        return np.concatenate([scales, halves], -1).reshape(*shape[:-1], -1)

    def split(self, x: np.ndarray, config: Any) -> dict[str, Any]:
        block = x.reshape(*x.shape[:-1], -1, 17)
        numbers = np.concatenate([block[..., 1:] & 15, block[..., 1:] >> 4], -1)
        where = (..., slice(self.index, None, self.n), slice(None))
        packed = (*where, slice(None)), numbers[..., ::2] | numbers[..., 1::2] << 4
        return {f"{self.name}_blocks": packed, f"{self.name}_scales": (where, block[..., 0])}

    def results(self, x: np.ndarray, config: Any) -> np.ndarray:
        return x[..., self.index :: self.n]


@dataclass(frozen=True)
class Computed(Sources):
    """A tensor that no checkpoint holds: a function of the Hugging Face config and the
    hyperparameters, None where there is no tensor."""

    function: Callable[[Mapping[str, Any], Any], np.ndarray | None]

    def names(self, config: Any) -> list[str]:
        return []

    def shape(self, shapes: list[tuple[int, ...]], config: Any) -> tuple[int, ...]:
        raise NotImplementedError("the shape of a computed tensor is that of its value")

    def join(self, parts: list[np.ndarray], config: Any) -> np.ndarray:
        raise NotImplementedError("a computed tensor has no parts to join")

    def split(self, x: np.ndarray, config: Any) -> dict[str, Any]:
        return {}
