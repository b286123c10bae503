"""Views, copies, rows by index, sorting: ops that move elements or choose among them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ...errors import TensorError
from ..graph import record
from ..node import Node, need_writable
from ..table import (
    ANY,
    F32,
    FLOATS,
    FULL,
    I32,
    I64,
    NUMBERS,
    Layout,
    Operand,
    Result,
    Shape,
    contiguous_strides,
    define,
    dense,
    need,
    pad4,
    repeats_into,
)
from .arithmetic import unary

if TYPE_CHECKING:
    from typing_extensions import Self

_ANY = Operand("x", ANY)
_WHOLE = Operand("x", ANY, None, Layout.CONTIGUOUS)


@define("contiguous", _ANY)
def _contiguous(x: Node) -> Result:
    need(not x.dtype.is_quantized or x.has_rows, "a quantised tensor needs whole rows")
    return Result(x.ne, x.dtype)


@define("duplicate", _ANY)
def _duplicate(x: Node) -> Result:
    need(not x.dtype.is_quantized or x.is_contiguous, "a quantised tensor must be contiguous")
    return Result(x.ne, x.dtype)


@define("reshape", _WHOLE)
def _reshape(x: Node, ne: Shape) -> Result:
    need(
        math.prod(ne) == x.n_elements,
        lambda: (
            f"{list(x.shape)} has {x.n_elements} elements, {list(ne)} would have {math.prod(ne)}"
        ),
    )
    block = x.dtype.block_size
    need(ne[0] % block == 0, lambda: f"dim 0 must be whole blocks of {block}")
    return Result(ne, x.dtype, alias=x, nb=contiguous_strides(ne, x.dtype))


@define("view", _ANY)
def _view(x: Node, offset: int, ne: Shape, nb: Shape) -> Result:
    size, block = x.dtype.type_size, x.dtype.block_size
    need(all(n >= 0 for n in (*ne, *nb, offset)), "dims, strides and offset are not negative")
    need(ne[0] % block == 0, lambda: f"dim 0 must be whole blocks of {block}")
    whole = offset % size == 0 and all(b % size == 0 for b in nb)
    need(whole, lambda: f"{size} must divide all offsets")
    # Bounds are those of the memory's owner: ggml does not check them, and would read elsewhere.
    owner = x.owner
    counts = (ne[0] // block, *ne[1:])
    last = x.offset + offset + sum((n - 1) * b for n, b in zip(counts, nb, strict=True))
    end = last + size if 0 not in ne else x.offset + offset
    need(end <= owner.nbytes, lambda: f"the view ends at byte {end} of {owner.nbytes}")
    return Result(ne, x.dtype, alias=x, nb=nb, offset=offset)


@define("permute", _ANY)
def _permute(x: Node, order: Shape) -> Result:
    need(sorted(order) == [0, 1, 2, 3], f"{order} is no permutation of 0, 1, 2, 3")
    need(x.dtype.block_size == 1 or order[0] == 0, "dim 0 of a quantised tensor stays in place")
    ne, nb = [0] * 4, [0] * 4
    for source, destination in enumerate(order):
        ne[destination], nb[destination] = x.ne[source], x.nb[source]
    return Result(pad4(ne), x.dtype, alias=x, nb=pad4(nb))


@define("pad", dense("x"))
def _pad(x: Node, amounts: Shape) -> Result:
    need(all(p >= 0 for p in amounts), "negative amounts: crop with slice")
    return Result(pad4([n + p for n, p in zip(x.ne, amounts, strict=True)]), F32)


@define("repeat", Operand("x", FLOATS | {I32}, F32, Layout.ROWS))
def _repeat(x: Node, ne: Shape) -> Result:
    need(repeats_into(x.ne, ne), f"{list(ne)} is no multiple of {list(x.shape)}")
    return Result(ne, x.dtype)


@define("concat", Operand("a", FLOATS | {I32}), Operand("b", FLOATS | {I32}))
def _concat(a: Node, b: Node, dim: int) -> Result:
    need(0 <= dim <= 3, f"along dim {dim}: dims are 0 to 3")
    need(a.dtype == b.dtype, f"{a.dtype.name} and {b.dtype.name} cannot be joined: cast one")
    need(
        all(a.ne[d] == b.ne[d] for d in range(4) if d != dim),
        f"{list(a.shape)} and {list(b.shape)} differ in more than dim {dim}",
    )
    ne = list(a.ne)
    ne[dim] += b.ne[dim]
    return Result(pad4(ne), a.dtype)


@define("copy", Operand("x", FLOATS | {I32}), Operand("dst", ANY))
def _copy(x: Node, dst: Node) -> Result:
    need(x.n_elements == dst.n_elements, f"{x.n_elements} elements into {dst.n_elements}")
    need_writable(dst)
    need(
        x.dtype == dst.dtype or (x.dtype in FLOATS and dst.dtype in NUMBERS),
        f"{x.dtype.name} cannot be converted to {dst.dtype.name} here: cast first",
    )
    need(
        not dst.dtype.is_quantized
        or (dst.is_contiguous and x.has_rows and x.ne[0] % dst.dtype.block_size == 0),
        "a quantised destination must be contiguous, and what is copied must have whole rows",
    )
    return Result(dst.ne, dst.dtype, alias=dst, nb=dst.nb)


@define("set", dense("x"), Operand("src", FULL, F32, Layout.ROWS))
def _set(x: Node, src: Node, nb: tuple[int, int, int], offset: int) -> Result:
    _set_bounds(x, src, nb, offset)
    return Result(x.ne, x.dtype)


@define("set_inplace", Operand("x", FULL), Operand("src", FULL, F32, Layout.ROWS))
def _set_inplace(x: Node, src: Node, nb: tuple[int, int, int], offset: int) -> Result:
    need_writable(x)
    need(x.is_contiguous, "the receiver must be contiguous")
    _set_bounds(x, src, nb, offset)
    return Result(x.ne, x.dtype, alias=x, nb=x.nb)


_LIMIT = 1 << 30  # ggml keeps them in 32 bits


def _set_bounds(x: Node, src: Node, nb: tuple[int, int, int], offset: int) -> None:
    need(offset >= 0 and all(b >= 0 for b in nb), "strides and offset are not negative")
    used = [b for n, b in zip(src.ne[1:], nb, strict=True) if n > 1]
    need(max(offset, *used, 0) < _LIMIT, f"strides and offset are below {_LIMIT}")
    steps = (max(n - 1, 0) * b for n, b in zip(src.ne[1:], nb, strict=True))
    last = offset + sum(steps) + src.ne[0] * 4
    need(last <= x.nbytes, f"it would write up to byte {last} of {x.nbytes}")


class Shaping(Node):
    """Views and copies. Views share memory; the others make a new tensor."""

    __slots__ = ()

    def contiguous(self, *shape: int) -> Self:
        """[…] → […], or the shape given (one −1 is inferred), with the elements side by side: self
        if it is contiguous, else a copy."""
        x = self if self.is_contiguous else record(self, "contiguous")
        return x.reshape(*shape) if shape else x

    def reshape(self, *shape: int) -> Self:
        """The same elements in another shape, […] → [*shape]; one −1 is inferred. A view, unless
        self is not contiguous."""
        return record(self, "reshape", ne=pad4(infer_shape(self, shape)))

    def view(self, offset: int, *layout: int) -> Self:
        """A window into this tensor's memory: […] → [d0, d1, d2, d3].

        Args:
            offset: bytes.
            layout: d0, stride1, d1, stride2, d2, stride3, d3: dims and byte strides alternate;
                1, 3, 5 or 7 numbers.
        """
        if len(layout) not in (1, 3, 5, 7):
            raise TensorError(
                f"view takes 1, 3, 5 or 7 numbers after the offset, not {len(layout)}"
            )
        dims, strides = list(layout[0::2]), list(layout[1::2])
        ne = pad4(dims)
        nb = [self.dtype.type_size, *strides]
        if len(nb) == 1:
            nb.append(self.dtype.row_size(dims[0]) if dims[0] % self.dtype.block_size == 0 else 0)
        while len(nb) < 4:
            nb.append(nb[-1] * ne[len(nb) - 1])
        return record(self, "view", offset=offset, ne=ne, nb=pad4(nb))

    def permute(self, *order: int) -> Self:
        """Moves axis i to `order[i]`, the inverse of numpy's transpose: [a, b, c] permuted
        (2, 0, 1, 3) → [b, c, a], a view.

        Fewer than four axes leave the rest in place.
        """
        return record(self, "permute", order=(*order, *range(len(order), 4)))

    def pad(self, *amounts: int) -> Self:
        """Zeros appended to dims 0 to 3: [a, b, …] → [a + amounts[0], b + amounts[1], …]; amounts
        are not negative."""
        return record(self, "pad", amounts=(*amounts, 0, 0, 0, 0)[:4])

    def repeat(self, dim: int, n: int) -> Self:
        """n copies, one after the other, along dim: [a, …] → [n · a, …] for dim 0."""
        if not 0 <= dim <= 3 or n < 1:
            raise TensorError(f"repeat({dim}, {n}): dims are 0 to 3, n is at least 1")
        ne = list(self.ne)
        ne[dim] *= n
        return record(self, "repeat", ne=pad4(ne))

    def repeat_4d(self, d0: int, d1: int, d2: int, d3: int) -> Self:
        """Tiled to an absolute shape: […] → [d0, d1, d2, d3], whose dims are multiples of
        self's."""
        return record(self, "repeat", ne=(d0, d1, d2, d3))

    def concat(self, other: Node, dim: int) -> Self:
        """self followed by other along dim: [a, …] and [b, …] → [a + b, …] for dim 0."""
        return record(self, "concat", other, dim=dim)

    def stack(self, dim: int, *others: Node) -> Self:
        """self and all others, one after another along dim: [a, …], [b, …], … → [a + b + …, …] for
        dim 0."""
        x = self
        for other in others:
            x = x.concat(other, dim)
        return x

    def copy(self, dst: Node) -> Self:
        """Writes self […] into dst, which has as many elements, converting the dtype → a view of
        dst, in its shape."""
        return record(self, "copy", dst)

    duplicate = unary("duplicate", "A copy in new memory: […] → […].")

    def set(self, src: Node, offset: int, *strides: int) -> Self:
        """A copy of self […] F32 with src written into it at a byte offset and byte strides 1 to 3;
        missing strides are self's."""
        return record(self, "set", src, nb=self._strides(strides), offset=offset)

    def set_inplace(self, src: Node, nb1: int, nb2: int, nb3: int, offset: int) -> Self:
        """Writes src into self […] at a byte offset with byte strides → […], a view of self."""
        return record(self, "set_inplace", src, nb=(nb1, nb2, nb3), offset=offset)

    def _strides(self, strides: tuple[int, ...]) -> tuple[int, int, int]:
        a, b, c = (*strides, *self.nb[1 + len(strides) :])[:3]
        return a, b, c

    def slice(self, dim: int, lo: int, hi: int, step: int = 1) -> Self:
        """Elements lo, lo + step, … below hi along dim: [n, …] → [ceil((hi − lo) / step), …] for
        dim 0.

        Step 1 gives a view; along dim 0 a larger step copies.
        """
        n = self.dim(dim)
        if not 0 <= lo < hi <= n or step < 1:
            raise TensorError(
                f"slice({dim}, {lo}, {hi}, {step}) of {self.describe()}: "
                f"0 ≤ lo < hi ≤ {n} and step ≥ 1 are needed"
            )
        count = -((lo - hi) // step)
        ne, nb = list(self.ne), list(self.nb)
        ne[dim] = count
        if dim == 0:
            block = self.dtype.block_size
            if lo % block or count % block:
                raise TensorError(f"slice of {self.describe()}: dim 0 cuts a block of {block}")
            offset = lo // block * nb[0]
            if step > 1:
                return self._strided(lo, count, step)
        else:
            offset = lo * nb[dim]
            nb[dim] *= step
        return record(self, "view", offset=offset, ne=pad4(ne), nb=pad4(nb))

    def _strided(self, lo: int, count: int, step: int) -> Self:
        # ggml wants dim 0 dense: turn the strided dim into dim 1 of a view, dims 2 and 3 into one,
        # and copy from there.
        x = self
        if x.ne[3] > 1 and x.nb[3] != x.ne[2] * x.nb[2]:
            x = record(x, "contiguous")
        size, ne, nb = x.dtype.type_size, x.ne, x.nb
        window = record(
            x,
            "view",
            offset=lo * nb[0],
            ne=(1, count, ne[1], ne[2] * ne[3]),
            nb=(size, nb[0] * step, nb[1], nb[2]),
        )
        return record(record(window, "contiguous"), "reshape", ne=(count, *ne[1:]))

    def chunk(self, dim: int, size: int) -> list[Self]:
        """Views of length `size` along dim, the last may be shorter: [n, …] → a list of [size, …]
        for dim 0."""
        if size < 1:
            raise TensorError(f"chunk size {size}: at least 1 is needed")
        n = self.dim(dim)
        return [self.slice(dim, lo, min(lo + size, n)) for lo in range(0, n, size)]

    def chunk_sections(self, dim: int, *sections: int) -> list[Self]:
        """Views of the given lengths along dim, whose sum is the dim: [n, …] → a list of
        [section, …] for dim 0."""
        if sum(sections) != self.dim(dim) or min(sections, default=0) < 1:
            raise TensorError(f"sections {sections} do not sum to {self.dim(dim)} along dim {dim}")
        ends = [sum(sections[: i + 1]) for i in range(len(sections))]
        return [self.slice(dim, e - n, e) for e, n in zip(ends, sections, strict=True)]


def infer_shape(x: Node, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Replaces one −1 by the dim that the element count implies.

    Raises:
        TensorError: more than one −1, a zero or negative dim, more than four dims, indivisible.
    """
    if not 1 <= len(shape) <= 4:
        raise TensorError(f"a shape has one to four dims, not {len(shape)}")
    if any(not isinstance(n, int) or n == 0 or n < -1 for n in shape) or shape.count(-1) > 1:
        raise TensorError(f"shape {list(shape)}: dims are positive, at most one is −1")
    if -1 not in shape:
        return shape
    rest = -math.prod(shape)
    if x.n_elements % rest:
        raise TensorError(f"{x.describe()} cannot become {list(shape)}: {rest} does not divide it")
    return tuple(x.n_elements // rest if n == -1 else n for n in shape)


_IDS = Operand("ids", frozenset({I32}), None, Layout.CONTIGUOUS, selects=(0, 1))


@define("rows", Operand("table", NUMBERS | {I32}, None, Layout.ROWS), _IDS)
def _rows(table: Node, ids: Node) -> Result:
    need(ids.ne[3] == 1, "ids has at most three dims")
    need(
        table.ne[2] == ids.ne[1] and table.ne[3] == ids.ne[2],
        f"dims 2 and 3 of {list(table.shape)} are not dims 1 and 2 of ids {list(ids.shape)}",
    )
    return Result((table.ne[0], *ids.ne[:3]), I32 if table.dtype == I32 else F32)


@define(
    "set_rows",
    Operand("dst", ANY, None, Layout.ANY),
    Operand("src", FULL, F32, Layout.ROWS),
    Operand("ids", frozenset({I32, I64}), None, Layout.ROWS, selects=(0, 1)),
)
def _set_rows(dst: Node, src: Node, ids: Node) -> Result:
    need(dst.has_rows, "the rows of the destination must be dense")
    need(dst.dtype in NUMBERS, lambda: f"the destination is {dst.dtype.name}")
    need_writable(dst)
    need(dst.ne[0] == src.ne[0], lambda: f"rows of {src.ne[0]} into rows of {dst.ne[0]}")
    need(
        dst.ne[2:] == src.ne[2:],
        lambda: f"dims 2 and 3 differ: {list(src.shape)}, {list(dst.shape)}",
    )
    need(ids.ne[0] == src.ne[1], lambda: f"{src.ne[1]} rows, {ids.ne[0]} ids")
    need(ids.ne[3] == 1, "ids has at most three dims")
    need(
        src.ne[2] % ids.ne[1] == 0 and src.ne[3] % ids.ne[2] == 0,
        lambda: f"ids {list(ids.shape)} does not broadcast over {list(src.shape)}",
    )
    return Result(dst.ne, dst.dtype, alias=dst, nb=dst.nb)


_X = dense("x")


@define("argsort", _X)
def _argsort(x: Node, descending: bool = False) -> Result:
    return Result(x.ne, I32)


@define("argmax", _X, own=True)
def _argmax(x: Node) -> Result:
    need(x.ne[2] == x.ne[3] == 1, "at most two dims")
    return Result((x.ne[1], 1, 1, 1), I32)


@define("diag", _X)
def _diag(x: Node) -> Result:
    need(x.ne[1] == 1, "dim 1 must be 1")
    return Result((x.ne[0], x.ne[0], x.ne[2], x.ne[3]), F32)


@define("tri", _X)
def _tri(x: Node, kind: int) -> Result:
    need(x.ne[0] == x.ne[1], f"{list(x.shape)} is not square")
    need(kind in (0, 1, 2, 3), "kind is 0 upper + diagonal, 1 upper, 2 lower + diagonal, 3 lower")
    return Result(x.ne, F32)


class Indexing(Node):
    """Rows by index, sorting, triangles."""

    __slots__ = ()

    def rows(self, ids: Node) -> Self:
        """Rows of self [d, n, …] chosen by ids I32 [m, …] → [d, m, …]; F32 unless self is I32."""
        return record(self, "rows", ids)

    def set_rows(self, src: Node, ids: Node) -> Self:
        """Writes the rows of src [d, m] into self [d, n] at ids I32 or I64 [m] → [d, n], a view of
        self."""
        return record(self, "set_rows", src, ids)

    argsort = unary("argsort", "Indices that sort dim 0 ascending: […] → […] I32.")

    def top_k(self, k: int) -> Self:
        """Indices of the k largest of dim 0, largest first: [n, …] → [k, …] I32, 1 ≤ k ≤ n."""
        if not 1 <= k <= self.ne[0]:
            raise TensorError(f"top_k({k}) of {self.describe()}: 1 ≤ k ≤ {self.ne[0]} is needed")
        order = record(self, "argsort", descending=True)
        return record(order, "view", offset=0, ne=(k, *order.ne[1:]), nb=order.nb)

    argmax = unary("argmax", "The index of the largest of dim 0: [n, m] → [m] I32.")
    diag = unary("diag", "[n, 1, …] → [n, n, …] with the elements on the diagonal.")

    def tri(self, kind: int) -> Self:
        """Square matrices with one triangle kept, the rest zero: [n, n, …] → [n, n, …].

        kind: 0 upper with diagonal, 1 upper, 2 lower with diagonal, 3 lower.
        """
        return record(self, "tri", kind=kind)
