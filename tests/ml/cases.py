"""Every op of the table beside a computation of the same in numpy and float64.

A case runs public methods on tensors; its oracle knows nothing of ggml and works on arrays of the
reversed shape: a tensor [k, m] is an array [m, k].
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ggmodel.ml import DType, RopeType, SamplingMode, Tensor
from tests.ml.harness import Blocks, Value, blocks, normal

# Float32 arithmetic: 2⁻²⁴ a rounding is an NMSE of 4e-15, a hundred times over in sums and
# polynomials; squared for being wrong together.
FLOAT = 1e-11
# ggml looks GELU up in a table of F16: argument and value have 11 bits, 2⁻¹¹ apart, 8e-8 each.
TABLE = 1e-6
# The result, or an operand, is rounded to F16.
HALF = 1e-6
# The activations of a product are rounded to blocks of 8 bits: steps of max|x| / 127, which is
# (2.8 / 127)² / 12 = 4e-5 of Gaussian noise.
BLOCKS = 1e-4
SAME = 0.0  # elements are moved, not computed with


@dataclass(frozen=True)
class Case:
    op: str
    label: str
    values: tuple[Value, ...]
    build: Callable[..., Tensor]
    want: Callable[..., Any]
    bound: float = FLOAT

    def __str__(self) -> str:
        return f"{self.op}-{self.label}" if self.label else self.op


CASES: list[Case] = []


def case(
    op: str,
    label: str,
    values: tuple[Value, ...],
    build: Callable[..., Tensor],
    want: Callable[..., Any],
    bound: float = FLOAT,
) -> None:
    CASES.append(Case(op, label, values, build, want, bound))


# Layouts of an operand: an array, the tensor to compute on, the array of its values.
# Permuting (1, 0, 2, 3) is swapping the last two axes of the reversed array.
Layout = tuple[np.ndarray, Callable[[Tensor], Tensor], Callable[[np.ndarray], np.ndarray]]
LAYOUTS: dict[str, Layout] = {
    "row": (normal(7), lambda t: t, lambda a: a),
    "4d": (normal(2, 3, 5, 6), lambda t: t, lambda a: a),
    "permuted": (
        normal(4, 3, 6),
        lambda t: t.permute(1, 2, 0, 3),
        lambda a: a.transpose(1, 2, 0),
    ),
    "columns": (normal(5, 8), lambda t: t.slice(0, 2, 7), lambda a: a[:, 2:7]),
    "stepped": (normal(7, 4), lambda t: t.slice(1, 1, 7, 2), lambda a: a[1:7:2]),
    "stepped row": (normal(3, 9), lambda t: t.slice(0, 1, 9, 3), lambda a: a[:, 1:9:3]),
    "stepped row of four dims": (
        normal(2, 3, 4, 9),
        lambda t: t.slice(0, 1, 9, 3),
        lambda a: a[..., 1:9:3],
    ),
    "stepped row of turned dims": (
        normal(2, 3, 4, 9),
        lambda t: t.permute(0, 1, 3, 2).slice(0, 2, 9, 2),
        lambda a: a.swapaxes(0, 1)[..., 2:9:2],
    ),
    "column": (normal(1, 5), lambda t: t.permute(1, 0, 2, 3), lambda a: a.T),
    "sliced columns": (
        normal(4, 6),
        lambda t: t.permute(1, 0, 2, 3).slice(0, 1, 3),
        lambda a: a.T[:, 1:3],
    ),
    "f16": (normal(3, 32, dtype=np.float16), lambda t: t, lambda a: a),
}


def over_layouts(
    op: str,
    build: Callable[[Tensor], Tensor],
    want: Callable[[np.ndarray], np.ndarray],
    bound: float = FLOAT,
    prepare: Callable[[np.ndarray], np.ndarray] = lambda a: a,
    prefix: str = "",
) -> None:
    for label, (array, lay, same) in LAYOUTS.items():
        limit = max(bound, HALF) if array.dtype == np.float16 else bound
        value = prepare(array).astype(array.dtype)
        case(
            op,
            prefix + label,
            (value,),
            lambda t, lay=lay: build(lay(t)),
            lambda a, same=same: want(same(a)),
            limit,
        )


# element by element


def erf(x: np.ndarray) -> np.ndarray:
    return np.vectorize(math.erf)(x)


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def gelu(x: np.ndarray) -> np.ndarray:
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def positive(x: np.ndarray) -> np.ndarray:
    return np.abs(x) + 0.1


def half_away(x: np.ndarray) -> np.ndarray:
    return np.sign(x) * np.floor(np.abs(x) + 0.5)


UNARY: dict[str, tuple[Callable[[np.ndarray], np.ndarray], float]] = {
    "neg": (np.negative, FLOAT),
    "exp": (np.exp, FLOAT),
    "tanh": (np.tanh, FLOAT),
    "sigmoid": (sigmoid, FLOAT),
    "relu": (lambda x: np.maximum(x, 0), FLOAT),
    "gelu": (gelu, TABLE),
    "gelu_erf": (lambda x: 0.5 * x * (1 + erf(x / math.sqrt(2))), FLOAT),
    "quick_gelu": (lambda x: x * sigmoid(1.702 * x), TABLE),
    "silu": (lambda x: x * sigmoid(x), FLOAT),
    "softplus": (lambda x: np.log1p(np.exp(x)), FLOAT),
    "abs": (np.abs, FLOAT),
    "floor": (np.floor, FLOAT),
    "ceil": (np.ceil, FLOAT),
    "round": (half_away, FLOAT),
    "sqr": (np.square, FLOAT),
    "sin": (np.sin, FLOAT),
    "cos": (np.cos, FLOAT),
}
for _op, (_want, _bound) in UNARY.items():
    over_layouts(_op, lambda t, op=_op: getattr(t, op)(), _want, _bound)
over_layouts("sqrt", lambda t: t.sqrt(), np.sqrt, prepare=positive)
over_layouts("log", lambda t: t.log(), np.log, prepare=positive)
over_layouts("clamp", lambda t: t.clamp(-0.5, 0.75), lambda x: np.clip(x, -0.5, 0.75))
over_layouts("scale", lambda t: t.scale(-1.5), lambda x: -1.5 * x)
over_layouts("fill", lambda t: t.fill(2.5), lambda x: np.full_like(x, 2.5))
case(
    "round", "halves", (np.array([-1.5, -0.5, 0.5, 1.5, 2.5], np.float32),),
    lambda t: t.round(), half_away, SAME,
)  # fmt: skip
case("exp", "far", (np.array([-200, -80, -1, 0, 1, 80], np.float32),), lambda t: t.exp(), np.exp)
case(
    "softplus", "far", (np.array([-30, -1, 0, 1, 30, 100], np.float32),), lambda t: t.softplus(),
    lambda x: np.logaddexp(0, x),
)  # fmt: skip

GATED: dict[str, tuple[str, Callable[[np.ndarray], np.ndarray], float]] = {
    "gated_gelu": ("gelu", gelu, TABLE),
    "gated_quick_gelu": ("quick_gelu", UNARY["quick_gelu"][0], TABLE),
    "gated_silu": ("silu", UNARY["silu"][0], FLOAT),
    "gated_relu": ("relu", UNARY["relu"][0], FLOAT),
}
for _op, (_method, _want, _bound) in GATED.items():
    for _label, (_array, _lay, _same) in LAYOUTS.items():
        case(
            _op,
            _label,
            (_array, normal(*_array.shape, seed=1).astype(_array.dtype)),
            lambda g, u, lay=_lay, method=_method: getattr(lay(g), method)(lay(u)),
            lambda g, u, same=_same, want=_want: want(same(g)) * same(u),
            max(_bound, HALF) if _array.dtype == np.float16 else _bound,
        )


def clamped_swiglu(g: np.ndarray, u: np.ndarray) -> np.ndarray:
    g, u = np.minimum(g, 0.9), np.clip(u, -0.9, 0.9)
    return g * sigmoid(1.7 * g) * (u + 1)


case(
    "silu_alpha_limit",
    "",
    (normal(3, 20), normal(3, 20, seed=1)),
    lambda g, u: g.silu_alpha_limit(u, 1.7, 0.9),
    clamped_swiglu,
)

BINARY = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide}
SHAPES: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "same": ((2, 3, 4, 5), (2, 3, 4, 5)),
    "row": ((2, 3, 4), (4,)),
    "column": ((3, 4), (3, 1)),
    "scalar": ((2, 3, 4), (1,)),
    "outer": ((2, 3, 4, 5), (2, 1, 4, 1)),
}
for _op, _want in BINARY.items():
    for _label, (_a, _b) in SHAPES.items():
        case(
            _op,
            _label,
            (normal(*_a), positive(normal(*_b, seed=1))),
            lambda a, b, op=_op: getattr(a, op)(b),
            _want,
        )
    case(
        _op,
        "tiled",  # each dim of the second divides that of the first
        (normal(6, 8), positive(normal(3, 4, seed=1))),
        lambda a, b, op=_op: getattr(a, op)(b),
        lambda a, b, want=_want: want(a, np.tile(b, (2, 2))),
    )
    case(
        _op,
        "both permuted",
        (normal(5, 4), positive(normal(5, 4, seed=1))),
        lambda a, b, op=_op: getattr(a.permute(1, 0, 2, 3), op)(b.permute(1, 0, 2, 3)),
        lambda a, b, want=_want: want(a.T, b.T),
    )
    case(
        _op,
        "columns",  # one element a row: the strides are those of the matrix
        (normal(5, 4), positive(normal(5, 4, seed=1))),
        lambda a, b, op=_op: getattr(a.slice(0, 1, 2), op)(b.permute(1, 0, 2, 3).slice(1, 2, 3)
                                                          .permute(1, 0, 2, 3)),
        lambda a, b, want=_want: want(a[:, 1:2], b[:, 2:3]),
    )  # fmt: skip
    for _first in (np.float16, np.float32):
        case(
            _op,
            f"{np.dtype(_first).name} and f16",
            (normal(3, 8, dtype=_first), positive(normal(8, seed=1)).astype(np.float16)),
            lambda a, b, op=_op: getattr(a, op)(b),
            _want,
            HALF,
        )

ROUND_TRIP = blocks(DType.Q8_0, normal(3, 64))
over_layouts("cast", lambda t: t.cast(DType.F16), lambda x: x, HALF)
case("cast", "to bf16", (normal(3, 8),), lambda t: t.cast(DType.BF16), lambda x: x, 1e-5)
case("cast", "from q8_0", (ROUND_TRIP,), lambda t: t.cast(DType.F32), lambda x: x, 1e-13)
case("cast", "q8_0 to f16", (ROUND_TRIP,), lambda t: t.cast(DType.F16), lambda x: x, HALF)
case(
    "cast", "to i32", (np.array([-2.7, -0.5, 0, 0.5, 3.9], np.float32),),
    lambda t: t.cast(DType.I32), np.trunc, SAME,
)  # fmt: skip
case(
    "cast", "from i32", (np.array([[1, 2], [3, -4]], np.int32),), lambda t: t.cast(DType.F32),
    lambda x: x, SAME,
)  # fmt: skip
case(
    "cast",
    "i32 to f16",
    (np.array([1, 2, -4], np.int32),),
    lambda t: t.cast(DType.F16),
    lambda x: x,
    SAME,
)

# products


def product(w: np.ndarray, x: np.ndarray) -> np.ndarray:
    """[…, m, k] and [b, a, n, k]; each matrix of w serves several neighbours of x."""
    while w.ndim < x.ndim:
        w = w[None]
    for axis in range(x.ndim - 2):
        w = np.repeat(w, x.shape[axis] // w.shape[axis], axis)
    return np.einsum("...mk,...nk->...nm", w, x)


for _label, _w, _x in [
    ("matrix", (5, 8), (3, 8)),
    ("vector", (33, 64), (1, 64)),
    ("odd", (7, 13), (9, 13)),
    ("broadcast", (2, 5, 8), (4, 3, 8)),
    ("4d", (2, 1, 5, 8), (4, 3, 3, 8)),
]:
    case(
        "mulmat", _label, (normal(*_w), normal(*_x, seed=1)),
        lambda w, x: w.mulmat(x), product,
    )  # fmt: skip
case(
    "mulmat",
    "permuted",
    (normal(6, 4, 5), normal(3, 4, 5, seed=1)),
    lambda w, x: w.permute(0, 2, 1, 3).mulmat(x.permute(0, 2, 1, 3)),
    lambda w, x: product(w.swapaxes(0, 1), x.swapaxes(0, 1)),
)
case(
    "mulmat",
    "transposed",
    (normal(8, 5), normal(8, 3, seed=1)),
    lambda w, x: w.permute(1, 0, 2, 3).mulmat(x.permute(1, 0, 2, 3)),
    lambda w, x: x.T @ w,
)
case(
    "mulmat", "full precision", (normal(5, 8, dtype=np.float16), normal(3, 8, seed=1)),
    lambda w, x: w.mulmat_full_prec(x), product, HALF,
)  # fmt: skip
case(
    "mulmat", "of halves", (normal(5, 8, dtype=np.float16), normal(3, 8, seed=1).astype("f2")),
    lambda w, x: w.mulmat(x), product, HALF,
)  # fmt: skip
case(
    "mulmat", "slice of a table", (blocks(DType.Q8_0, normal(6, 64)), normal(3, 64, seed=1)),
    lambda w, x: w.slice(1, 2, 5).mulmat(x), lambda w, x: x @ w[2:5].T, BLOCKS,
)  # fmt: skip

CHOICE = np.array([[2, 0], [1, 2], [0, 3]], np.int32)  # [tokens, used]


def chosen(w: np.ndarray, x: np.ndarray, ids: np.ndarray) -> np.ndarray:
    return np.einsum("tumk,tuk->tum", w[ids], np.broadcast_to(x, (*ids.shape, x.shape[-1])))


for _label, _w, _used, _bound in [
    ("f32", normal(4, 5, 64), 2, FLOAT),
    ("shared input", normal(4, 5, 64), 1, FLOAT),
    ("f16", normal(4, 5, 64, dtype=np.float16), 2, HALF),
    ("q4_0", blocks(DType.Q4_0, normal(4, 5, 64)), 2, BLOCKS),
    ("q4_k", blocks(DType.Q4_K, normal(4, 5, 256)), 1, BLOCKS),
]:
    _k = (_w.values if isinstance(_w, Blocks) else _w).shape[-1]
    case(
        "mulmat_id", _label, (_w, normal(3, _used, _k, seed=1), CHOICE),
        lambda w, x, ids: w.mulmat_id(x, ids), chosen, _bound,
    )  # fmt: skip
case(
    "mulmat_id",
    "ids in a wider table",
    (normal(4, 5, 8), normal(3, 1, 8, seed=1), np.hstack([CHOICE, CHOICE])),
    lambda w, x, ids: w.mulmat_id(x, ids.slice(0, 0, 2)),
    lambda w, x, ids: chosen(w, x, ids[:, :2]),
)
case(
    "add_id",
    "",
    (normal(3, 2, 5), normal(4, 5, seed=1), CHOICE),
    lambda x, bias, ids: x.add_id(bias, ids),
    lambda x, bias, ids: x + bias[ids],
)

# along dim 0


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def norm(x: np.ndarray, eps: float) -> np.ndarray:
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + eps)


over_layouts("softmax", lambda t: t.softmax(), softmax)
over_layouts("norm", lambda t: t.layer_norm(eps=1e-3), lambda x: norm(x, 1e-3))
over_layouts(
    "rms_norm", lambda t: t.rms_norm(eps=1e-3),
    lambda x: x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-3),
)  # fmt: skip
over_layouts("l2_norm", lambda t: t.l2_norm(), lambda x: x / np.sqrt((x**2).sum(-1, keepdims=True)))
over_layouts("sum_rows", lambda t: t.sum_rows(), lambda x: x.sum(-1, keepdims=True))
over_layouts("mean", lambda t: t.mean(), lambda x: x.mean(-1, keepdims=True))
over_layouts("cumsum", lambda t: t.cumsum(), lambda x: x.cumsum(-1))
over_layouts("sqr", lambda t: t.variance(), lambda x: x.var(-1, keepdims=True), prefix="variance ")
over_layouts("sqrt", lambda t: t.stddev(), lambda x: x.std(-1, keepdims=True), prefix="stddev ")
case(
    "sqr",
    "variance of halves that overflow when squared",
    (np.array([[300, 500, -300, 100]], np.float16),),
    lambda t: t.variance(),
    lambda x: x.var(-1, keepdims=True),
)
case(
    "l2_norm", "of zeros", (np.zeros((2, 4), np.float32),), lambda t: t.l2_norm(), lambda x: x, SAME
)
_affine = (normal(3, 8), normal(8, seed=1), normal(8, seed=2))
case(
    "norm", "weight and bias", _affine, lambda x, w, b: x.layer_norm(w, b, 1e-3),
    lambda x, w, b: norm(x, 1e-3) * w + b,
)  # fmt: skip
case(
    "norm", "bias alone", _affine, lambda x, w, b: x.layer_norm(None, b, 1e-3),
    lambda x, w, b: norm(x, 1e-3) + b,
)  # fmt: skip
case(
    "rms_norm", "weight", _affine, lambda x, w, b: x.rms_norm(w, 1e-3),
    lambda x, w, b: x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-3) * w,
)  # fmt: skip

# moving elements

over_layouts("contiguous", lambda t: t.permute(1, 0, 2, 3).contiguous(), lambda x: np.swapaxes(
    np.atleast_2d(x), -1, -2), SAME)  # fmt: skip
over_layouts("duplicate", lambda t: t.duplicate(), lambda x: x, SAME)
over_layouts("reshape", lambda t: t.reshape(-1), lambda x: x.reshape(-1), SAME)
over_layouts("repeat", lambda t: t.repeat(1, 3), lambda x: np.tile(
    np.atleast_2d(x), (*[1] * (max(x.ndim, 2) - 2), 3, 1)), SAME)  # fmt: skip
over_layouts("concat", lambda t: t.concat(t, 0), lambda x: np.concatenate([x, x], -1), SAME)
over_layouts("pad", lambda t: t.pad(2, 1), lambda x: np.pad(
    np.atleast_2d(x), [(0, 0)] * (max(x.ndim, 2) - 2) + [(0, 1), (0, 2)]), SAME)  # fmt: skip
for _dim in range(4):
    case(
        "concat",
        f"dim {_dim} of permuted",
        (normal(2, 3, 4, 5), normal(2, 3, 4, 5, seed=1)),
        lambda a, b, dim=_dim: a.permute(1, 0, 3, 2).concat(b.permute(1, 0, 3, 2), dim),
        lambda a, b, dim=_dim: np.concatenate(
            [a.transpose(1, 0, 3, 2), b.transpose(1, 0, 3, 2)], 3 - dim
        ),
        SAME,
    )
    case(
        "repeat",
        f"dim {_dim}",
        (normal(2, 3, 4, 5),),
        lambda t, dim=_dim: t.repeat(dim, 2),
        lambda a, dim=_dim: np.concatenate([a, a], 3 - dim),
        SAME,
    )
case(
    "concat", "stack", (normal(2, 3), normal(1, 3, seed=1), normal(4, 3, seed=2)),
    lambda a, b, c: a.stack(1, b, c), lambda *a: np.concatenate(a), SAME,
)  # fmt: skip
case(
    "concat", "integers", (np.array([1, 2], np.int32), np.array([3], np.int32)),
    lambda a, b: a.concat(b, 0), lambda *a: np.concatenate(a), SAME,
)  # fmt: skip
case(
    "repeat", "absolute", (normal(1, 2, 3),), lambda t: t.repeat_4d(6, 2, 3, 2),
    lambda a: np.tile(a, (2, 3, 1, 2)), SAME,
)  # fmt: skip
case(
    "view", "window", (normal(6, 5),), lambda t: t.view(4 * 7, 3, 20, 2),
    lambda a: a[1:3, 2:5], SAME,
)  # fmt: skip
case(
    "view", "1 number", (normal(6, 5),), lambda t: t.view(4 * 6, 4),
    lambda a: a.reshape(-1)[6:10], SAME,
)  # fmt: skip
case(
    "view", "4 dims", (normal(2, 3, 4, 5),), lambda t: t.view(0, 2, 20, 3, 80, 2, 240, 2),
    lambda a: a[:2, :2, :3, :2], SAME,
)  # fmt: skip
case(
    "view", "steps along dim 0, dim 2 of size 1 before a turned dim 3", (normal(3, 1, 4, 9),),
    lambda t: t.permute(0, 3, 2, 1).slice(0, 1, 9, 3),
    lambda a: a.transpose(2, 1, 0, 3)[..., 1:9:3], SAME,
)  # fmt: skip
case(
    "view", "of a view", (normal(6, 5),), lambda t: t.slice(1, 2, 6).slice(0, 1, 4).slice(1, 1, 3),
    lambda a: a[2:6][:, 1:4][1:3], SAME,
)  # fmt: skip
case(
    "view", "rows of blocks", (blocks(DType.Q8_0, normal(4, 64)),),
    lambda t: t.slice(0, 32, 64).slice(1, 1, 3).contiguous(), lambda a: a[1:3, 32:], SAME,
)  # fmt: skip


def permuted(a: np.ndarray, order: tuple[int, ...]) -> np.ndarray:
    """Element by element: index i of source dim d becomes the index of dim order[d]."""
    ne = (*a.shape[::-1], 1, 1, 1)[:4]
    source = a.reshape(ne[::-1])
    out_ne = [0] * 4
    for d in range(4):
        out_ne[order[d]] = ne[d]
    out = np.empty(out_ne[::-1], a.dtype)
    for index in np.ndindex(*ne):
        place = [0] * 4
        for d in range(4):
            place[order[d]] = index[d]
        out[tuple(place[::-1])] = source[tuple(index[::-1])]
    while out.ndim > 1 and out.shape[0] == 1:
        out = out[0]
    return out


for _order in [(2, 0, 1, 3), (0, 2, 1, 3), (1, 2, 0, 3), (3, 2, 1, 0), (1, 3, 0, 2), (2, 3, 0, 1)]:
    case(
        "permute", str(_order), (normal(2, 3, 4, 5),), lambda t, o=_order: t.permute(*o),
        lambda a, o=_order: permuted(a, o), SAME,
    )  # fmt: skip
case(
    "permute", "then sliced", (normal(4, 6),),
    lambda t: t.permute(1, 0, 2, 3).slice(0, 1, 4).slice(1, 2, 5),
    lambda a: a.T[2:5, 1:4], SAME,
)  # fmt: skip


def with_set(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    x = x.copy()
    x[2:4, 1:4] = y
    return x


case(
    "set", "", (normal(5, 6), normal(2, 3, seed=1)), lambda x, y: x.set(y, (2 * 6 + 1) * 4),
    with_set, SAME,
)  # fmt: skip
case(
    "set_inplace",
    "",
    (normal(5, 6), normal(2, 3, seed=1)),
    lambda x, y: x.duplicate().set_inplace(y, 24, 120, 120, (2 * 6 + 1) * 4),
    with_set,
    SAME,
)
case(
    "copy",
    "into halves",
    (normal(4, 6), np.zeros((4, 6), np.float16)),
    lambda x, dst: x.copy(dst.duplicate()),
    lambda x, dst: x,
    HALF,
)
case(
    "copy",
    "into a window",
    (normal(2, 3), normal(5, 6, seed=1)),
    lambda x, dst: written(dst, x),
    lambda x, dst: with_set(dst, x),
    SAME,
)
case(
    "copy",
    "into blocks",
    (normal(3, 64), blocks(DType.Q8_0, np.zeros((3, 64)))),
    lambda x, dst: x.copy(dst.duplicate()),
    lambda x, dst: blocks(DType.Q8_0, x).values,
    SAME,
)


def written(dst: Tensor, x: Tensor) -> Tensor:
    """dst's duplicate after x was copied into a window of it."""
    whole = dst.duplicate()
    window = whole.view((2 * 6 + 1) * 4, 3, 24, 2)
    return whole.set_inplace(x.copy(window), 24, 120, 120, (2 * 6 + 1) * 4)


