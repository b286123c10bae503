"""Arithmetic: element-wise ops, reductions along dim 0, matrix products, triangular systems.

Element-wise ops are arithmetic with broadcasting, unary functions and gated activations. In matrix
products, including expert-indexed ones, the receiver is the weight.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext
from typing import TYPE_CHECKING

from ...errors import TensorError
from ...gguf_file.types import DType
from ..graph import record, tracing
from ..node import Node, T
from ..table import (
    F32,
    FLOATS,
    FULL,
    HALF,
    I32,
    NUMBERS,
    Layout,
    Mismatch,
    Operand,
    Result,
    Shape,
    contiguous_strides,
    define,
    dense,
    need,
    repeats_into,
    trim,
)

if TYPE_CHECKING:
    from typing_extensions import Self

_LEFT = Operand("a", FLOATS, F32, Layout.ROWS)
# All of ggml's kernels accept F32 beside any dtype of the first operand.
_RIGHT = Operand("b", FULL, F32, Layout.ROWS)


def _broadcast(a: Node, b: Node) -> Result:
    fits = repeats_into(b.ne, a.ne)
    need(fits, lambda: f"{list(b.shape)} does not broadcast into {list(a.shape)}")
    return Result(a.ne, a.dtype)


for _name in ("add", "sub", "mul", "div"):
    define(_name, _LEFT, _RIGHT)(_broadcast)


def _same(a: Node, **_: float) -> Result:
    return Result(a.ne, a.dtype)


_UNARY = "neg exp tanh sigmoid relu gelu gelu_erf quick_gelu silu softplus sqr sqrt sin cos".split()
_OWN_UNARY = "abs floor ceil round log".split()
for _name in (*_UNARY, *_OWN_UNARY):
    define(_name, dense("x", HALF), own=_name in _OWN_UNARY)(_same)


@define("clamp", dense("x"))
def _clamp(x: Node, lo: float, hi: float) -> Result:
    need(lo <= hi, f"the bounds are {lo} and {hi}")
    return Result(x.ne, F32)


define("scale", dense("x"))(_same)
define("fill", dense("x", HALF))(_same)


def _gated(x: Node, up: Node, **_: float) -> Result:
    need(x.ne == up.ne, lambda: f"the gate is {list(x.shape)}, up is {list(up.shape)}")
    need(x.dtype == up.dtype, lambda: f"the gate is {x.dtype.name}, up is {up.dtype.name}")
    return Result(x.ne, x.dtype)


for _name in ("gated_gelu", "gated_quick_gelu", "gated_silu", "gated_relu"):
    define(_name, dense("gate", HALF), dense("up", HALF))(_gated)
define("silu_alpha_limit", dense("gate"), dense("up"))(_gated)


@define("cast", Operand("x", frozenset(DType)))
def _cast(x: Node, dtype: DType) -> Result:
    need(
        x.dtype == dtype or x.dtype in NUMBERS or x.dtype == DType.I32,
        f"{x.dtype.name} cannot be converted to {dtype.name}",
    )
    need(
        dtype == x.dtype or dtype in FLOATS or (dtype == DType.I32 and x.dtype == F32),
        f"{x.dtype.name} cannot be converted to {dtype.name}",
    )
    # ggml has no kernels from blocks or integers to halves; `Tensor.cast` goes through F32.
    need(dtype == x.dtype or x.dtype in FLOATS or dtype == F32, "cast to F32 first")
    need(dtype in FLOATS or x.is_contiguous, "only a contiguous tensor converts to integers")
    need(not x.dtype.is_quantized or x.has_rows, "a quantised tensor needs whole rows")
    return Result(x.ne, dtype, nb=contiguous_strides(x.ne, dtype))


def unary(op: str, text: str) -> Callable[[T], T]:
    """The method that records an op without attributes; `text` is its docstring."""

    def method(self: T) -> T:
        return record(self, op)

    method.__name__, method.__doc__ = op, text
    method.__qualname__ = f"Tensor.{op}"
    return method


class Elementwise(Node):
    """Arithmetic and activations. Every method returns a new tensor of the receiver's shape,
    written […]."""

    __slots__ = ()

    def add(self, other: Node) -> Self:
        """self […] + other → […]; other broadcasts: each of its dims divides the receiver's."""
        return record(self, "add", other)

    def sub(self, other: Node) -> Self:
        """self […] − other → […]; other broadcasts."""
        return record(self, "sub", other)

    def mul(self, other: Node) -> Self:
        """self […] · other element by element → […]; other broadcasts."""
        return record(self, "mul", other)

    def div(self, other: Node) -> Self:
        """self […] / other element by element → […]; other broadcasts."""
        return record(self, "div", other)

    def scale(self, s: float) -> Self:
        """self · s: […] → […] F32."""
        return record(self, "scale", s=s)

    __add__, __sub__ = add, sub

    def __mul__(self, other: Node | float) -> Self:
        return self.mul(other) if isinstance(other, Node) else self.scale(other)

    __rmul__ = __mul__

    def __truediv__(self, other: Node | float) -> Self:
        return self.div(other) if isinstance(other, Node) else self.scale(1.0 / other)

    neg = unary("neg", "−x: […] → […].")
    sqr = unary("sqr", "x²: […] → […].")
    sqrt = unary("sqrt", "√x: […] → […].")
    exp = unary("exp", "eˣ: […] → […].")
    log = unary("log", "ln x: […] → […].")
    abs = unary("abs", "|x|: […] → […].")
    floor = unary("floor", "The largest integer ≤ x, as a float: […] → […].")
    ceil = unary("ceil", "The smallest integer ≥ x, as a float: […] → […].")
    round = unary("round", "The nearest integer, as a float: […] → […]; halves away from zero.")
    sin = unary("sin", "sin x: […] → […].")
    cos = unary("cos", "cos x: […] → […].")
    softplus = unary("softplus", "ln(1 + eˣ): […] → […].")
    tanh = unary("tanh", "tanh x: […] → […].")
    sigmoid = unary("sigmoid", "1 / (1 + e⁻ˣ): […] → […].")
    gelu_erf = unary("gelu_erf", "GELU, exact form with the error function: […] → […].")
    __neg__ = neg

    def clamp(self, lo: float, hi: float) -> Self:
        """min(max(x, lo), hi): […] → […]."""
        return record(self, "clamp", lo=lo, hi=hi)

    def fill(self, value: float) -> Self:
        """A new tensor with every element set to value: […] → […]."""
        return record(self, "fill", value=value)

    def sigmoid_out(self) -> Self:
        """sigmoid under the interface's second name: […] → […]."""
        return self.sigmoid()

    def gelu(self, up: Node | None = None) -> Self:
        """GELU, tanh form: […] → […]; with up […]: gelu(x) · up in one op."""
        return record(self, "gelu") if up is None else record(self, "gated_gelu", up)

    def quick_gelu(self, up: Node | None = None) -> Self:
        """x · sigmoid(1.702 x): […] → […]; with up […]: times up in one op."""
        return record(self, "quick_gelu") if up is None else record(self, "gated_quick_gelu", up)

    def silu(self, up: Node | None = None) -> Self:
        """x · sigmoid(x): […] → […]; with up […]: times up in one op (SwiGLU)."""
        return record(self, "silu") if up is None else record(self, "gated_silu", up)

    def relu(self, up: Node | None = None) -> Self:
        """max(x, 0): […] → […]; with up […]: times up in one op."""
        return record(self, "relu") if up is None else record(self, "gated_relu", up)

    def silu_alpha_limit(self, up: Node, alpha: float, limit: float) -> Self:
        """Clamped SwiGLU as in gpt-oss: gate self […], up […] → […].

        g·sigmoid(alpha·g)·(clamp(up, ±limit) + 1) with g = min(x, limit).
        """
        return record(self, "silu_alpha_limit", up, alpha=alpha, limit=limit)

    def cast(self, dtype: DType) -> Self:
        """The same values in another dtype: […] → […]; quantised tensors are dequantised."""
        if dtype == self.dtype:
            return self
        x = self
        if dtype in FLOATS and dtype != F32 and self.dtype not in FLOATS:
            x = record(self, "cast", dtype=F32)
        return record(x, "cast", dtype=DType(dtype))


