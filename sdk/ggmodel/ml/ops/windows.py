"""Windows over pictures, relative positions, rolling, reflection."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..graph import record
from ..node import Node
from ..table import F16, F32, FULL, Layout, Operand, Result, Shape, define, dense, need

if TYPE_CHECKING:
    from typing_extensions import Self


_LIMIT = 1 << 30  # ggml keeps them in 32 bits


@define("window_partition", dense("x"), own=True)
def _window_partition(x: Node, size: int) -> Result:
    need(0 < size < _LIMIT, f"windows have 1 to {_LIMIT} pixels a side")
    need(x.ne[3] == 1, "x is one picture: [c, width, height]")
    across, down = (-(-x.ne[i] // size) for i in (1, 2))
    return Result((x.ne[0], size, size, across * down), F32)


@define("window_unpartition", dense("x"), own=True)
def _window_unpartition(x: Node, width: int, height: int) -> Result:
    size = x.ne[1]
    need(size > 0 and x.ne[2] == size, "x has square windows: [c, size, size, windows]")
    need(0 < width < _LIMIT and 0 < height < _LIMIT, f"width and height are 1 to {_LIMIT}")
    across, down = -(-width // size), -(-height // size)
    need(
        across * down == x.ne[3],
        f"{width} × {height} has {across * down} windows of {size}, not {x.ne[3]}",
    )
    return Result((x.ne[0], width, height, 1), F32)


@define("relative_positions", Operand("table", frozenset({F16}), F16, Layout.CONTIGUOUS), own=True)
def _relative_positions(x: Node) -> Result:
    c, rows = x.ne[:2]
    need(x.ne[2:] == (1, 1) and rows % 2 == 1, "the table is [c, 2n − 1]")
    n = (rows + 1) // 2
    return Result((c, n, n, 1), F16)


@define("add_relative_positions", dense("x"), dense("pw"), dense("ph"), own=True)
def _add_relative_positions(x: Node, pw: Node, ph: Node) -> Result:
    need(pw.ne == ph.ne, f"pw {list(pw.shape)} and ph {list(ph.shape)} differ")
    side, width, height, heads = pw.ne
    need(
        x.ne == (side * side, width * height, heads, 1),
        f"with pw {list(pw.shape)} x is {[side * side, width * height, heads]}",
    )
    return Result(x.ne, F32)


@define("roll", Operand("x", FULL, F32, Layout.CONTIGUOUS), own=True)
def _roll(x: Node, shifts: Shape) -> Result:
    need(x.n_elements > 0, "x has elements")
    return Result(x.ne, F32)


@define("pad_reflect", dense("x"), own=True)
def _pad_reflect(x: Node, before: int, after: int) -> Result:
    need(
        0 <= before < x.ne[0] and 0 <= after < x.ne[0],
        f"a row of {x.ne[0]} has at most {x.ne[0] - 1} elements to mirror at an end",
    )
    return Result((x.ne[0] + before + after, *x.ne[1:]), F32)


class Windows(Node):
    """Windows, relative positions, rolling, reflection; results are F32 but for the look-up."""

    __slots__ = ()

    def window_partition(self, size: int) -> Self:
        """Square windows of a picture, row after row, zeros beyond its edges: [c, w, h] →
        [c, size, size, ⌈w / size⌉ · ⌈h / size⌉]."""
        return record(self, "window_partition", size=size)

    def window_unpartition(self, width: int, height: int) -> Self:
        """The picture of such windows: [c, size, size, n] → [c, width, height]."""
        return record(self, "window_unpartition", width=width, height=height)

    def relative_positions(self) -> Self:
        """Row n − 1 − k + q of a table for query q and key k: [c, 2n − 1] → [c, n (k), n (q)], both
        F16, to which the table is rounded."""
        return record(self, "relative_positions")

    def add_relative_positions(self, pw: Node, ph: Node) -> Self:
        """Scores plus those of columns and rows: self [k · k, qw · qh, heads], whose dim 0 is a
        k × k picture, with pw and ph [k, qw, qh, heads] → self's shape."""
        return record(self, "add_relative_positions", pw, ph)

    def roll(self, *shifts: int) -> Self:
        """Element i of dim d goes to (i + shifts[d]) mod n: […] → […]; missing shifts are 0."""
        sizes = zip((*shifts, 0, 0, 0, 0)[:4], self.ne, strict=True)
        return record(self, "roll", shifts=tuple(s % n if n else 0 for s, n in sizes))

    def pad_reflect(self, before: int, after: int) -> Self:
        """Dim 0 mirrored at its ends, which are not repeated: [n, …] → [before + n + after, …]."""
        return record(self, "pad_reflect", before=before, after=after)
