"""Element-wise ops: arithmetic with broadcasting, unary functions, gated activations."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ...gguf_file.types import DType
from ..graph import record
from ..node import Node, T
from ..table import (
    F32,
    FLOATS,
    FULL,
    HALF,
    NUMBERS,
    Layout,
    Operand,
    Result,
    contiguous_strides,
    define,
    dense,
    need,
    repeats_into,
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
