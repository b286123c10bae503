"""Norms, softmax and reductions; all along dim 0."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ..graph import record
from ..node import Node, T
from ..table import F32, FULL, HALF, Layout, Operand, Result, Shape, define, dense, need, trim
from .elementwise import unary

if TYPE_CHECKING:
    from typing_extensions import Self

_X = dense("x")


def _same(x: Node, **_: float) -> Result:
    return Result(x.ne, F32)


def _normalized(x: Node, eps: float) -> Result:
    need(0 <= eps < math.inf, lambda: f"eps is {eps}; 0 or more is needed")
    return Result(x.ne, F32)


for _name in ("norm", "l2_norm"):
    define(_name, _X)(_normalized)
define("rms_norm", Operand("x", FULL, F32, Layout.ROWS))(_normalized)
define("cumsum", _X)(_same)


def _reduce(x: Node) -> Result:
    return Result((1, *x.ne[1:]), F32)


define("sum_rows", _X)(_reduce)
define("mean", _X)(_reduce)


@define("softmax", _X, dense("mask", HALF, optional=True), dense("sinks", optional=True))
def _softmax(x: Node, mask: Node | None, sinks: Node | None, scale: float = 1.0) -> Result:
    need_cover(x.ne, mask, sinks)
    return Result(x.ne, F32)


def need_cover(scores: Shape, mask: Node | None, sinks: Node | None) -> None:
    """Raises `Mismatch` unless mask and sinks fit scores [cells, tokens, heads, sequences]."""
    cells, tokens, heads, sequences = scores
    if mask is not None:
        need(
            mask.ne[0] == cells
            and mask.ne[1] >= tokens
            and heads % mask.ne[2] == sequences % mask.ne[3] == 0,
            lambda: f"the mask {list(mask.shape)} does not cover {list(trim(scores))}",
        )
    if sinks is not None:
        need(
            sinks.ne == (heads, 1, 1, 1),
            lambda: f"sinks is {list(sinks.shape)}; one a head, [{heads}], is wanted",
        )


class Reductions(Node):
    """Norms, softmax and reductions along dim 0; results are F32."""

    __slots__ = ()

    def softmax(self) -> Self:
        """eˣ / Σ eˣ along dim 0: […] → […]."""
        return record(self, "softmax", None, None)

    def layer_norm(
        self, weight: Node | None = None, bias: Node | None = None, eps: float = 1e-5
    ) -> Self:
        """(x − mean) / √(variance + eps) along dim 0: [n, …] → [n, …]; times weight [n] and plus
        bias [n] where given."""
        return _affine(record(self, "norm", eps=eps), weight, bias)

    def rms_norm(self, weight: Node | None = None, eps: float = 1e-5) -> Self:
        """x / √(mean(x²) + eps) along dim 0: [n, …] → [n, …]; times weight [n] where given."""
        return _affine(record(self, "rms_norm", eps=eps), weight, None)

    def l2_norm(self, eps: float = 1e-12) -> Self:
        """x / max(√Σx², eps) along dim 0: […] → […]."""
        return record(self, "l2_norm", eps=eps)

    sum_rows = unary("sum_rows", "Σx along dim 0: [n, …] → [1, …].")
    mean = unary("mean", "The mean along dim 0: [n, …] → [1, …].")
    cumsum = unary("cumsum", "Running sum along dim 0: […] → […].")

    def variance(self) -> Self:
        """The population variance (÷ N) along dim 0: [n, …] → [1, …]."""
        x = self if self.dtype == F32 else record(self, "cast", dtype=F32)
        centred = record(x, "sub", record(x, "mean"))
        return record(record(centred, "sqr"), "mean")

    def stddev(self) -> Self:
        """The population standard deviation (÷ N) along dim 0: [n, …] → [1, …]."""
        return record(self.variance(), "sqrt")


def _affine(x: T, weight: Node | None, bias: Node | None) -> T:
    if weight is not None:
        x = record(x, "mul", weight)
    if bias is not None:
        x = record(x, "add", bias)
    return x
