"""The fused attention in ggml: whole or part by part, over values that its kernel reads fast."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

from ...native import lib
from ..ops.attention import Part
from . import kernels
from .emitters import EMITTERS

TENSORS_A_PART = 9  # views of the operands, converted values, attention, and what joins results


def attention(c: Any, operands: tuple[Any, ...], attrs: dict[str, Any], widens: bool) -> Any:
    """The result's tensor, or NULL after a failed assert.

    Args:
        operands: query, key, value, mask, sinks.
        widens: values may be converted to F32 where that is faster.
    """
    parts: Sequence[Part] = attrs.get("parts", ())
    q, k, v, mask, sinks = operands
    if not parts:
        return _fused(c, q, k, v, mask, sinks, attrs, widens)
    joined: Any = None
    first = 0  # number of the mask's elements before these parts
    for alike in _alike(parts):
        n, (row, rows, begin, cells) = len(alike), alike[0]
        apart = alike[1].begin - begin if n > 1 else 0
        own_q = _part(c, q, row, rows, n, rows)
        own_k, own_v = (_part(c, x, begin, cells, n, apart) for x in (k, v))
        a_row = cells * mask.nb[0]
        size = rows * a_row
        own_mask = lib.ggml_view_4d(c, mask, cells, rows, 1, n, a_row, size, size, first)
        first += n * size
        t = _fused(c, own_q, own_k, own_v, own_mask, sinks, attrs, widens)
        if not t:
            return t
        dv, heads = t.ne[0], t.ne[1]
        t = lib.ggml_reshape_3d(c, t, dv, heads, rows * n)
        joined = lib.ggml_concat(c, joined, t, 2) if joined is not None else t
    return joined


def _fused(c: Any, q: Any, k: Any, v: Any, mask: Any, sinks: Any, attrs: Any, widens: bool) -> Any:
    few, half = q.ne[1] < kernels.QUERIES, k.type == v.type == lib.GGML_TYPE_F16
    if widens and few and half and kernels.f32_values_are_faster(k.ne[0], v.ne[0]):
        v = lib.ggml_cast(c, v, lib.GGML_TYPE_F32)
    return EMITTERS["flash_attention"](c, (q, k, v, mask, sinks), attrs)


def _alike(parts: Sequence[Part]) -> Iterator[Sequence[Part]]:
    """Runs of parts of one size at equal distances: one op computes them, along dim 3."""
    start = 0
    for i in range(1, len(parts) + 1):
        run = parts[start:i]
        if i < len(parts) and _regular((*run, parts[i])):
            continue
        yield run
        start = i


def _regular(run: Sequence[Part]) -> bool:
    apart = run[1].begin - run[0].begin
    return apart >= run[0].cells and all(
        b.begin - a.begin == apart and (b.rows, b.cells) == (a.rows, a.cells)
        for a, b in pairwise(run)
    )


def _part(c: Any, x: Any, first: int, count: int, n: int, apart: int) -> Any:
    """A view of x [d, m, heads]: n ranges of `count` along dim 1, the first at `first`, each
    `apart` behind the one before: [d, count, heads, n]."""
    step = x.nb[1]
    offset = first * step
    return lib.ggml_view_4d(
        c, x, x.ne[0], count, x.ne[2], n, step, x.nb[2], max(apart, 1) * step, offset
    )