# by index

IDS = np.array([3, 0, 3, 1], np.int32)
for _label, _table, _bound in [
    ("f32", normal(5, 8), SAME),
    ("f16", normal(5, 8, dtype=np.float16), SAME),
    ("i32", np.arange(10, dtype=np.int32).reshape(5, 2), SAME),
    ("q8_0", blocks(DType.Q8_0, normal(5, 64)), SAME),
]:
    case("rows", _label, (_table, IDS), lambda t, i: t.rows(i), lambda t, i: t[i], _bound)
case(
    "rows", "of a permuted table", (normal(3, 5, 4), np.array([[1, 0]] * 5, np.int32)),
    lambda t, i: t.permute(0, 2, 1, 3).rows(i), lambda t, i: t.transpose(1, 0, 2)[:, [1, 0]], SAME,
)  # fmt: skip
case(
    "rows", "of matrices", (normal(2, 5, 4), np.array([[0, 4, 1], [2, 2, 3]], np.int32)),
    lambda t, i: t.rows(i), lambda t, i: np.stack([t[0][i[0]], t[1][i[1]]]), SAME,
)  # fmt: skip


def with_rows(dst: np.ndarray, src: np.ndarray, ids: np.ndarray) -> np.ndarray:
    dst = dst.copy()
    dst[ids] = src
    return dst