_X = dense("x")


def _same_as_input(x: Node, **_: float) -> Result:
    return Result(x.ne, F32)


def _normalized(x: Node, eps: float) -> Result:
    need(0 <= eps < math.inf, lambda: f"eps is {eps}; 0 or more is needed")
    return Result(x.ne, F32)


for _name in ("norm", "l2_norm"):
    define(_name, _X)(_normalized)
define("rms_norm", Operand("x", FULL, F32, Layout.ROWS))(_normalized)
define("cumsum", _X)(_same_as_input)


def _reduce(x: Node) -> Result:
    return Result((1, *x.ne[1:]), F32)


define("sum_rows", _X)(_reduce)
define("mean", _X)(_reduce)


@define("softmax", _X, dense("mask", HALF, optional=True), dense("sinks", optional=True))
def _softmax(
    x: Node, mask: Node | None, sinks: Node | None, scale: float = 1.0, max_bias: float = 0.0
) -> Result:
    need_cover(x.ne, mask, sinks)
    need_slopes(max_bias, mask)
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


def need_slopes(max_bias: float, mask: Node | None) -> None:
    """Raises `Mismatch` for a `max_bias` that is no number from 0 on, or one without a mask."""
    need(0 <= max_bias < math.inf, lambda: f"max_bias {max_bias}: 0, for none, or more")
    need(not max_bias or mask is not None, "max_bias multiplies a mask, and there is none")


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


