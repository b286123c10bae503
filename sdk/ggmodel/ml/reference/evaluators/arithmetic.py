"""Arithmetic, reductions, matrix products, attention and recurrent layers.

Reductions are along the last axis, which is dim 0. Unlike in ggml, activations are not rounded to
the weight's format.
"""

from __future__ import annotations

import math

import numpy as np

from ...ops.mixing import ORDER_ROW, RopeType
from ..elements import computes, in_range, tiled

_erf = np.vectorize(math.erf, [np.float64])  # which numpy lacks


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def gelu(x: np.ndarray) -> np.ndarray:
    """Hendrycks and Gimpel's approximation with tanh (arXiv 1606.08415)."""
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def quick_gelu(x: np.ndarray) -> np.ndarray:
    return x * sigmoid(1.702 * x)


def silu(x: np.ndarray) -> np.ndarray:
    return x * sigmoid(x)


def relu(x: np.ndarray) -> np.ndarray:
    return np.maximum(x, 0)


_PAIRS = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide}
for _name, _function in _PAIRS.items():
    computes(_name)(lambda a, b, f=_function: f(a, tiled(b, a.shape)))

for _name, _function in {
    "neg": np.negative,
    "exp": np.exp,
    "tanh": np.tanh,
    "sigmoid": sigmoid,
    "relu": relu,
    "gelu": gelu,
    "gelu_erf": lambda x: 0.5 * x * (1 + _erf(x / math.sqrt(2))),
    "quick_gelu": quick_gelu,
    "silu": silu,
    "softplus": lambda x: np.logaddexp(0, x),
    "abs": np.abs,
    "floor": np.floor,
    "ceil": np.ceil,
    "round": lambda x: np.copysign(np.floor(np.abs(x) + 0.5), x),  # halves away from zero
    "sqr": np.square,
    "sqrt": np.sqrt,
    "sin": np.sin,
    "cos": np.cos,
    "log": np.log,
}.items():
    computes(_name)(_function)

for _function in (gelu, quick_gelu, silu, relu):
    computes(f"gated_{_function.__name__}")(lambda gate, up, f=_function: f(gate) * up)


@computes("silu_alpha_limit")
def silu_alpha_limit(gate: np.ndarray, up: np.ndarray, alpha: float, limit: float) -> np.ndarray:
    """As in gpt-oss: only the upper side of the gate is limited."""
    gate = np.minimum(gate, limit)
    return gate * sigmoid(alpha * gate) * (np.clip(up, -limit, limit) + 1)


def _mean(x: np.ndarray) -> np.ndarray:
    return x.mean(-1, keepdims=True)


@computes("norm")
def norm(x: np.ndarray, eps: float) -> np.ndarray:
    centred = x - _mean(x)
    return centred / np.sqrt(_mean(centred**2) + eps)


for _name, _function in {
    "scale": lambda x, s: x * s,
    "clamp": lambda x, lo, hi: np.minimum(np.maximum(x, lo), hi),
    "fill": lambda x, value: np.full(x.shape, value),
    "cast": lambda x, **_: x,  # rounded, or its fraction dropped, as every result is
    "rms_norm": lambda x, eps: x / np.sqrt(_mean(x**2) + eps),
    "l2_norm": lambda x, eps: x / np.maximum(np.sqrt((x**2).sum(-1, keepdims=True)), eps),
    "cumsum": lambda x: x.cumsum(-1),
    "sum_rows": lambda x: x.sum(-1, keepdims=True),
    "mean": _mean,
}.items():
    computes(_name)(_function)


def alibi_slopes(heads: int, max_bias: float) -> np.ndarray:
    """Slopes that multiply the mask of each head, float64 [heads]; ones for a `max_bias` of 0.

    A power of two heads has 2^(−max_bias · i/heads), i from 1 on. Heads beyond the largest such
    number have every other slope of twice that number.
    """
    if not max_bias:
        return np.ones(heads)
    below = 1 << (heads.bit_length() - 1)
    usual = np.arange(1, below + 1) / below
    between = np.arange(1, 2 * (heads - below), 2) / (2 * below)
    return 2.0 ** (-max_bias * np.concatenate([usual, between]))