for _dtype in (np.int32, np.int64):
    case(
        "set_rows", np.dtype(_dtype).name,
        (normal(6, 4), normal(3, 4, seed=1), np.array([4, 0, 5], _dtype)),
        lambda d, s, i: d.duplicate().set_rows(s, i), with_rows, SAME,
    )  # fmt: skip
case(
    "set_rows", "into halves",
    (normal(6, 4, dtype=np.float16), normal(3, 4, seed=1), np.array([4, 0, 5], np.int32)),
    lambda d, s, i: d.duplicate().set_rows(s, i), with_rows, HALF,
)  # fmt: skip
case(
    "set_rows", "into blocks",
    (blocks(DType.Q8_0, normal(6, 32)), normal(3, 32, seed=1), np.array([4, 0, 5], np.int64)),
    lambda d, s, i: d.duplicate().set_rows(s, i),
    lambda d, s, i: with_rows(d, blocks(DType.Q8_0, s).values, i), SAME,
)  # fmt: skip

DISTINCT = np.array([[3, -1, 2, 0.5], [0, 9, -7, 1]], np.float32)
case("argsort", "ascending", (DISTINCT,), lambda t: t.argsort(), lambda x: x.argsort(-1), SAME)
case("argsort", "top_k", (DISTINCT,), lambda t: t.top_k(3), lambda x: (-x).argsort(-1)[:, :3], SAME)
case(
    "argsort", "permuted", (DISTINCT.T.copy(),), lambda t: t.permute(1, 0, 2, 3).argsort(),
    lambda x: x.T.argsort(-1), SAME,
)  # fmt: skip
case("argmax", "", (DISTINCT,), lambda t: t.argmax(), lambda x: x.argmax(-1), SAME)
case("diag", "", (normal(5),), lambda t: t.diag(), np.diag, SAME)
case(
    "diag", "batch", (normal(2, 1, 3),), lambda t: t.diag(),
    lambda x: np.stack([np.diag(x[0, 0]), np.diag(x[1, 0])]), SAME,
)  # fmt: skip
for _kind, _want in enumerate(
    [np.triu, lambda x: np.triu(x, 1), np.tril, lambda x: np.tril(x, -1)]
):
    case("tri", str(_kind), (normal(2, 4, 4),), lambda t, k=_kind: t.tri(k), _want, SAME)

