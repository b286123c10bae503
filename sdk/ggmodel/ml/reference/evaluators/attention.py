"""Rotary positions and attention."""

from __future__ import annotations

import math

import numpy as np

from ...ops.attention import Part, RopeType
from .reductions import softmax
from .table import computes, tiled


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
    scale: float,
    softcap: float,
    parts: tuple[Part, ...] = (),
) -> np.ndarray:
    """softmax(scale · q kᵀ + mask) v, scores s as softcap · tanh(s / softcap) if that is not 0.

    q [b, heads, n, d], k [b', kv heads, m, d], v [b', kv heads, m, dv] → [b, n, heads, dv].
    A fully masked query gives zeros, as in ggml; the formula has no value there.
    """
    if parts:
        assert mask is not None
        done, masks = [], mask.reshape(-1)
        for part in parts:
            rows, cells = (
                slice(part.row, part.row + part.rows),
                slice(part.begin, part.begin + part.cells),
            )
            size = part.rows * part.cells
            own, masks = masks[:size].reshape(1, 1, part.rows, part.cells), masks[size:]
            kv = k[:, :, cells], v[:, :, cells]
            done.append(flash_attention(q[:, :, rows], *kv, own, sinks, scale, softcap))
        return np.concatenate(done, axis=1)
    for axis in (0, 1):
        repeats = q.shape[axis] // k.shape[axis]
        k, v = np.repeat(k, repeats, axis), np.repeat(v, repeats, axis)
    scores = scale * (q @ k.swapaxes(2, 3))
    if softcap:
        scores = softcap * np.tanh(scores / softcap)
    weights = softmax(scores, mask, sinks)
    if mask is not None:
        blind = (mask[:, :, : q.shape[2]] == -np.inf).all(-1, keepdims=True)
        weights[tiled(blind, (*weights.shape[:3], 1))[..., 0]] = 0
    return (weights @ v).transpose(0, 2, 1, 3)
