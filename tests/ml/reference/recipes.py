"""A recipe for each op of the table, which draws operands and applies the op.

Arrays have the reversed shape, four axes long: a tensor [k, m] is an array [1, 1, m, k]. Operands
lie in memory as they may: whole, permuted, a window of something larger.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st

from ggmodel.ml import Context, DType, RopeType, SamplingMode, Tensor
from ggmodel.ml.graph import record
from ggmodel.ml.table import FLOATS
from tests.ml.harness import Value, blocks

Draw = Callable[[st.SearchStrategy], Any]
Lay = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Recipe:
    """Tensors from operands, or, without any, from the context.

    Attributes:
        build: returns what is to be compared; what was written in place too.
        exact: elements are moved or chosen, so that nothing may differ.
    """

    values: tuple[Value, ...]
    build: Callable[..., Tensor | tuple[Tensor, ...]]
    exact: bool = False


RECIPES: dict[str, Callable[[Draw, str], Recipe]] = {}
Maker = Callable[[Draw, str], Recipe]


def recipe(*ops: str) -> Callable[[Maker], Maker]:
    def enter(maker: Maker) -> Maker:
        RECIPES.update(dict.fromkeys(ops, maker))
        return maker

    return enter


# values and their memory

F32, F16, BF16, I32 = DType.F32, DType.F16, DType.BF16, DType.I32
QUANTISED = (DType.Q8_0, DType.Q4_0, DType.Q4_K, DType.Q6_K)

sizes = st.integers(1, 6)
dtypes = st.sampled_from([F32, F32, F16, BF16])


def shape(draw: Draw, *fixed: int) -> tuple[int, int, int, int]:
    """Four axes, the last of them fixed."""
    b, a, n, m = (*(draw(sizes) for _ in range(4 - len(fixed))), *fixed)
    return b, a, n, m


def noise(draw: Draw, *ns: int) -> np.ndarray:
    rng = np.random.default_rng(draw(st.integers(0, 1 << 16)))
    return rng.standard_normal(ns).astype(np.float32)


def chosen(draw: Draw, bound: int, *ns: int) -> np.ndarray:
    """Indices below the bound."""
    rng = np.random.default_rng(draw(st.integers(0, 1 << 16)))
    return rng.integers(0, bound, ns).astype(np.int32)


def distinct(draw: Draw, bound: int, n: int, dtype: Any = np.int32) -> np.ndarray:
    rng = np.random.default_rng(draw(st.integers(0, 1 << 16)))
    return rng.permutation(bound)[:n].astype(dtype)


def in_steps(draw: Draw, *ns: int) -> np.ndarray:
    """Activations that the rounding for every weight format preserves.

    ggml rounds them to blocks of 32 or 256 steps of max / 127, or to halves of 11 or 8 bits. Here
    they are whole numbers up to 127, which each 32 of them reach, times a power of two.
    """
    rng = np.random.default_rng(draw(st.integers(0, 1 << 16)))
    whole = rng.integers(-127, 128, ns)
    whole[..., ::32] = 127 * rng.choice([-1, 1], whole[..., ::32].shape)
    return (whole / 64).astype(np.float32)


def stored(values: np.ndarray, dtype: DType) -> Value:
    if dtype.numpy is None:
        return blocks(dtype, values)
    return values.astype(dtype.numpy)


def operand(draw: Draw, values: np.ndarray, dtype: DType = F32) -> tuple[Value, Lay]:
    """An input, and the function that makes a tensor of the values from it."""
    movable = range(1 if dtype.is_quantized else 0, 4)
    kind = draw(st.sampled_from(["whole", "permuted", "window", "permuted window"]))
    order = [0, 1, 2, 3]
    if "permuted" in kind:
        moved = draw(st.permutations(movable))
        order = [*range(4 - len(moved)), *moved]
    inner = values.transpose([3 - order[3 - axis] for axis in range(4)])
    if "window" not in kind:
        return stored(np.ascontiguousarray(inner), dtype), lambda t: t.permute(*order)
    dim = draw(st.sampled_from(movable))
    lo, step = draw(st.integers(0, 2)), 1 if dim == 0 else draw(st.integers(1, 2))
    n = inner.shape[3 - dim]
    hi = lo + n * step
    outer_shape = list(inner.shape)
    outer_shape[3 - dim] = hi + draw(st.integers(0, 2))
    outer = np.full(outer_shape, 7, values.dtype)
    outer[(slice(None),) * (3 - dim) + (slice(lo, hi, step),)] = inner
    return stored(outer, dtype), lambda t: t.slice(dim, lo, hi, step).permute(*order)


def window(draw: Draw, t_shape: tuple[int, ...]) -> tuple[tuple[int, ...], Lay]:
    """The shape of an array, and a window of the wanted shape into a tensor of it."""
    dim, lo = draw(st.integers(0, 3)), draw(st.integers(0, 2))
    n = t_shape[3 - dim]
    outer = list(t_shape)
    outer[3 - dim] = lo + n + draw(st.integers(0, 2))
    return tuple(outer), lambda t: t.slice(dim, lo, lo + n)


# element by element


@recipe("add", "sub", "mul", "div")
def arithmetic(draw: Draw, op: str) -> Recipe:
    a = noise(draw, *shape(draw))
    small = [draw(st.sampled_from([m for m in range(1, n + 1) if n % m == 0])) for n in a.shape]
    b = noise(draw, *small)
    x, lay = operand(draw, a, draw(dtypes))
    y, lay_second = operand(draw, np.copysign(np.abs(b) + 0.5, b), draw(dtypes))
    return Recipe((x, y), lambda x, y: getattr(lay(x), op)(lay_second(y)))


@recipe(*"neg exp tanh sigmoid relu gelu gelu_erf quick_gelu silu softplus abs sqr sin cos".split())
def unary(draw: Draw, op: str) -> Recipe:
    x, lay = operand(draw, noise(draw, *shape(draw)) * 2, draw(dtypes))
    return Recipe((x,), lambda x: getattr(lay(x), op)())


@recipe("floor", "ceil", "round")
def whole(draw: Draw, op: str) -> Recipe:
    halves = np.round(noise(draw, *shape(draw)) * 6) / 2
    x, lay = operand(draw, halves, draw(dtypes))
    return Recipe((x,), lambda x: getattr(lay(x), op)(), exact=True)


@recipe("sqrt", "log")
def of_positive(draw: Draw, op: str) -> Recipe:
    x, lay = operand(draw, np.abs(noise(draw, *shape(draw))) + 0.1, draw(dtypes))
    return Recipe((x,), lambda x: getattr(lay(x), op)())


@recipe("clamp", "scale", "fill")
def with_numbers(draw: Draw, op: str) -> Recipe:
    x, lay = operand(draw, noise(draw, *shape(draw)), draw(dtypes))
    number = st.floats(-2, 2, width=32)
    args = sorted(draw(number) for _ in range(2 if op == "clamp" else 1))
    return Recipe((x,), lambda x: getattr(lay(x), op)(*args))


@recipe("gated_gelu", "gated_quick_gelu", "gated_silu", "gated_relu", "silu_alpha_limit")
def gated(draw: Draw, op: str) -> Recipe:
    size, dtype = shape(draw), draw(dtypes)
    g, lay = operand(draw, noise(draw, *size) * 2, dtype)
    u, lay_up = operand(draw, noise(draw, *size) * 2, dtype)
    if op == "silu_alpha_limit":
        alpha, limit = draw(st.floats(0.5, 2)), draw(st.floats(0.5, 2))
        return Recipe((g, u), lambda g, u: lay(g).silu_alpha_limit(lay_up(u), alpha, limit))
    method = op.removeprefix("gated_")
    return Recipe((g, u), lambda g, u: getattr(lay(g), method)(lay_up(u)))


@recipe("cast")
def cast(draw: Draw, _: str) -> Recipe:
    source = draw(st.sampled_from([F32, F16, BF16, I32, *QUANTISED]))
    others = FLOATS | {I32} if source == F32 else FLOATS
    target = draw(st.sampled_from(sorted(others - {source})))
    values = noise(draw, *shape(draw, *[256] * source.is_quantized)) * 5
    x, lay = operand(draw, values, source)
    dense = target == I32  # which only contiguous tensors are converted to
    return Recipe(
        (x,), lambda x: (lay(x).contiguous() if dense else lay(x)).cast(target), exact=True
    )


# products


@recipe("mulmat")
def product(draw: Draw, _: str) -> Recipe:
    dtype = draw(st.sampled_from([F32, F16, BF16, *QUANTISED]))
    k = draw(st.integers(1, 40)) if dtype in FLOATS else 256 * draw(st.integers(1, 2))
    b, a, m = shape(draw, 1)[:3]
    n, r2, r3 = draw(st.integers(1, 20)), draw(st.integers(1, 3)), draw(st.integers(1, 2))
    w, lay = operand(draw, noise(draw, b, a, m, k), dtype)
    x, lay_x = operand(draw, in_steps(draw, b * r3, a * r2, n, k))
    full = draw(st.booleans())
    return Recipe(
        (w, x),
        lambda w, x: (lay(w).mulmat_full_prec if full else lay(w).mulmat)(lay_x(x)),
    )


@recipe("mulmat_id")
def expert_product(draw: Draw, _: str) -> Recipe:
    dtype = draw(st.sampled_from([F32, F16, BF16, *QUANTISED]))
    k = draw(st.integers(1, 40)) if dtype in FLOATS else 256
    experts, m, n, used = (draw(sizes) for _ in range(4))
    w, lay = operand(draw, noise(draw, 1, experts, m, k), dtype)
    inputs = draw(st.sampled_from([1, used]))
    x, lay_x = operand(draw, in_steps(draw, 1, n, inputs, k))
    ids, lay_ids = operand(draw, chosen(draw, experts, 1, 1, n, used), I32)
    return Recipe((w, x, ids), lambda w, x, ids: lay(w).mulmat_id(lay_x(x), lay_ids(ids)))


@recipe("add_id")
def expert_bias(draw: Draw, _: str) -> Recipe:
    experts, m, n, used = (draw(sizes) for _ in range(4))
    x, lay = operand(draw, noise(draw, 1, n, used, m), draw(dtypes))
    bias, lay_bias = operand(draw, noise(draw, 1, 1, experts, m), draw(dtypes))
    ids, lay_ids = operand(draw, chosen(draw, experts, 1, 1, n, used), I32)
    return Recipe((x, bias, ids), lambda x, b, i: lay(x).add_id(lay_bias(b), lay_ids(i)))


# along dim 0


@recipe("norm", "rms_norm", "l2_norm", "cumsum", "sum_rows", "mean")
def reduction(draw: Draw, op: str) -> Recipe:
    x, lay = operand(draw, noise(draw, *shape(draw, draw(st.integers(2, 70)))), draw(dtypes))
    method = "layer_norm" if op == "norm" else op
    eps = {"eps": 10.0 ** draw(st.integers(-6, -2))} if op.endswith("norm") else {}
    return Recipe((x,), lambda x: getattr(lay(x), method)(**eps))


def masked(draw: Draw, b: int, heads: int, n: int, m: int) -> np.ndarray:
    """[b or 1, heads or 1, ≥ n, m] of −inf and numbers; each row leaves one element."""
    size = (draw(st.sampled_from([1, b])), draw(st.sampled_from([1, heads])), n, m)
    mask = noise(draw, *size[:2], n + draw(st.integers(0, 2)), m)
    mask[mask < -0.5] = -np.inf
    mask[..., 0] = 0
    return mask.astype(np.float16).astype(np.float32)


@recipe("softmax")
def softmax(draw: Draw, _: str) -> Recipe:
    b, heads, n, m = shape(draw)
    scale = draw(st.sampled_from([0.25, 1.0, 1.7]))
    x, lay = operand(draw, noise(draw, b, heads, n, m) * 3)
    extras: dict[int, Value] = {}
    lays: dict[int, Lay] = {}
    if draw(st.booleans()):
        extras[0], lays[0] = operand(draw, masked(draw, b, heads, n, m), draw(dtypes))
    bias = draw(st.sampled_from([0.0, 3.0, 8.0])) if extras else 0.0
    if draw(st.booleans()):
        extras[1], lays[1] = noise(draw, heads), lambda t: t

    def build(x: Tensor, *given: Tensor) -> Tensor:
        laid = {i: lays[i](t) for i, t in zip(extras, given, strict=True)}
        return record(lay(x), "softmax", laid.get(0), laid.get(1), scale=scale, max_bias=bias)

    return Recipe((x, *extras.values()), build)


@recipe("flash_attention")
def attention(draw: Draw, _: str) -> Recipe:
    b, kv_heads, n, m = shape(draw)
    heads, d, dv = kv_heads * draw(st.integers(1, 3)), 8 * draw(sizes), 8 * draw(sizes)
    scale, softcap = draw(st.sampled_from([0.125, 0.3])), draw(st.sampled_from([0.0, 2.0]))
    dtype = draw(st.sampled_from([F32, F16]))
    q, lay_q = operand(draw, in_steps(draw, b, heads, n, d) / 2)
    k, lay_k = operand(draw, noise(draw, b, kv_heads, m, d), dtype)
    v, lay_v = operand(draw, noise(draw, b, kv_heads, m, dv), dtype)
    extras: dict[int, Value] = {}
    lays: dict[int, Lay] = {}
    if draw(st.booleans()):
        extras[0], lays[0] = operand(draw, masked(draw, b, heads, n, m), draw(dtypes))
    bias = draw(st.sampled_from([0.0, 3.0, 8.0])) if extras else 0.0
    if draw(st.booleans()):
        extras[1], lays[1] = noise(draw, heads), lambda t: t

    def build(q: Tensor, k: Tensor, v: Tensor, *given: Tensor) -> Tensor:
        laid = {i: lays[i](t) for i, t in zip(extras, given, strict=True)}
        rest = (lay_k(k), lay_v(v), laid.get(0), laid.get(1), None)
        options = {"scale": scale, "softcap": softcap, "max_bias": bias}
        return record(lay_q(q), "flash_attention", *rest, **options)

    return Recipe((q, k, v, *extras.values()), build)


@recipe("rope")
def rope(draw: Draw, _: str) -> Recipe:
    mode = draw(st.sampled_from(RopeType))
    multi = mode >= RopeType.MROPE
    dims = 2 * draw(st.integers(4 if multi else 1, 8))
    width = 2 * dims if mode is RopeType.VISION else dims + 2 * draw(st.integers(0, 2))
    b, n, heads = shape(draw, 1)[:3]
    x, lay = operand(draw, noise(draw, b, n, heads, width), draw(dtypes))
    positions = chosen(draw, 50, n * (4 if multi else 1))
    options: dict[str, Any] = {"type": mode}
    if multi:
        pairs = dims if mode is RopeType.VISION else dims // 2
        first = draw(st.integers(1, pairs - 2))
        second = draw(st.integers(1, pairs - 1 - first))
        third = draw(st.integers(1, pairs - first - second))
        options["sections"] = (first, second, third, pairs - first - second - third)
    scale = draw(st.sampled_from([1.0, 0.25]))
    if draw(st.booleans()):
        options |= {
            "original_context": draw(st.sampled_from([64, 512])),
            "ext_factor": draw(st.sampled_from([0.5, 1.0])),
            "attn_factor": draw(st.sampled_from([1.0, 1.2])),
            "beta_fast": 16.0,
            "beta_slow": 2.0,
        }
    values: tuple[Value, ...] = (x, positions)
    if draw(st.booleans()):  # of as many factors as ggml reads, also for elements left alone
        values += (np.abs(noise(draw, width // 2)) + 1,)
    base = draw(st.sampled_from([100.0, 10000.0]))

    def build(x: Tensor, p: Tensor, factors: Tensor | None = None) -> Tensor:
        return lay(x).rope(p, dims, base, scale, factors=factors, **options)

    return Recipe(values, build)


# moving elements

any_dtype = st.sampled_from([F32, F16, BF16, I32, DType.Q8_0, DType.Q4_0])


def movable(draw: Draw, dtypes: st.SearchStrategy = any_dtype) -> tuple[Value, Lay, Any]:
    dtype = draw(dtypes)
    size = shape(draw, *[32 * draw(st.integers(1, 2))] * dtype.is_quantized)
    return (*operand(draw, noise(draw, *size) * 9, dtype), (size, dtype))


@recipe("contiguous", "duplicate")
def copies(draw: Draw, op: str) -> Recipe:
    x, lay, (_, dtype) = movable(draw)
    again = op == "duplicate" and dtype.is_quantized  # which it takes contiguous alone
    return Recipe((x,), lambda x: record(lay(x).contiguous() if again else lay(x), op), True)


@recipe("reshape")
def reshape(draw: Draw, _: str) -> Recipe:
    x, lay, (size, _) = movable(draw)
    b, a, n, m = size
    target = draw(st.sampled_from([(m, -1), (m, n * a, b), (m, n, -1), (m * n, a * b)]))
    return Recipe((x,), lambda x: lay(x).reshape(*target), True)


@recipe("view")
def view(draw: Draw, _: str) -> Recipe:
    x, lay, (size, dtype) = movable(draw)
    cuts = []
    for dim in range(3, 0 if dtype.is_quantized else -1, -1):
        lo = draw(st.integers(0, size[3 - dim] - 1))
        hi = draw(st.integers(lo + 1, size[3 - dim]))
        cuts.append((dim, lo, hi, 1 if dim == 0 else draw(st.integers(1, 2))))

    def build(x: Tensor) -> Tensor:
        x = lay(x)
        for cut in cuts:
            x = x.slice(*cut)
        return x.contiguous()

    return Recipe((x,), build, True)


@recipe("permute")
def permute(draw: Draw, _: str) -> Recipe:
    x, lay, (_, dtype) = movable(draw)
    fixed = [0] if dtype.is_quantized else []
    order = [*fixed, *draw(st.permutations([d for d in range(4) if d not in fixed]))]
    return Recipe((x,), lambda x: lay(x).permute(*order).contiguous(), True)


@recipe("pad")
def pad(draw: Draw, _: str) -> Recipe:
    x, lay, _ = movable(draw, dtypes)
    amounts = [draw(st.integers(0, 3)) for _ in range(4)]
    return Recipe((x,), lambda x: lay(x).pad(*amounts), True)


numbers = st.sampled_from([F32, F16, BF16, I32])


@recipe("repeat")
def repeat(draw: Draw, _: str) -> Recipe:
    x, lay, (size, _) = movable(draw, numbers)
    target = [n * draw(st.integers(1, 3)) for n in size[::-1]]
    return Recipe((x,), lambda x: lay(x).repeat_4d(*target), True)


@recipe("concat")
def concat(draw: Draw, _: str) -> Recipe:
    x, lay, (size, dtype) = movable(draw, numbers)
    dim = draw(st.integers(0, 3))
    other = list(size)
    other[3 - dim] = draw(sizes)
    y, lay_y = operand(draw, noise(draw, *other) * 9, dtype)
    return Recipe((x, y), lambda x, y: lay(x).concat(lay_y(y), dim), True)


@recipe("copy")
def copy(draw: Draw, _: str) -> Recipe:
    dtype = draw(st.sampled_from([F32, F16, BF16, I32, DType.Q8_0]))
    same = I32 if dtype == I32 else draw(dtypes)
    size = shape(draw, *[32] * dtype.is_quantized)
    x, lay = operand(draw, noise(draw, *size) * 9, same)
    if dtype.is_quantized:
        y, lay_y = stored(np.zeros(size), dtype), lambda t: t
    else:
        outer, lay_y = window(draw, size)
        y = stored(np.zeros(outer), dtype)

    def build(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        memory = y.duplicate()
        # ggml copies between layouts only dense rows of halves
        return lay(x).contiguous().copy(lay_y(memory)).contiguous(), memory

    return Recipe((x, y), build, exact=not dtype.is_quantized)


@recipe("set", "set_inplace")
def put(draw: Draw, op: str) -> Recipe:
    size = shape(draw)
    outer, _ = window(draw, size)
    corner = [draw(st.integers(0, o - n)) for n, o in zip(size, outer, strict=True)]
    src, lay = operand(draw, noise(draw, *size), draw(dtypes))
    _, a, n, m = outer
    nb = (4 * m, 4 * m * n, 4 * m * n * a)
    offset = corner[3] * 4 + sum(c * s for c, s in zip(corner[2::-1], nb, strict=True))

    def build(x: Tensor, src: Tensor) -> tuple[Tensor, ...]:
        if op == "set":
            return x.set(lay(src), offset, *nb), x
        memory = x.duplicate()
        return memory.set_inplace(lay(src), *nb, offset), memory

    return Recipe((noise(draw, *outer), src), build, True)


# by index


@recipe("rows")
def rows(draw: Draw, _: str) -> Recipe:
    dtype = draw(st.sampled_from([F32, F16, BF16, I32, *QUANTISED]))
    b, a, n, d = shape(draw, *[256] * dtype.is_quantized)
    table, lay = operand(draw, noise(draw, b, a, n, d) * 9, dtype)
    ids, lay_ids = operand(draw, chosen(draw, n, 1, b, a, draw(sizes)), I32)
    return Recipe((table, ids), lambda t, i: lay(t).rows(lay_ids(i)), True)


@recipe("set_rows")
def set_rows(draw: Draw, _: str) -> Recipe:
    dtype = draw(st.sampled_from([F32, F16, BF16, DType.Q8_0]))
    b, a, n, d = shape(draw, *[32] * dtype.is_quantized)
    m = draw(st.integers(1, n))
    src, lay = operand(draw, noise(draw, b, a, m, d), draw(dtypes))
    ids = distinct(draw, n, m, draw(st.sampled_from([np.int32, np.int64])))
    dst = stored(noise(draw, b, a, n, d), dtype)

    def build(dst: Tensor, src: Tensor, ids: Tensor) -> tuple[Tensor, ...]:
        memory = dst.duplicate()
        return memory.set_rows(lay(src), ids), memory

    return Recipe((dst, src, ids), build, exact=not dtype.is_quantized)


@recipe("argsort", "argmax")
def order(draw: Draw, op: str) -> Recipe:
    size = shape(draw)
    if op == "argmax":
        size = (1, 1, *size[2:])
    x, lay = operand(draw, distinct(draw, math.prod(size), math.prod(size)).reshape(size))
    k = draw(st.integers(1, size[-1]))
    if op == "argsort" and draw(st.booleans()):
        return Recipe((x,), lambda x: lay(x).top_k(k).contiguous(), True)
    return Recipe((x,), lambda x: getattr(lay(x), op)(), True)


@recipe("diag", "tri")
def square(draw: Draw, op: str) -> Recipe:
    b, a, n, _ = shape(draw, 1)
    x, lay = operand(draw, noise(draw, b, a, n if op == "tri" else 1, n), draw(dtypes))
    args = [draw(st.integers(0, 3))] if op == "tri" else []
    return Recipe((x,), lambda x: getattr(lay(x), op)(*args), True)


@recipe("arange")
def arange(draw: Draw, _: str) -> Recipe:
    start, step = draw(st.integers(-20, 20)) / 4, draw(st.sampled_from([-1.5, -0.25, 0.5, 1, 3]))
    stop = start + step * draw(st.integers(1, 20)) - step / 2 * draw(st.integers(0, 1))

    def build(ctx: Context) -> Tensor:
        return ctx.arange(start, stop, step)

    return Recipe((), build)


# recurrent layers


@recipe("ssm_conv")
def ssm_conv(draw: Draw, _: str) -> Recipe:
    sequences, channels, n, k = (draw(sizes) for _ in range(4))
    x, lay = operand(draw, noise(draw, 1, sequences, channels, k - 1 + n), draw(dtypes))
    kernel, lay_kernel = operand(draw, noise(draw, 1, 1, channels, k), draw(dtypes))
    return Recipe((x, kernel), lambda x, kernel: lay(x).ssm_conv(lay_kernel(kernel)))


@recipe("ssm_scan")
def ssm_scan(draw: Draw, _: str) -> Recipe:
    sequences, n, d, groups = (draw(sizes) for _ in range(4))
    heads, state = groups * draw(st.integers(1, 2)), 8 * draw(st.integers(1, 3))
    slots = sequences + draw(st.integers(0, 2))
    made = [
        operand(draw, noise(draw, *size), draw(dtypes))
        for size in (
            (slots, heads, d, state),
            (sequences, n, heads, d),
            (1, sequences, n, heads),
            (1, 1, heads, draw(st.sampled_from([1, state]))),
            (sequences, n, groups, state),
            (sequences, n, groups, state),
        )
    ]
    values, lays = zip(*made, strict=True)

    def build(*x: Tensor) -> Tensor:
        s, u, dt, a, b, c = (lay(t) for lay, t in zip(lays, x[:6], strict=True))
        # decay alone, or the states grow out of bounds
        return s.ssm_scan(u, dt, a.sqr().neg(), b, c, x[6])

    return Recipe((*values, distinct(draw, slots, sequences)), build)


@recipe("gated_delta_net")
def gated_delta_net(draw: Draw, _: str) -> Recipe:
    sequences, n, d, groups = (draw(sizes) for _ in range(4))
    heads = groups * draw(st.integers(1, 2))
    made = [
        operand(draw, noise(draw, *size), draw(dtypes))
        for size in (
            (sequences, n, groups, d),
            (sequences, n, groups, d),
            (sequences, n, heads, d),
            (sequences, n, heads, draw(st.sampled_from([1, d]))),
            (sequences, n, heads, 1),
            (sequences, heads, d, d),
        )
    ]
    values, lays = zip(*made, strict=True)

    def build(*x: Tensor) -> Tensor:
        q, k, v, decay, beta, states = (lay(t) for lay, t in zip(lays, x, strict=True))
        # unit keys, states that fade and beta below 1, or they grow out of bounds
        keys = k.contiguous().l2_norm()
        return q.gated_delta_net(keys, v, decay.sqr().neg(), beta.sigmoid(), states)

    return Recipe(values, build)


@recipe("rwkv_wkv7")
def rwkv_wkv7(draw: Draw, _: str) -> Recipe:
    shape = (draw(st.integers(1, 2)), draw(st.integers(1, 3)), draw(st.integers(1, 2)), 64)
    sizes_of_states = (shape[0], shape[2], 64, 64)
    made = [
        operand(draw, noise(draw, *size), draw(dtypes)) for size in [shape] * 6 + [sizes_of_states]
    ]
    values, lays = zip(*made, strict=True)

    def build(*x: Tensor) -> Tensor:
        r, decay, k, v, a, b, states = (lay(t) for lay, t in zip(lays, x, strict=True))
        # states that fade and unit vectors, or they grow out of bounds
        a, b = (t.contiguous().l2_norm() for t in (a, b))
        return r.rwkv_wkv7(decay.sigmoid(), k, v, a, b, states)

    return Recipe(values, build)


@recipe("solve_tri")
def solve_tri(draw: Draw, _: str) -> Recipe:
    b, a, n, k = shape(draw)
    # a dominant diagonal, or errors grow from row to row
    matrix = noise(draw, b, a, n, n) / 4 + 2 * np.eye(n, dtype=np.float32)
    m, lay = operand(draw, matrix, draw(dtypes))
    left = draw(st.booleans())
    y, lay_y = operand(draw, noise(draw, b, a, *((n, k) if left else (k, n))), draw(dtypes))
    lower, unit = draw(st.booleans()), draw(st.booleans())
    return Recipe((m, y), lambda m, y: lay(m).solve_tri(lay_y(y), lower, left, unit))


# images


@recipe("conv_2d", "im2col", "conv_3d")
def convolution(draw: Draw, op: str) -> Recipe:
    solid = op == "conv_3d"
    axes = 3 if solid else 2
    channels, out, batch = draw(sizes), draw(sizes), draw(st.integers(1, 2))
    size = [draw(st.integers(5, 9)) for _ in range(axes)]
    kernel_size = [draw(st.integers(1, 3)) for _ in range(axes)]
    groups, images = (
        ((out * channels,), (batch * channels,)) if solid else ((out, channels), (batch, channels))
    )
    w, lay = operand(draw, noise(draw, *groups, *kernel_size), draw(dtypes))
    x, lay_x = operand(draw, noise(draw, *images, *size), draw(dtypes))
    stride = [draw(st.integers(1, 3)) for _ in range(axes)]
    padding = [draw(st.integers(0, 2)) for _ in range(axes)]
    dilation = [draw(st.integers(1, 2)) for _ in range(axes)]
    args = (*[channels] * solid, *stride, *padding, *dilation)
    return Recipe((w, x), lambda w, x: getattr(lay(w), op)(lay_x(x), *args))


@recipe("conv_1d", "depthwise_conv_1d", "depthwise_conv_2d")
def thin_convolution(draw: Draw, op: str) -> Recipe:
    flat, channels = op.endswith("1d"), draw(sizes)
    axes = 1 if flat else 2
    kernel = (draw(sizes), channels) if op == "conv_1d" else (channels, 1)
    size = [draw(st.integers(5, 9)) for _ in range(axes)]
    kernel_size = [draw(st.integers(1, 3)) for _ in range(axes)]
    ahead = (1,) if flat else ()
    w, lay = operand(draw, noise(draw, *ahead, *kernel, *kernel_size), draw(dtypes))
    batch = draw(st.integers(1, 2))
    x, lay_x = operand(draw, noise(draw, *ahead, batch, channels, *size), draw(dtypes))
    places = [draw(st.integers(*ends)) for ends in ((1, 3), (0, 2), (1, 2)) for _ in range(axes)]
    return Recipe((w, x), lambda w, x: getattr(lay(w), op)(lay_x(x), *places))


@recipe("conv_transpose_1d", "conv_transpose_2d")
def spreading(draw: Draw, op: str) -> Recipe:
    axes, stride = 1 if op.endswith("1d") else 2, draw(st.integers(1, 4))
    channels, ahead = draw(sizes), (1,) * (2 - axes)
    ks = [draw(st.integers(1, 4)) for _ in range(axes)]
    w, lay = operand(draw, noise(draw, *ahead, channels, draw(sizes), *ks), draw(dtypes))
    size = [draw(sizes) for _ in range(axes)]
    x, lay_x = operand(draw, noise(draw, *ahead, 1, channels, *size), draw(dtypes))
    return Recipe((w, x), lambda w, x: getattr(lay(w), op)(lay_x(x), stride))


@recipe("group_norm")
def group_norm(draw: Draw, _: str) -> Recipe:
    groups, each = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    size = draw(st.integers(1, 2)), groups * each, draw(sizes), draw(st.integers(2, 6))
    x, lay = operand(draw, noise(draw, *size), draw(dtypes))
    eps = 10.0 ** draw(st.integers(-6, -2))
    return Recipe((x,), lambda x: lay(x).group_norm(groups, eps))


@recipe("window_partition", "window_unpartition")
def windows(draw: Draw, op: str) -> Recipe:
    height, width, c, side = (draw(st.integers(1, 7)) for _ in range(4))
    if op == "window_partition":
        x, lay = operand(draw, noise(draw, 1, height, width, c))
        return Recipe((x,), lambda x: lay(x).window_partition(side), exact=True)
    count = -(-height // side) * -(-width // side)
    x, lay = operand(draw, noise(draw, count, side, side, c))
    return Recipe((x,), lambda x: lay(x).window_unpartition(width, height), exact=True)


@recipe("relative_positions")
def relative_positions(draw: Draw, _: str) -> Recipe:
    x, lay = operand(draw, noise(draw, 1, 1, 2 * draw(sizes) - 1, draw(sizes)), F16)
    return Recipe((x,), lambda x: lay(x).relative_positions(), exact=True)


@recipe("add_relative_positions")
def add_relative_positions(draw: Draw, _: str) -> Recipe:
    heads, rows, columns, side = (draw(sizes) for _ in range(4))
    x, lay = operand(draw, noise(draw, 1, heads, rows * columns, side * side), draw(dtypes))
    w, lay_w = operand(draw, noise(draw, heads, rows, columns, side), draw(dtypes))
    h, lay_h = operand(draw, noise(draw, heads, rows, columns, side), draw(dtypes))
    return Recipe((x, w, h), lambda x, w, h: lay(x).add_relative_positions(lay_w(w), lay_h(h)))


@recipe("roll")
def roll(draw: Draw, _: str) -> Recipe:
    x, lay = operand(draw, noise(draw, *shape(draw)))
    shifts = [draw(st.integers(-9, 9)) for _ in range(draw(st.integers(1, 4)))]
    return Recipe((x,), lambda x: lay(x).roll(*shifts), exact=True)


@recipe("pad_reflect")
def pad_reflect(draw: Draw, _: str) -> Recipe:
    n = draw(st.integers(1, 9))
    x, lay = operand(draw, noise(draw, *shape(draw, n)))
    before, after = (draw(st.integers(0, n - 1)) for _ in range(2))
    return Recipe((x,), lambda x: lay(x).pad_reflect(before, after), exact=True)


@recipe("avg_pool_2d")
def pool(draw: Draw, _: str) -> Recipe:
    size = shape(draw, draw(st.integers(3, 9)), draw(st.integers(3, 9)))
    x, lay = operand(draw, noise(draw, *size), draw(dtypes))
    k, s = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    p = draw(st.sampled_from([0, 0.5, 1]))
    return Recipe((x,), lambda x: lay(x).avg_pool_2d(k, s, p))


@recipe("interpolate")
def interpolate(draw: Draw, _: str) -> Recipe:
    b, a, height, width = shape(draw)
    # Sources of at most 13 pixels a side: nearest pixels are found by dividing float32, which for
    # larger ones may give the neighbour, such as pixel 6 for 7 where 14 become 2.
    x, lay = operand(draw, noise(draw, b, a, height, width), draw(dtypes))
    mode = draw(st.sampled_from(SamplingMode))
    w, h = draw(st.integers(1, 15)), draw(st.integers(1, 15))
    return Recipe((x,), lambda x: lay(x).interpolate((w, h, a, b), mode))