# images: arrays [batch, channels, height, width]


def patches(
    x: np.ndarray, k: tuple[int, int], s: tuple[int, int], p: tuple[int, int], d: tuple[int, int]
) -> np.ndarray:
    """[batch, height', width', channels · kh · kw]; all pairs are (width, height)."""
    x = np.pad(x, [(0, 0), (0, 0), (p[1], p[1]), (p[0], p[0])])
    height = (x.shape[2] - d[1] * (k[1] - 1) - 1) // s[1] + 1
    width = (x.shape[3] - d[0] * (k[0] - 1) - 1) // s[0] + 1
    out = np.empty((x.shape[0], height, width, x.shape[1], k[1], k[0]), x.dtype)
    for i in range(height):
        for j in range(width):
            rows = i * s[1] + np.arange(k[1]) * d[1]
            columns = j * s[0] + np.arange(k[0]) * d[0]
            out[:, i, j] = x[:, :, rows][:, :, :, columns]
    return out.reshape(*out.shape[:3], -1)


def convolved(w: np.ndarray, x: np.ndarray, s: Any, p: Any, d: Any) -> np.ndarray:
    found = patches(x, (w.shape[3], w.shape[2]), s, p, d)
    return np.einsum("ok,nhwk->nohw", w.reshape(len(w), -1), found)


for _label, _x, _w, _s, _p, _d in [
    ("plain", (1, 2, 5, 6), (3, 2, 2, 3), (1, 1), (0, 0), (1, 1)),
    ("stride and pad", (2, 2, 7, 6), (3, 2, 3, 3), (2, 1), (1, 2), (1, 1)),
    ("dilated", (1, 1, 9, 8), (2, 1, 2, 3), (1, 2), (2, 0), (2, 3)),
    ("patches", (1, 3, 8, 8), (4, 3, 4, 4), (4, 4), (0, 0), (1, 1)),
]:
    for _type in (np.float32, np.float16):
        _name = f"{_label} {np.dtype(_type).name}"
        case(
            "conv_2d", _name,
            (normal(*_w, dtype=_type), normal(*_x, seed=1)),
            lambda w, x, s=_s, p=_p, d=_d: w.conv_2d(x, *s, *p, *d),
            lambda w, x, s=_s, p=_p, d=_d: untrailed(convolved(w, x, s, p, d)),
        )  # fmt: skip
        case(
            "im2col", _name, (normal(*_w, dtype=_type), normal(*_x, seed=1)),
            lambda w, x, s=_s, p=_p, d=_d: w.im2col(x, *s, *p, *d),
            lambda w, x, s=_s, p=_p, d=_d: untrailed(
                patches(x, (w.shape[3], w.shape[2]), s, p, d)), SAME,
        )  # fmt: skip


def untrailed(a: np.ndarray) -> np.ndarray:
    """Without leading axes of length 1, as a tensor's shape has no trailing ones."""
    while a.ndim > 1 and a.shape[0] == 1:
        a = a[0]
    return a


# volumes: arrays [batch · channels, depth, height, width]


