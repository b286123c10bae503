"""Matrix products, including expert-indexed ones; the receiver is the weight."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..graph import record
from ..node import Node
from ..table import F32, FULL, I32, NUMBERS, Layout, Operand, Result, define, need

if TYPE_CHECKING:
    from typing_extensions import Self

_WEIGHT = Operand("weight", NUMBERS, None, Layout.ROWS)
_ACTIVATION = Operand("x", FULL, F32, Layout.ROWS)


def _ids(selects: tuple[int, int]) -> Operand:
    return Operand("ids", frozenset({I32}), None, Layout.ROWS, selects=selects)


@define("mulmat", _WEIGHT, _ACTIVATION)
def _mulmat(w: Node, x: Node, full_precision: bool = False) -> Result:
    need(
        w.ne[0] == x.ne[0],
        lambda: (
            f"dim 0 differs: {w.ne[0]} of the weight {list(w.shape)}, {x.ne[0]} of {list(x.shape)}"
        ),
    )
    need(
        x.ne[2] % w.ne[2] == 0 and x.ne[3] % w.ne[3] == 0,
        lambda: f"dims 2 and 3 of {list(w.shape)} do not broadcast over those of {list(x.shape)}",
    )
    need(w.nb[0] <= w.nb[1] or w.ne[1] == 1, "the weight is transposed; make it contiguous")
    return Result((w.ne[1], *x.ne[1:]), F32)


@define(
    "mulmat_id", Operand("experts", NUMBERS, None, Layout.CONTIGUOUS), _ACTIVATION, _ids((0, 2))
)
def _mulmat_id(w: Node, x: Node, ids: Node) -> Result:
    need(w.ne[0] == x.ne[0], f"dim 0 differs: {w.ne[0]} and {x.ne[0]}")
    need(w.ne[3] == 1 and x.ne[3] == 1, "experts and x have at most three dims")
    need(ids.ne[2] == ids.ne[3] == 1, "ids is [experts used, tokens]")
    need(ids.ne[1] == x.ne[2], f"ids is for {ids.ne[1]} tokens, x holds {x.ne[2]}")
    need(ids.ne[0] % x.ne[1] == 0, f"{ids.ne[0]} experts used cannot share {x.ne[1]} inputs")
    return Result((w.ne[1], ids.ne[0], x.ne[2], 1), F32)


@define("add_id", _ACTIVATION, Operand("bias", FULL, F32, Layout.ROWS), _ids((1, 1)))
def _add_id(x: Node, bias: Node, ids: Node) -> Result:
    need(x.ne[0] == bias.ne[0], f"dim 0 differs: {x.ne[0]} and {bias.ne[0]}")
    need(bias.ne[2] == bias.ne[3] == 1, "the bias is [width, experts]")
    need(x.ne[1] == ids.ne[0] and x.ne[2] == ids.ne[1], "ids is [experts used, tokens] of x")
    need(x.ne[3] == ids.ne[2] == ids.ne[3] == 1, "x has at most three dims, ids two")
    return Result(x.ne, F32)


class Products(Node):
    """Matrix products."""

    __slots__ = ()

    def mulmat(self, x: Node) -> Self:
        """self [k, m] · x [k, n] → [m, n] F32; self broadcasts over dims 2 and 3 of x.

        The receiver may have any float or quantised dtype; x is converted to F32.
        """
        return record(self, "mulmat", x)

    def mulmat_full_prec(self, x: Node) -> Self:
        """mulmat, [k, m] · [k, n] → [m, n], with F32 accumulation on every backend."""
        return record(self, "mulmat", x, full_precision=True)

    def mulmat_id(self, x: Node, ids: Node) -> Self:
        """Experts self [k, m, experts], chosen by ids I32 [used, n], times x [k, used or 1, n] →
        [m, used, n] F32.
        """
        return record(self, "mulmat_id", x, ids)

    def add_id(self, bias: Node, ids: Node) -> Self:
        """self [m, used, n] plus the rows of bias [m, experts] chosen by ids I32 [used, n] →
        [m, used, n] F32."""
        return record(self, "add_id", bias, ids)
