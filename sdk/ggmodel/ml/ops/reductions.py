"""Norms, softmax and reductions; all along dim 0."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ..node import Node, T, record
from ..table import F32, HALF, Result, define, dense, need

if TYPE_CHECKING:
    from typing_extensions import Self

_X = dense("x")


def _same(x: Node, **_: float) -> Result:
    return Result(x.ne, F32)


def _normalized(x: Node, eps: float) -> Result:
    need(0 <= eps < math.inf, lambda: f"eps is {eps}; 0 or more is needed")
    return Result(x.ne, F32)


for _name in ("norm", "rms_norm", "l2_norm"):
    define(_name, _X)(_normalized)
define("cumsum", _X)(_same)


def _reduce(x: Node) -> Result:
    return Result((1, *x.ne[1:]), F32)


define("sum_rows", _X)(_reduce)
define("mean", _X)(_reduce)


@define("softmax", _X, dense("mask", HALF, optional=True), dense("sinks", optional=True))
def _softmax(x: Node, mask: Node | None, sinks: Node | None, scale: float = 1.0) -> Result:
    if mask is not None:
        need(
            mask.ne[0] == x.ne[0]
            and mask.ne[1] >= x.ne[1]
            and x.ne[2] % mask.ne[2] == 0
            and x.ne[3] % mask.ne[3] == 0,
            f"the mask {list(mask.shape)} does not cover {list(x.shape)}",
        )
    if sinks is not None:
        need(
            sinks.ne == (x.ne[2], 1, 1, 1),
            f"sinks is {list(sinks.shape)}; one a head, [{x.ne[2]}], is wanted",
        )
    return Result(x.ne, F32)


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
        return _affine(record(self, "norm", eps=float(eps)), weight, bias)

    def rms_norm(self, weight: Node | None = None, eps: float = 1e-5) -> Self:
        """x / √(mean(x²) + eps) along dim 0: [n, …] → [n, …]; times weight [n] where given."""
        return _affine(record(self, "rms_norm", eps=float(eps)), weight, None)

    def l2_norm(self, eps: float = 1e-12) -> Self:
        """x / max(√Σx², eps) along dim 0: […] → […]."""
        return record(self, "l2_norm", eps=float(eps))

    def sum_rows(self) -> Self:
        """Σx along dim 0: [n, …] → [1, …]."""
        return record(self, "sum_rows")

    def mean(self) -> Self:
        """The mean along dim 0: [n, …] → [1, …]."""
        return record(self, "mean")

    def variance(self) -> Self:
        """The population variance (÷ N) along dim 0: [n, …] → [1, …]."""
        x = self if self.dtype == F32 else record(self, "cast", dtype=F32)
        centred = record(x, "sub", record(x, "mean"))
        return record(record(centred, "sqr"), "mean")

    def stddev(self) -> Self:
        """The population standard deviation (÷ N) along dim 0: [n, …] → [1, …]."""
        return record(self.variance(), "sqrt")

    def cumsum(self) -> Self:
        """Running sum along dim 0: […] → […]."""
        return record(self, "cumsum")


def _affine(x: T, weight: Node | None, bias: Node | None) -> T:
    if weight is not None:
        x = record(x, "mul", weight)
    if bias is not None:
        x = record(x, "add", bias)
    return x