def convolved_3d(
    w: np.ndarray,
    x: np.ndarray,
    channels: int,
    s: tuple[int, int, int],
    p: tuple[int, int, int],
    d: tuple[int, int, int],
) -> np.ndarray:
    """Kernels [out · channels, kd, kh, kw] → [batch · out, …]; triples are (width, height, depth).

    A sum over the places of the kernel, each of which meets a strided box of the volume.
    """
    x = np.pad(x, [(0, 0), *((n, n) for n in reversed(p))])
    x = x.reshape(-1, channels, *x.shape[1:])
    w = w.reshape(-1, channels, *w.shape[1:])
    size = [(x.shape[4 - i] - d[i] * (w.shape[4 - i] - 1) - 1) // s[i] + 1 for i in range(3)]
    out = np.zeros((len(x), len(w), *reversed(size)))
    for place in np.ndindex(*w.shape[2:]):
        box = tuple(
            slice(k * d[i], k * d[i] + (size[i] - 1) * s[i] + 1, s[i])
            for k, i in zip(place, (2, 1, 0), strict=True)
        )
        at = (slice(None), slice(None), *place)
        out += np.einsum("oc,ncdhw->nodhw", w[at], x[(slice(None), slice(None), *box)])
    return out.reshape(-1, *out.shape[2:])


for _label, _x, _w, _channels, _s3, _p3, _d3 in [
    ("plain", (2, 4, 5, 6), (6, 2, 2, 3), 2, (1, 1, 1), (0, 0, 0), (1, 1, 1)),
    ("one channel", (1, 3, 3, 3), (2, 2, 1, 3), 1, (1, 1, 1), (0, 0, 0), (1, 1, 1)),
    ("batch", (6, 4, 5, 6), (8, 2, 3, 2), 2, (2, 1, 3), (1, 2, 1), (1, 1, 1)),
    ("dilated", (3, 7, 6, 8), (3, 3, 2, 2), 3, (1, 2, 1), (0, 1, 2), (3, 2, 2)),
    ("patches", (3, 4, 8, 8), (12, 2, 4, 4), 3, (4, 4, 2), (0, 0, 0), (1, 1, 1)),
]:
    for _type in (np.float32, np.float16):
        case(
            "conv_3d", f"{_label} {np.dtype(_type).name}",
            (normal(*_w, dtype=_type), normal(*_x, seed=1)),
            lambda w, x, c=_channels, s=_s3, p=_p3, d=_d3: w.conv_3d(x, c, *s, *p, *d),
            lambda w, x, c=_channels, s=_s3, p=_p3, d=_d3: convolved_3d(w, x, c, s, p, d),
        )  # fmt: skip


def pooled(x: np.ndarray, k: int, s: int, p: int) -> np.ndarray:
    found = patches(x[:, None], (k, k), (s, s), (p, p), (1, 1))
    return found.mean(-1)


for _k, _s, _p in [(2, 2, 0), (3, 2, 1), (2, 1, 0)]:
    case(
        "avg_pool_2d", f"{_k} {_s} {_p}", (normal(3, 7, 8),),
        lambda t, k=_k, s=_s, p=_p: t.avg_pool_2d(k, s, p),
        lambda x, k=_k, s=_s, p=_p: pooled(x, k, s, p),
    )  # fmt: skip


def resampled(x: np.ndarray, size: tuple[int, int], bilinear: bool) -> np.ndarray:
    def weights(n: int, m: int) -> np.ndarray:
        """[m, n], m new pixels out of n: pixel centres lie at i + ½."""
        out = np.zeros((m, n))
        for i in range(m):
            if bilinear:
                at = (i + 0.5) * n / m - 0.5
                lo = math.floor(at)
                for j, w in ((lo, 1 - (at - lo)), (lo + 1, at - lo)):
                    out[i, min(max(j, 0), n - 1)] += w
            else:
                out[i, i * n // m] = 1
        return out

    rows, columns = weights(x.shape[-2], size[0]), weights(x.shape[-1], size[1])
    return np.einsum("ih,jw,chw->cij", rows, columns, x)


for _mode in SamplingMode:
    for _size in ((8, 10), (3, 4), (6, 3)):
        case(
            "interpolate", f"{_mode.name.lower()} {_size}", (normal(2, 4, 5),),
            lambda t, m=_mode, z=_size: t.interpolate((z[1], z[0], 2, 1), m),
            lambda x, m=_mode, z=_size: resampled(x, z, m is SamplingMode.BILINEAR),
        )  # fmt: skip

# recurrent layers: arrays [sequences, channels, columns] and [sequences, tokens, heads, …]


def causal(x: np.ndarray, kernel: np.ndarray) -> np.ndarray:
    """[sequences, tokens, channels]"""
    windows = np.lib.stride_tricks.sliding_window_view(x, kernel.shape[1], -1)
    return np.einsum("sctk,ck->stc", windows, kernel)


for _label, _x, _kernel in [
    ("", (2, 6, 9), normal(6, 4, seed=1)),
    ("one token", (3, 5, 4), normal(5, 4, seed=1)),
    ("one channel", (2, 1, 5), normal(1, 3, seed=1)),
    ("half kernel", (2, 6, 9), normal(6, 4, seed=1, dtype=np.float16)),
]:
    case(
        "ssm_conv", _label, (normal(*_x), _kernel),
        lambda x, k: x.ssm_conv(k), causal,
    )  # fmt: skip
case(
    "ssm_conv",
    "one channel of many",  # whose rows are not where those of a matrix of one channel would be
    (normal(2, 6, 9), normal(6, 4, seed=1)),
    lambda x, k: x.slice(1, 3, 4).ssm_conv(k.slice(1, 3, 4)),
    lambda x, k: causal(x[:, 3:4], k[3:4]),
)
case(
    "ssm_conv", "transposed", (normal(9, 6), normal(6, 4, seed=1)),
    lambda x, k: x.permute(1, 0, 2, 3).ssm_conv(k), lambda x, k: causal(x.T[None], k)[0],
)  # fmt: skip


def scanned(
    s: np.ndarray, x: np.ndarray, dt: np.ndarray, a: np.ndarray, b: np.ndarray, c: np.ndarray,
    ids: np.ndarray,
) -> np.ndarray:  # fmt: skip
    """The recurrence token by token and head by head (Gu and Dao, arXiv 2312.00752, algorithm 2;
    B is discretised by Euler's rule, as everyone does)."""
    y, last = np.zeros(x.shape), np.zeros((len(x), *s.shape[1:]))
    for n, slot in enumerate(ids):
        for head in range(x.shape[2]):
            group = head * b.shape[2] // x.shape[2]
            state = s[slot, head]  # [d, state]
            for t in range(x.shape[1]):
                step = np.log1p(np.exp(dt[n, t, head]))
                kept = np.exp(step * a[head])  # [1 or state]
                state = state * kept + step * np.outer(x[n, t, head], b[n, t, group])
                y[n, t, head] = state @ c[n, t, group]
            last[n, head] = state
    return np.concatenate([y.reshape(-1), last.reshape(-1)])


def scan_values(
    size: int, width: int, heads: int, groups: int, tokens: int, ids: list[int], decays: int
) -> tuple[np.ndarray, ...]:
    sequences = len(ids)
    return (
        normal(max(ids) + 1, heads, width, size),
        normal(sequences, tokens, heads, width, seed=1),
        normal(sequences, tokens, heads, seed=2),
        -positive(normal(heads, decays, seed=3)),
        normal(sequences, tokens, groups, size, seed=4),
        normal(sequences, tokens, groups, size, seed=5),
        np.array(ids, np.int32),
    )


for _label, _values in {
    "mamba 2": scan_values(32, 4, 6, 2, 5, [1, 0, 3], 1),
    "mamba 1": scan_values(16, 1, 8, 1, 5, [2, 0], 16),
    "odd": scan_values(7, 3, 3, 3, 2, [0], 1),
    "one token": scan_values(16, 4, 2, 1, 1, [0, 1], 1),
    "one state": scan_values(1, 4, 2, 1, 3, [1], 1),
    "one slot for all": scan_values(16, 3, 2, 1, 3, [0, 0, 0], 16),
}.items():
    case("ssm_scan", _label, _values, lambda s, *x: s.ssm_scan(*x), scanned)
case(
    "ssm_scan",
    "a head of many",
    scan_values(16, 4, 3, 3, 5, [1, 0], 16),
    lambda s, x, dt, a, b, c, ids: s.slice(2, 1, 2).ssm_scan(
        x.slice(1, 1, 2), dt.slice(0, 1, 2), a.slice(1, 1, 2), b.slice(1, 1, 2), c.slice(1, 1, 2),
        ids,
    ),
    lambda s, x, dt, a, b, c, ids: scanned(
        s[:, 1:2], x[:, :, 1:2], dt[:, :, 1:2], a[1:2], b[:, :, 1:2], c[:, :, 1:2], ids
    ),
)  # fmt: skip
case(
    "ssm_scan",
    "a slot of many",
    (normal(3, 3, 4, 16), *scan_values(16, 4, 3, 1, 5, [0, 0], 1)[1:]),
    lambda s, *x: s.slice(3, 1, 2).ssm_scan(*x),
    lambda s, *x: scanned(s[1:2], *x),
)


def delta_rule(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, decay: np.ndarray, beta: np.ndarray,
    states: np.ndarray,
) -> np.ndarray:  # fmt: skip
    """The rule head by head with products of matrices (Yang and others, arXiv 2412.06464,
    equation 10): S_t = α_t (I − β_t k kᵀ) S + β_t k vᵀ, by keys and values."""
    sequences, n, heads, d = v.shape
    y, last = np.zeros(v.shape), np.zeros(states.shape)
    for sequence, head in itertools.product(range(sequences), range(heads)):
        state = states[sequence, head].T.astype(np.float64)  # [keys, values]
        for t in range(n):
            at, of = (sequence, t, head), (sequence, t, head % k.shape[2])
            state = np.diag(np.exp(np.broadcast_to(decay[at], d))) @ state
            forget = np.eye(d) - beta[at] * np.outer(k[of], k[of])
            state = forget @ state + beta[at] * np.outer(k[of], v[at])
            y[at] = q[of] @ state / d**0.5
        last[sequence, head] = state.T
    return np.concatenate([y.reshape(-1, heads * d), last.reshape(-1, heads * d)])


def delta_values(
    d: int, groups: int, heads: int, tokens: int, sequences: int = 1, decays: int = 1
) -> tuple[np.ndarray, ...]:
    keys = normal(sequences, tokens, groups, d, seed=1)
    return (
        normal(sequences, tokens, groups, d),
        keys / np.linalg.norm(keys, axis=-1, keepdims=True),  # as models have them
        normal(sequences, tokens, heads, d, seed=2),
        -positive(normal(sequences, tokens, heads, decays, seed=3)),
        positive(normal(sequences, tokens, heads, 1, seed=4)) / 4,
        normal(sequences, heads, d, d, seed=5),
    )


for _label, _values in {
    "a group a head": delta_values(16, 3, 3, 5),
    "groups": delta_values(32, 2, 6, 4, 2),
    "decay of each element": delta_values(16, 2, 4, 5, 2, 16),
    "one token": delta_values(64, 1, 2, 1, 3),
    "odd": delta_values(7, 1, 3, 4, 2),
    "one element": delta_values(1, 2, 2, 3),
}.items():
    case("gated_delta_net", _label, _values, lambda q, *x: q.gated_delta_net(*x), delta_rule)
case(
    "gated_delta_net",
    "heads of many",
    delta_values(16, 3, 3, 4, 2),
    lambda q, k, v, decay, beta, states: q.slice(1, 1, 3).gated_delta_net(
        k.slice(1, 1, 3),
        v.slice(1, 1, 3),
        decay.slice(1, 1, 3),
        beta.slice(1, 1, 3),
        states.slice(2, 1, 3),
    ),
    lambda q, k, v, decay, beta, states: delta_rule(
        q[:, :, 1:3],
        k[:, :, 1:3],
        v[:, :, 1:3],
        decay[:, :, 1:3],
        beta[:, :, 1:3],
        states[:, 1:3],
    ),
)


def wkv7(
    r: np.ndarray, decay: np.ndarray, k: np.ndarray, v: np.ndarray, a: np.ndarray, b: np.ndarray,
    states: np.ndarray,
) -> np.ndarray:  # fmt: skip
    """The rule head by head with products of matrices (Peng and others, arXiv 2503.14456):
    S_t = S_{t-1} (diag(w_t) + a_tᵀ b_t) + v_tᵀ k_t, by values and keys."""
    sequences, n, heads, d = v.shape
    y, last = np.zeros(v.shape), np.zeros(states.shape)
    for sequence, head in itertools.product(range(sequences), range(heads)):
        state = states[sequence, head].astype(np.float64)  # [values, keys]
        for t in range(n):
            at = (sequence, t, head)
            moved = np.diag(decay[at]) + np.outer(a[at], b[at])
            state = state @ moved + np.outer(v[at], k[at])
            y[at] = state @ r[at]
        last[sequence, head] = state
    return np.concatenate([y.reshape(-1, heads * d), last.reshape(-1, heads * d)])


def wkv7_values(d: int, heads: int, tokens: int, sequences: int = 1) -> tuple[np.ndarray, ...]:
    shape = sequences, tokens, heads, d
    keys = normal(*shape, seed=4)
    keys /= np.linalg.norm(keys, axis=-1, keepdims=True)  # as models have them
    return (
        normal(*shape),
        np.exp(-positive(normal(*shape, seed=1))),
        normal(*shape, seed=2),
        normal(*shape, seed=3),
        -keys,
        keys * positive(normal(*shape, seed=5)) / 4,
        normal(sequences, heads, d, d, seed=6),
    )


for _label, _values in {
    "heads": wkv7_values(64, 3, 5),
    "sequences": wkv7_values(64, 2, 4, 3),
    "one token": wkv7_values(64, 1, 1, 2),
    "a wide head": wkv7_values(128, 1, 2),
}.items():
    case("rwkv_wkv7", _label, _values, lambda r, *x: r.rwkv_wkv7(*x), wkv7)
case(
    "rwkv_wkv7",
    "heads of many",
    wkv7_values(64, 3, 4, 2),
    lambda r, decay, k, v, a, b, states: r.slice(1, 1, 3).rwkv_wkv7(
        decay.slice(1, 1, 3),
        k.slice(1, 1, 3),
        v.slice(1, 1, 3),
        a.slice(1, 1, 3),
        b.slice(1, 1, 3),
        states.slice(2, 1, 3),
    ),
    lambda r, decay, k, v, a, b, states: wkv7(
        r[:, :, 1:3],
        decay[:, :, 1:3],
        k[:, :, 1:3],
        v[:, :, 1:3],
        a[:, :, 1:3],
        b[:, :, 1:3],
        states[:, 1:3],
    ),
)


def solved(a: np.ndarray, b: np.ndarray, lower: bool, left: bool, unit: bool) -> np.ndarray:
    a = np.tril(a) if lower else np.triu(a)
    if unit:
        eye = np.eye(a.shape[-1])
        a = a * (1 - eye) + eye
    if left:
        return np.linalg.solve(a, b)
    return np.linalg.solve(a.swapaxes(-1, -2), b.swapaxes(-1, -2)).swapaxes(-1, -2)


def well_conditioned(*shape: int) -> np.ndarray:
    """Nothing is zero: what a triangular solver must not read is there to be seen."""
    return (0.3 * normal(*shape) + 2 * np.eye(shape[-1])).astype(np.float32)


for _shape, _columns in (((5, 5), 3), ((2, 3, 4, 4), 7), ((1, 1), 1), ((6, 6), 1)):
    for _lower, _left, _unit in itertools.product((True, False), repeat=3):
        _n, _batch = _shape[-1], _shape[:-2]
        _way = "lower" if _lower else "upper", "left" if _left else "right", "unit" * _unit
        case(
            "solve_tri",
            f"{' '.join(filter(None, _way))} {list(_shape)} {_columns}",
            (
                well_conditioned(*_shape),
                normal(*_batch, *((_n, _columns) if _left else (_columns, _n)), seed=1),
            ),
            lambda a, b, w=(_lower, _left, _unit): a.solve_tri(b, *w),
            lambda a, b, w=(_lower, _left, _unit): solved(a, b, *w),
        )
case(
    "solve_tri", "permuted", (well_conditioned(4, 4), normal(3, 4, seed=1)),
    lambda a, b: a.permute(1, 0, 2, 3).solve_tri(b.permute(1, 0, 2, 3)),
    lambda a, b: solved(a.T, b.T, True, True, False),
)  # fmt: skip
case(
    "solve_tri", "half and unit", (well_conditioned(4, 4).astype(np.float16), normal(4, 3)),
    lambda a, b: a.solve_tri(b, False, True, True),
    lambda a, b: solved(a, b, False, True, True),
)  # fmt: skip

# rope: arrays [n, heads, d]


def rotate(
    x: np.ndarray, angles: np.ndarray, pairs: list[tuple[int, int]], magnitude: float = 1.0
) -> np.ndarray:
    """Element pairs turned by angles [n, pairs]."""
    out = x.astype(np.float64)
    for i, (a, b) in enumerate(pairs):
        cos, sin = np.cos(angles[:, i, None]), np.sin(angles[:, i, None])
        first, second = x[..., a], x[..., b]
        out[..., a] = magnitude * (first * cos - second * sin)
        out[..., b] = magnitude * (first * sin + second * cos)
    return out


def neighbours(dims: int) -> list[tuple[int, int]]:
    return [(2 * i, 2 * i + 1) for i in range(dims // 2)]


def halves(dims: int) -> list[tuple[int, int]]:
    return [(i, i + dims // 2) for i in range(dims // 2)]


def frequencies(dims: int, base: float) -> np.ndarray:
    return base ** (-2 * np.arange(dims // 2) / dims)


POSITIONS = np.array([0, 1, 7, 30], np.int32)
ROPED = normal(4, 3, 16)
# Angles are products of up to eight float32 roundings and reach 30: 30 · 8 · 2⁻²⁴, squared.
ANGLES = 1e-9
for _dims in (16, 8):
    case(
        "rope", f"norm {_dims}", (ROPED, POSITIONS),
        lambda x, p, d=_dims: x.rope(p, d, 10000.0),
        lambda x, p, d=_dims: rotate(x, p[:, None] * frequencies(d, 1e4), neighbours(d)), ANGLES,
    )  # fmt: skip
    case(
        "rope", f"neox {_dims}", (ROPED, POSITIONS),
        lambda x, p, d=_dims: x.rope(p, d, 500.0, type=RopeType.NEOX),
        lambda x, p, d=_dims: rotate(x, p[:, None] * frequencies(d, 500.0), halves(d)), ANGLES,
    )  # fmt: skip
case(
    "rope", "scale", (ROPED, POSITIONS), lambda x, p: x.rope(p, 16, 1e4, 0.25),
    lambda x, p: rotate(x, 0.25 * p[:, None] * frequencies(16, 1e4), neighbours(16)), ANGLES,
)  # fmt: skip
FACTORS = np.array([1, 1.5, 2, 2.5, 3, 4, 6, 8], np.float32)
case(
    "rope", "factors", (ROPED, POSITIONS, FACTORS),
    lambda x, p, f: x.rope(p, 16, 1e4, type=RopeType.NEOX, factors=f),
    lambda x, p, f: rotate(x, p[:, None] * frequencies(16, 1e4) / f, halves(16)), ANGLES,
)  # fmt: skip
case(
    "rope", "f16", (ROPED.astype(np.float16), POSITIONS), lambda x, p: x.rope(p, 16, 1e4),
    lambda x, p: rotate(x, p[:, None] * frequencies(16, 1e4), neighbours(16)), HALF,
)  # fmt: skip
case(
    "rope", "q8_0", (blocks(DType.Q8_0, normal(4, 3, 32)), POSITIONS),
    lambda x, p: x.rope(p, 32, 1e4),
    lambda x, p: rotate(x, p[:, None] * frequencies(32, 1e4), neighbours(32)), ANGLES,
)  # fmt: skip
case(
    "rope", "permuted", (normal(3, 4, 16), POSITIONS),
    lambda x, p: x.permute(0, 2, 1, 3).rope(p, 16, 1e4),
    lambda x, p: rotate(x.swapaxes(0, 1), p[:, None] * frequencies(16, 1e4), neighbours(16)),
    ANGLES,
)  # fmt: skip


def yarn(x: np.ndarray, p: np.ndarray) -> np.ndarray:
    """arXiv 2309.00071 with the blend over pairs that llama.cpp and transformers share."""
    dims, base, scale, context = 16, 10000.0, 0.25, 512

    def pair_with(turns: float) -> float:
        return dims * math.log(context / (turns * 2 * math.pi)) / (2 * math.log(base))

    low, high = max(0, math.floor(pair_with(32))), min(dims - 1, math.ceil(pair_with(1)))
    ramp = np.clip((np.arange(dims // 2) - low) / max(0.001, high - low), 0, 1)
    plain = p[:, None] * frequencies(dims, base)
    angles = scale * plain * ramp + plain * (1 - ramp)
    return rotate(x, angles, neighbours(dims), 1 + 0.1 * math.log(1 / scale))


case(
    "rope", "yarn", (ROPED, POSITIONS),
    lambda x, p: x.rope(p, 16, 1e4, 0.25, original_context=512, ext_factor=1.0), yarn, ANGLES,
)  # fmt: skip

SECTIONS = (3, 3, 2, 0)
FOUR = np.array([[0, 1, 2, 3], [5, 6, 7, 8], [9, 4, 2, 1], [0, 0, 0, 0]], np.int32)


def multi(x: np.ndarray, p: np.ndarray) -> np.ndarray:
    section = np.repeat(np.arange(4), SECTIONS)  # [pairs]
    return rotate(x, p.reshape(4, 4)[section].T * frequencies(16, 1e4), halves(16))


case(
    "rope", "mrope", (ROPED, FOUR.reshape(-1)),
    lambda x, p: x.rope(p, 16, 1e4, type=RopeType.MROPE, sections=SECTIONS), multi, ANGLES,
)  # fmt: skip


def interleaved(x: np.ndarray, p: np.ndarray) -> np.ndarray:
    """Three positions take turns; pairs that no section is left for have the fourth."""
    section = [0, 1, 2, 0, 1, 3, 3, 3]
    return rotate(x, p.reshape(4, 4)[section].T * frequencies(16, 1e4), halves(16))


case(
    "rope", "imrope", (ROPED, FOUR.reshape(-1)),
    lambda x, p: x.rope(p, 16, 1e4, type=RopeType.IMROPE, sections=(2, 2, 1, 3)),
    interleaved, ANGLES,
)  # fmt: skip


def vision(x: np.ndarray, p: np.ndarray) -> np.ndarray:
    rows, columns = p.reshape(4, 4)[:2]
    turns = frequencies(8, 1e4)
    angles = np.hstack([rows[:, None] * turns, columns[:, None] * turns])
    return rotate(x, angles, halves(16))


case(
    "rope", "vision", (ROPED, FOUR.reshape(-1)),
    lambda x, p: x.rope(p, 8, 1e4, type=RopeType.VISION, sections=(4, 4, 0, 0)), vision, ANGLES,
)  # fmt: skip

case("arange", "", (), lambda ctx: ctx.arange(2, 5, 0.5), lambda: np.arange(2, 5, 0.5), SAME)
case(
    "arange", "down", (), lambda ctx: ctx.arange(5, 0, -2, DType.I32),
    lambda: np.array([5, 3, 1]), SAME,
)  # fmt: skip

# attention: arrays [n, heads, d]; keys and values [m, kv heads, …]


def attention(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    mask: np.ndarray | None = None,
    sinks: np.ndarray | None = None,
    vmla: np.ndarray | None = None,
    scale: float = 0.3,
    softcap: float = 0,
    max_bias: float = 0,
) -> np.ndarray:
    """softmax(scale · K·q + slope · mask) · V, head by head, then by the matrix of the head."""
    heads, shared = q.shape[1], q.shape[1] // k.shape[1]
    out = []
    for h in range(heads):
        scores = scale * q[:, h] @ k[:, h // shared].T
        if softcap:
            scores = softcap * np.tanh(scores / softcap)
        slope = slopes(heads, max_bias)[h] if max_bias else 1
        scores = scores + (0 if mask is None else mask * slope)
        if sinks is not None:
            scores = np.hstack([scores, np.full((len(q), 1), sinks[h])])
        weights = softmax(scores)[:, : len(k)]
        result = weights @ v[:, h // shared]
        out.append(result if vmla is None else result @ vmla[h].T)
    return np.stack(out, 1)


def slopes(heads: int, max_bias: float) -> list[float]:
    """ALiBi's of each head, as MPT's code has them: of the next power of two, those at even places
    first."""
    up = 1 << (heads - 1).bit_length()
    every = [2 ** (-max_bias * i / up) for i in range(1, up + 1)]
    return every if up == heads else [*every[1::2], *every[::2]][:heads]


FALLING = np.arange(6) - np.arange(4)[:, None] - 2.0
FALLING = np.where(FALLING <= 0, FALLING, -np.inf).astype(np.float32)
MASK = np.where(np.arange(6) <= np.arange(4)[:, None] + 2, 0, -np.inf).astype(np.float32)
GROUPED = (normal(4, 6, 16), normal(6, 2, 16, seed=1), normal(6, 2, 8, seed=2))
GROUPED_16 = normal(6, 4, 8, seed=1), normal(6, 4, 8, seed=2)
SINKS = normal(6, seed=3)
VMLA = normal(6, 5, 8, seed=4)


def attend(softcap: float = 0, max_bias: float = 0, **names: int) -> Callable[..., Tensor]:
    """Attention of q, k, v with the named extras, by their place among the values."""

    def build(q: Tensor, k: Tensor, v: Tensor, *rest: Tensor) -> Tensor:
        extras: dict[str, Any] = {name: rest[i] for name, i in names.items()}
        return q.scaled_dot_product_attention(
            k, v, scale=0.3, softcap=softcap, max_bias=max_bias, **extras
        )

    return build


def attended(softcap: float = 0, max_bias: float = 0, **names: int) -> Callable[..., np.ndarray]:
    def want(q: np.ndarray, k: np.ndarray, v: np.ndarray, *rest: np.ndarray) -> np.ndarray:
        extras: dict[str, Any] = {name: rest[i] for name, i in names.items()}
        return attention(q, k, v, softcap=softcap, max_bias=max_bias, **extras)

    return want


for _op in ("softmax", "flash_attention"):
    for _label, _values, _names in [
        ("everywhere", GROUPED, {}),
        ("one head", (normal(3, 1, 8), normal(5, 1, 8), normal(5, 1, 8)), {}),
        ("one token", (normal(1, 6, 16), *GROUPED[1:]), {}),
        ("masked", (*GROUPED, MASK), {"mask": 0}),
        ("half mask", (*GROUPED, MASK.astype(np.float16)), {"mask": 0}),
        ("sinks", (*GROUPED, MASK, SINKS), {"mask": 0, "sinks": 1}),
        ("vmla", (*GROUPED, VMLA), {"vmla": 0}),
        ("all", (*GROUPED, MASK, SINKS, VMLA), {"mask": 0, "sinks": 1, "vmla": 2}),
        # Scores are 1 on average and reach 4.
        ("softcap", GROUPED, {"softcap": 1}),
        ("alibi", (*GROUPED, FALLING), {"max_bias": 8, "mask": 0}),
        (
            "alibi of one head",
            (*(normal(4, 1, 8), *(normal(6, 1, 8),) * 2), FALLING),
            {"max_bias": 4, "mask": 0},
        ),
        (
            "alibi of 16 heads",
            (normal(4, 16, 8), *GROUPED_16, FALLING, normal(16, seed=3)),
            {"max_bias": 8, "softcap": 1, "mask": 0, "sinks": 1},
        ),
        ("softcap masked", (*GROUPED, MASK, SINKS), {"softcap": 1.5, "mask": 0, "sinks": 1}),
    ]:
        case(_op, f"attention {_label}", _values, attend(**_names), attended(**_names))


# sounds: arrays [batch, channels, length]


def spread(w: np.ndarray, x: np.ndarray, s: int) -> np.ndarray:
    """Transposed convolution of [in, out, kh, kw] over [batch, in, height, width], pixel by pixel;
    the height of a sound is 1, where the stride does not matter."""
    height, width = x.shape[2:]
    kh, kw = w.shape[2:]
    out = np.zeros((len(x), w.shape[1], (height - 1) * s + kh, (width - 1) * s + kw))
    for i in range(height):
        for j in range(width):
            out[:, :, i * s : i * s + kh, j * s : j * s + kw] += np.einsum(
                "ni,iohw->nohw", x[:, :, i, j], w
            )
    return out


def each_channel(w: np.ndarray, x: np.ndarray, s: Any, p: Any, d: Any) -> np.ndarray:
    planes = [convolved(w[c : c + 1], x[:, c : c + 1], s, p, d) for c in range(len(w))]
    return np.concatenate(planes, 1)


for _type in (np.float32, np.float16):
    for _n, (_s, _p, _d) in enumerate([(1, 0, 1), (2, 1, 1), (1, 2, 2), (3, 0, 3)]):
        _name = f"{_s} {_p} {_d} {np.dtype(_type).name}"
        _w1, _x1 = normal(4, 3, 3, dtype=_type), normal(1 + _n % 2, 3, 11, seed=1)
        _flat = (_s, 1), (_p, 0), (_d, 1)
        case(
            "conv_1d", _name, (_w1, _x1), lambda w, x, a=(_s, _p, _d): w.conv_1d(x, *a),
            lambda w, x, a=_flat: untrailed(convolved(w[:, :, None], x[:, :, None], *a)[:, :, 0]),
        )  # fmt: skip
        case(
            "depthwise_conv_1d", _name, (normal(3, 1, 3, dtype=_type), _x1),
            lambda w, x, a=(_s, _p, _d): w.depthwise_conv_1d(x, *a),
            lambda w, x, a=_flat: untrailed(
                each_channel(w[:, :, None], x[:, :, None], *a)[:, :, 0]),
        )  # fmt: skip
        _both = (_s, 1), (_p, 1), (_d, 2)
        case(
            "depthwise_conv_2d", _name,
            (normal(3, 1, 2, 3, dtype=_type), normal(1 + _n % 2, 3, 8, 9, seed=1)),
            lambda w, x, a=_both: w.depthwise_conv_2d(x, *a[0], *a[1], *a[2]),
            lambda w, x, a=_both: untrailed(each_channel(w, x, *a)),
        )  # fmt: skip
    for _s in (1, 2, 5):
        _name = f"{_s} {np.dtype(_type).name}"
        case(
            "conv_transpose_1d", _name, (normal(3, 4, 3, dtype=_type), normal(3, 7, seed=1)),
            lambda w, x, s=_s: w.conv_transpose_1d(x, s),
            lambda w, x, s=_s: spread(w[:, :, None], x[None, :, None], s)[0, :, 0],
        )  # fmt: skip
        case(
            "conv_transpose_2d", _name,
            (normal(3, 4, 2, 3, dtype=_type), normal(1, 3, 4, 5, seed=1)),
            lambda w, x, s=_s: w.conv_transpose_2d(x, s),
            lambda w, x, s=_s: spread(w, x, s)[0],
        )  # fmt: skip


def normalised(x: np.ndarray, groups: int, eps: float) -> np.ndarray:
    found = x.astype(np.float64).copy()
    size = x.shape[-3] // groups
    for image in found.reshape(-1, *x.shape[-3:]):
        for g in range(groups):
            part = image[g * size : (g + 1) * size]
            part[...] = (part - part.mean()) / math.sqrt(part.var() + eps)
    return found


for _groups in (1, 2, 6):
    for _label, _array in ("one", normal(6, 4, 5)), ("batch", normal(2, 6, 3, 2)):
        case(
            "group_norm", f"{_label} {_groups}", (_array,),
            lambda t, g=_groups: t.group_norm(g, 1e-3),
            lambda x, g=_groups: normalised(x, g, 1e-3),
        )  # fmt: skip

# windows: arrays [height, width, channels]


def windows(x: np.ndarray, size: int) -> np.ndarray:
    height, width, c = x.shape
    down, across = -(-height // size), -(-width // size)
    out = np.zeros((down * across, size, size, c))
    for i, j in np.ndindex(height, width):
        out[i // size * across + j // size, i % size, j % size] = x[i, j]
    return out


def joined(x: np.ndarray, width: int, height: int) -> np.ndarray:
    size = x.shape[1]
    across = -(-width // size)
    out = np.zeros((height, width, x.shape[3]))
    for i, j in np.ndindex(height, width):
        out[i, j] = x[i // size * across + j // size, i % size, j % size]
    return out


for _height, _width, _size in (4, 6, 2), (5, 7, 3), (3, 2, 4), (2, 9, 1):
    _name = f"{_width}x{_height} {_size}"
    _picture = normal(_height, _width, 5)
    case(
        "window_partition", _name, (_picture,), lambda t, s=_size: t.window_partition(s),
        lambda x, s=_size: untrailed(windows(x, s)), SAME,
    )  # fmt: skip
    _pieces = normal(-(-_height // _size) * -(-_width // _size), _size, _size, 5)
    case(
        "window_unpartition", _name, (_pieces,),
        lambda t, w=_width, h=_height: t.window_unpartition(w, h),
        lambda x, w=_width, h=_height: joined(x, w, h), SAME,
    )  # fmt: skip


def looked_up(table: np.ndarray) -> np.ndarray:
    n = (len(table) + 1) // 2
    return np.stack([[table[n - 1 - k + q] for k in range(n)] for q in range(n)])


for _n in (1, 4):
    case(
        "relative_positions", str(_n), (normal(2 * _n - 1, 6, dtype=np.float16),),
        lambda t: t.relative_positions(), lambda x: untrailed(looked_up(x)), SAME,
    )  # fmt: skip
case(
    "relative_positions", "float32", (normal(7, 6),), lambda t: t.relative_positions(), looked_up,
    HALF,
)  # fmt: skip
case(
    "add_relative_positions", "", (normal(2, 12, 9), normal(2, 3, 4, 3), normal(2, 3, 4, 3)),
    lambda t, w, h: t.add_relative_positions(w, h),
    lambda x, w, h: x + (w[..., None, :] + h[..., :, None]).reshape(x.shape),
)  # fmt: skip
for _shifts in (2,), (-1, 3), (0, 0, 1), (9, -9, 4, 1):
    _array = normal(2, 3, 4, 5)
    case(
        "roll", " ".join(map(str, _shifts)), (_array,), lambda t, s=_shifts: t.roll(*s),
        lambda x, s=_shifts: np.roll(x, s, range(3, 3 - len(s), -1)), SAME,
    )  # fmt: skip
for _before, _after in (0, 0), (3, 0), (2, 6):
    case(
        "pad_reflect", f"{_before} {_after}", (normal(3, 2, 7),),
        lambda t, b=_before, a=_after: t.pad_reflect(b, a),
        lambda x, b=_before, a=_after: np.pad(x, [(0, 0), (0, 0), (b, a)], "reflect"), SAME,
    )  # fmt: skip
