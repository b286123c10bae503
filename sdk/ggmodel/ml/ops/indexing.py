"""Rows by index, sorting, choosing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...errors import TensorError
from ..graph import record
from ..node import Node, need_writable
from ..table import ANY, F32, FULL, I32, I64, NUMBERS, Layout, Operand, Result, define, dense, need
from .elementwise import unary

if TYPE_CHECKING:
    from typing_extensions import Self

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