@define("solve_tri", dense("a"), dense("b"))
def _solve_tri(a: Node, b: Node) -> Result:
    need(a.ne[0] == a.ne[1], f"{list(a.shape)} is not square")
    need(a.ne[1:] == b.ne[1:], f"{list(a.shape)} and {list(b.shape)}: dims 1 to 3 differ")
    return Result(b.ne, F32)


class Products(Node):
    """Matrix products and triangular systems."""

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

    def solve_tri(
        self, b: Node, lower: bool = True, left: bool = True, unit_diag: bool = False
    ) -> Self:
        """The x of self · x = b: self [n, n] triangular, b [k, n] → [k, n]; with left=False that of
        x · self = b: b [n, k] → [n, k].

        Rows lie along dim 1, columns along dim 0; dims 2 and 3 are equal. The other triangle is not
        read, nor the diagonal if `unit_diag` assumes ones; a zero on it gives inf or NaN. ggml
        solves only lower, left, non-unit. The other seven are composed: the right side by
        transposing, upper triangles by reversing rows and columns, a unit diagonal by writing ones.
        """
        graph = self.graph or b.graph
        with tracing(graph) if graph is not None else nullcontext():
            if left:
                return _solve(self, b, lower, unit_diag)
            # x · a = b is aᵀ · xᵀ = bᵀ
            solved = _solve(_transposed(self), _transposed(b), not lower, unit_diag)
            return record(_transposed(solved), "contiguous")


def _solve(a: T, b: Node, lower: bool, unit_diag: bool) -> T:
    if lower and not unit_diag:
        return record(a, "solve_tri", b)
    try:
        _solve_tri(a, b)
    except Mismatch as error:
        raise TensorError(f"solve_tri: {error}") from None
    if a.dtype != F32:
        a = record(a, "cast", dtype=F32)
    if unit_diag:
        ones = record(record(_first_row(a), "fill", value=1.0), "diag")
        a = record(record(a, "tri", kind=3 if lower else 1), "add", ones)
    if lower:
        return record(a, "solve_tri", b)
    # With its rows and columns reversed an upper triangle is a lower one.
    backwards = _backwards(a)
    half = _transposed(record(a, "rows", backwards))
    flipped = _transposed(record(half, "rows", backwards))
    return record(record(flipped, "solve_tri", record(b, "rows", backwards)), "rows", backwards)


def _transposed(x: T) -> T:
    return record(x, "permute", order=(1, 0, 2, 3))


def _first_row(x: T) -> T:
    return record(x, "view", offset=0, ne=(x.ne[0], 1, *x.ne[2:]), nb=x.nb)


def _backwards(x: T) -> T:
    """I32 n − 1, n − 2, … 0 for each matrix of x [n, n, …]."""
    n = x.ne[0]
    counted = record(record(_first_row(x), "fill", value=-1.0), "cumsum")  # −1, −2, … −n
    total = record(_first_row(x), "fill", value=float(n))
    ids = record(record(counted, "add", total), "cast", dtype=I32)
    return record(ids, "reshape", ne=(n, *x.ne[2:], 1))