@computes("softmax")
def softmax(
    x: np.ndarray,
    mask: np.ndarray | None,
    sinks: np.ndarray | None,
    scale: float = 1.0,
    max_bias: float = 0.0,
) -> np.ndarray:
    """softmax(scale · x + slopes · mask), with an extra score a head for sinks.

    x [b, heads, n, m], mask [b', heads', ≥ n, m] repeated over both, sinks [1, 1, 1, heads].
    """
    scores = scale * x
    if mask is not None:
        seen = tiled(mask[:, :, : x.shape[2]], x.shape)
        scores = scores + seen * alibi_slopes(x.shape[1], max_bias)[:, None, None]
    top = scores.max(-1, keepdims=True)
    sink = None if sinks is None else sinks.reshape(-1, 1, 1)
    if sink is not None:
        top = np.maximum(top, sink)
    weights = np.exp(scores - top)
    total = weights.sum(-1, keepdims=True)
    return weights / (total if sink is None else total + np.exp(sink - top))


@computes("mulmat")
def mulmat(w: np.ndarray, x: np.ndarray, full_precision: bool = False) -> np.ndarray:
    """w [b3, b2, m, k], x [c3, c2, n, k] → [c3, c2, n, m]; each matrix of w serves c2/b2
    neighbours of x, and c3/b3 of those groups."""
    b3, b2, m, k = w.shape
    c3, c2, n, _ = x.shape
    if not b3 * b2:
        return np.zeros((c3, c2, n, m))
    grouped = x.reshape(b3, c3 // b3, b2, c2 // b2, n, k)
    product = grouped @ w.swapaxes(2, 3)[:, None, :, None]
    return product.reshape(c3, c2, n, m)


@computes("mulmat_id")
def mulmat_id(w: np.ndarray, x: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """w [1, experts, m, k], x [1, n, 1 or used, k], ids [1, 1, n, used] → [1, n, used, m]."""
    weights, inputs = w[0], x[0]
    choice = in_range(ids[0, 0], len(weights))
    out = np.zeros((*choice.shape, weights.shape[1]))
    for expert in np.unique(choice):
        token, place = np.nonzero(choice == expert)
        out[token, place] = inputs[token, place % inputs.shape[1]] @ weights[expert].T
    return out[None]


@computes("add_id")
def add_id(x: np.ndarray, bias: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """x [1, n, used, m], bias [1, 1, experts, m], ids [1, 1, n, used]."""
    return x + bias[0, 0][in_range(ids[0, 0], bias.shape[2])]


@computes("rope")
def rope(
    x: np.ndarray,
    positions: np.ndarray,
    factors: np.ndarray | None,
    *,
    dims: int,
    mode: RopeType,
    sections: tuple[int, ...],
    base: float,
    scale: float,
    original_context: int,
    ext_factor: float,
    attn_factor: float,
    beta_fast: float,
    beta_slow: float,
) -> np.ndarray:
    """Rotates pairs of x [b, n, heads, d] by positions [1, 1, 1, n], or 4 · n with sections.

    Pair i turns by position · base^(−2i/dims) (arXiv 2104.09864), divided by its factor. With
    sections runs of pairs, or pairs in turn, have positions of their own; in the vision type each
    run begins anew with the fastest frequency, and the pairs span the whole width.
    """
    pairs = np.arange(dims if mode is RopeType.VISION else dims // 2)
    exponents = pairs
    position = positions.reshape(-1, x.shape[1])  # [1 or 4, n]
    if sections:
        ends = np.cumsum(sections)
        place = pairs % ends[-1]
        section = np.searchsorted(ends, place, side="right")
        if mode is RopeType.IMROPE:
            turn = place % 3
            section = np.where(place < 3 * np.array(sections)[turn], turn, 3)
        position = position[section]
        if mode is RopeType.VISION:
            exponents = place - (ends - sections)[section]
    angles = position.T * base ** (-2.0 * exponents / dims)  # [n, pairs]
    if factors is not None:
        angles = angles / factors[0, 0, 0, pairs]
    magnitude = attn_factor
    if ext_factor:
        low, high = yarn_range(dims, base, original_context, beta_fast, beta_slow)
        keep = ext_factor * (1 - np.clip((pairs - low) / max(0.001, high - low), 0, 1))
        angles = angles * (scale * (1 - keep) + keep)
        magnitude *= 1 - 0.1 * math.log(scale)
    else:
        angles = angles * scale
    cos, sin = (magnitude * f(angles)[:, None] for f in (np.cos, np.sin))  # [n, 1, pairs]
    first = 2 * pairs if mode is RopeType.NORM else pairs
    second = first + (1 if mode is RopeType.NORM else len(pairs))
    out = x.copy()
    out[..., first] = x[..., first] * cos - x[..., second] * sin
    out[..., second] = x[..., first] * sin + x[..., second] * cos
    return out


def yarn_range(
    dims: int, base: float, context: int, beta_fast: float, beta_slow: float
) -> tuple[float, float]:
    """The pairs between which YaRN blends from keeping frequencies to scaling them: they turn
    `beta_fast` and `beta_slow` times in the original context (arXiv 2309.00071, appendix A.2)."""

    def pair(turns: float) -> float:
        ratio = context / (turns * 2 * math.pi)
        return dims * math.log(ratio) / (2 * math.log(base)) if ratio > 0 else -math.inf

    low, high = pair(beta_fast), pair(beta_slow)
    low = math.floor(low) if math.isfinite(low) else low
    high = math.ceil(high) if math.isfinite(high) else high
    return max(0.0, low), min(dims - 1.0, high)


@computes("flash_attention")
def flash_attention(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    mask: np.ndarray | None,
    sinks: np.ndarray | None,
    bias: np.ndarray | None,
    scale: float,
    softcap: float,
    max_bias: float = 0.0,
) -> np.ndarray:
    """softmax(scale · q kᵀ + slopes · mask) v, scores s as softcap · tanh(s / softcap) if that
    is not 0.

    q [b, heads, n, d], k [b', kv heads, m, d], v [b', kv heads, m, dv] → [b, n, heads, dv]. An
    order, int32 [1, 1, 1, …], becomes a mask. bias [1, heads', n, m'] is of the first m' keys. A
    fully masked query gives zeros, as in ggml; the formula has no value there.
    """
    for axis in (0, 1):
        repeats = q.shape[axis] // k.shape[axis]
        k, v = np.repeat(k, repeats, axis), np.repeat(v, repeats, axis)
    scores = scale * (q @ k.swapaxes(2, 3))
    if softcap:
        scores = softcap * np.tanh(scores / softcap)
    if mask is not None and mask.dtype == np.int32:
        mask = _mask_of(mask.reshape(-1), q.shape[2], k.shape[2], max_bias > 0)
    if bias is not None:
        added = np.full((*bias.shape[:3], k.shape[2]), -np.inf, np.float32)
        added[..., : bias.shape[3]] = bias
        scores = scores + tiled(added, scores.shape)
    weights = softmax(scores, mask, sinks, 1.0, max_bias)
    if mask is not None:
        blind = (mask[:, :, : q.shape[2]] == -np.inf).all(-1, keepdims=True)
        weights[tiled(blind, (*weights.shape[:3], 1))[..., 0]] = 0
    return (weights @ v).transpose(0, 2, 1, 3)


def _mask_of(order: np.ndarray, n: int, m: int, distances: bool) -> np.ndarray:
    """The mask [1, 1, n, m] that an order says: 0, or with `distances` minus the distance."""
    mask = np.full((1, 1, n, m), -np.inf, np.float32)
    rows, lists = order[: ORDER_ROW * n].reshape(n, ORDER_ROW), order[ORDER_ROW * n :]
    for i, (start, length, base, first, end) in enumerate(rows.tolist()):
        seen = np.arange(max(first, base), min(end, base + length))
        cells = lists[start + seen - base]
        there = cells >= 0
        mask[0, 0, i, cells[there]] = (seen[there] - (end - 1)) * distances
    return mask


@computes("ssm_conv")
def ssm_conv(x: np.ndarray, kernel: np.ndarray) -> np.ndarray:
    """x [1, sequences, d, k − 1 + n], kernel [1, 1, d, k] → [1, sequences, n, d]."""
    k = kernel.shape[3]
    n = x.shape[3] - k + 1
    windows = x[..., np.arange(n)[:, None] + np.arange(k)]  # [1, sequences, d, n, k]
    return (windows * kernel[:, :, :, None]).sum(-1).swapaxes(2, 3)


@computes("ssm_scan")
def ssm_scan(
    states: np.ndarray,
    x: np.ndarray,
    dt: np.ndarray,
    A: np.ndarray,
    B: np.ndarray,
    C: np.ndarray,
    ids: np.ndarray,
) -> np.ndarray:
    """The selective scan of Mamba (arXiv 2312.00752, 2405.21060): y and the last states, flat.

    states [slots, heads, d, state], x [sequences, n, heads, d], dt [1, sequences, n, heads],
    A [1, 1, heads, 1 or state], B and C [sequences, n, groups, state], ids [1, 1, 1, sequences].
    """
    state = states[in_range(ids[0, 0, 0], len(states))]  # [sequences, heads, d, state]
    steps = np.logaddexp(0, dt[0])[..., None, None]  # [sequences, n, heads, 1, 1]
    shared = x.shape[2] // B.shape[2]
    B, C = (np.repeat(m, shared, 2)[:, :, :, None] for m in (B, C))  # [sequences, n, heads, 1, …]
    y = np.empty_like(x)
    for i in range(x.shape[1]):
        t = steps[:, i]
        state = state * np.exp(t * A[0, 0, :, None]) + t * x[:, i, :, :, None] * B[:, i]
        y[:, i] = (state * C[:, i]).sum(-1)
    return np.concatenate([y.reshape(-1), state.reshape(-1)])[None, None, None]


@computes("gated_delta_net")
def gated_delta_net(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    decay: np.ndarray,
    beta: np.ndarray,
    states: np.ndarray,
) -> np.ndarray:
    """The gated delta rule (arXiv 2412.06464), token by token: y and the last states, in rows.

    q and k [sequences, n, groups, d], v [sequences, n, heads, d], decay [sequences, n, heads, 1 or
    d], beta [sequences, n, heads, 1], states [sequences, heads, values, keys].
    """
    _, n, heads, d = v.shape
    q, k = (np.tile(x, (1, 1, heads // x.shape[2], 1)) for x in (q, k))
    y = np.empty_like(v)
    for i in range(n):
        states = states * np.exp(decay[:, i, :, None])
        recalled = (states * k[:, i, :, None]).sum(-1)
        states = states + (beta[:, i] * (v[:, i] - recalled))[..., None] * k[:, i, :, None]
        y[:, i] = (states * q[:, i, :, None]).sum(-1) / np.sqrt(d)
    return np.concatenate([y.reshape(-1), states.reshape(-1)]).reshape(1, 1, -1, d * heads)


@computes("rwkv_wkv7")
def rwkv_wkv7(
    r: np.ndarray,
    decay: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    a: np.ndarray,
    b: np.ndarray,
    states: np.ndarray,
) -> np.ndarray:
    """RWKV-7's delta rule (arXiv 2503.14456), token by token: y and the last states, in rows.

    All [sequences, n, heads, d], but states [sequences, heads, values, keys].
    """
    y = np.empty_like(v)
    for i in range(r.shape[1]):
        moved = (states * a[:, i, :, None]).sum(-1, keepdims=True) * b[:, i, :, None]
        states = states * decay[:, i, :, None] + moved + v[:, i, ..., None] * k[:, i, :, None]
        y[:, i] = (states * r[:, i, :, None]).sum(-1)
    rows = np.concatenate([y.reshape(-1), states.reshape(-1)])
    return rows.reshape(1, 1, -1, r.shape[2] * r.shape[3])


@computes("solve_tri")
def solve_tri(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Forward substitution: the lower triangle of a [b3, b2, n, n], b [b3, b2, n, k]."""
    x = np.zeros_like(b)
    for i in range(a.shape[2]):
        solved = (a[:, :, i, :i, None] * x[:, :, :i]).sum(2)
        x[:, :, i] = (b[:, :, i] - solved) / a[:, :, i, i, None]
    return x
