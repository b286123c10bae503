"""Rotary positions and attention."""

from __future__ import annotations

import enum
import math
from typing import TYPE_CHECKING, NamedTuple

from ...errors import TensorError
from ..arguments import integer
from ..graph import call_site, record
from ..node import Node, T, failure
from ..table import F16, F32, FULL, HALF, I32, NUMBERS, Layout, Operand, Result, define, dense, need
from .reductions import need_cover

if TYPE_CHECKING:
    from typing_extensions import Self


class RopeType(enum.IntEnum):
    """The pairs of elements that rope rotates; the values are ggml's."""

    NORM = 0  # neighbours: (0, 1), (2, 3), …
    NEOX = 2  # halves: (0, d/2), (1, d/2 + 1), …
    MROPE = 8  # halves, with a position of its own for each section
    VISION = 24  # rows and columns of an image
    IMROPE = 40  # halves; pairs take the positions of three sections in turn


_ROPE = (
    Operand("x", HALF, F32, Layout.ROWS),
    Operand("positions", frozenset({I32}), None, Layout.CONTIGUOUS),
    dense("factors", optional=True),
)


@define("rope", *_ROPE, own=True)
def _rope(
    x: Node,
    positions: Node,
    factors: Node | None,
    dims: int,
    mode: RopeType,
    sections: tuple[int, ...] = (),
    **_: float,
) -> Result:
    possible = 0 < dims <= x.ne[0] and dims % 2 == 0
    need(possible, lambda: f"{dims} of {x.ne[0]} elements: even and no more")
    per_token = 4 if sections else 1
    need(
        positions.ne == (x.ne[2] * per_token, 1, 1, 1),
        lambda: f"{list(positions.shape)} positions for {x.ne[2]} tokens (dim 2 of x)",
    )
    need(bool(sections) == (mode >= RopeType.MROPE), "sections go with multi-section types")
    if sections:
        need(len(sections) == 4, "four sections are needed")
        need(min(sections) >= 0, f"sections {sections}: none is negative")
        need(sum(sections[:3]) > 0, f"sections {sections}: the first three are empty")
        need(sum(sections) <= x.ne[0], f"sections {sections} for {x.ne[0]} elements")
    need(mode is not RopeType.VISION or dims == x.ne[0] // 2, "vision rope rotates half the dims")
    if factors is not None:
        pairs = dims if mode is RopeType.VISION else dims // 2
        need(factors.ne[0] >= pairs, lambda: f"{factors.ne[0]} factors for {pairs} pairs")
    return Result(x.ne, x.dtype)


class Part(NamedTuple):
    """Rows of a batch that attend to cells of their own.

    Attributes:
        row, rows: the first row, and how many.
        begin, cells: the first cell, and how many.
    """

    row: int
    rows: int
    begin: int
    cells: int


@define(
    "flash_attention",
    Operand("query", FULL, F32, Layout.ROWS),
    Operand("key", NUMBERS, None, Layout.ROWS),
    Operand("value", NUMBERS, None, Layout.ROWS),
    Operand("mask", frozenset({F16}), F16, Layout.CONTIGUOUS, optional=True),
    dense("sinks", optional=True),
)
def _flash_attention(
    q: Node,
    k: Node,
    v: Node,
    mask: Node | None,
    sinks: Node | None,
    scale: float,
    softcap: float,
    parts: tuple[Part, ...] = (),
) -> Result:
    """q [d, n, heads], k [d, m, kv heads], v [dv, m, kv heads] → [dv, heads, n]."""
    need(q.ne[0] == k.ne[0], lambda: f"query width {q.ne[0]}, key width {k.ne[0]}")
    need(k.ne[1] == v.ne[1] and k.ne[2:] == v.ne[2:], "key and value differ in cells or heads")
    need(q.ne[2] % k.ne[2] == 0 and q.ne[3] % k.ne[3] == 0, "kv heads must divide the heads")
    if parts:
        _need_parts(parts, q, k, mask)
    need_cover((k.ne[1], *q.ne[1:]), None if parts else mask, sinks)
    need(0 <= softcap < math.inf, lambda: f"softcap {softcap}: 0, for none, or more")
    return Result((v.ne[0], q.ne[2], q.ne[1], q.ne[3]), F32)


def _need_parts(parts: tuple[Part, ...], q: Node, k: Node, mask: Node | None) -> None:
    rows = [row for part in parts for row in range(part.row, part.row + part.rows)]
    need(rows == list(range(q.ne[1])), lambda: f"{parts} are not all {q.ne[1]} rows in order")
    need(
        all(p.begin >= 0 and 0 < p.cells <= k.ne[1] - p.begin for p in parts),
        lambda: f"{parts} of {k.ne[1]} cells",
    )
    masked = sum(part.rows * part.cells for part in parts)
    need(
        mask is not None and mask.ne == (masked, 1, 1, 1) and q.ne[3] == k.ne[3] == 1,
        f"parts want one mask of {masked} numbers, and no dim 3",
    )


class Attention(Node):
    """Rotary positions and attention."""

    __slots__ = ()

    def rope(
        self,
        positions: Node,
        dims: int,
        base: float,
        scale: float = 1.0,
        *,
        type: RopeType = RopeType.NORM,
        factors: Node | None = None,
        original_context: int = 0,
        ext_factor: float = 0.0,
        attn_factor: float = 1.0,
        beta_fast: float = 32.0,
        beta_slow: float = 1.0,
        sections: tuple[int, ...] = (),
    ) -> Self:
        """Rotates the first `dims` elements of each head by its position.

        [d, heads, n] → [d, heads, n].

        Args:
            positions: I32 [n]; [4·n] with sections: all of the first section, then the second's.
            base: of the frequencies, base^(−2i/dims) for pair i.
            scale: multiplies positions; 1/s for linear scaling by a factor of s.
            factors: F32 [dims/2], which divide the frequencies (llama 3, long-rope).
            original_context, ext_factor, attn_factor, beta_fast, beta_slow: YaRN, arXiv
                2309.00071.
            sections: four pair counts of the multi-section types. Pair i of MROPE has the
                position of the section that it lies in. Pairs of IMROPE take turns: i mod 3 is the
                section while that has pairs left, else the fourth is. Pairs beyond their sum begin
                anew.
        """
        x = record(self, "cast", dtype=F32) if self.dtype.is_quantized else self
        return record(
            x,
            "rope",
            positions,
            factors,
            dims=dims,
            mode=RopeType(type),
            sections=tuple(map(integer, sections)),
            base=base,
            scale=scale,
            original_context=original_context,
            ext_factor=ext_factor,
            attn_factor=attn_factor,
            beta_fast=beta_fast,
            beta_slow=beta_slow,
        )

    def scaled_dot_product_attention(
        self,
        key: Self,
        value: Self,
        mask: Node | None = None,
        sinks: Node | None = None,
        vmla: Self | None = None,
        *,
        scale: float,
        softcap: float = 0.0,
        cache_config_applied: bool = False,
        parts: tuple[Part, ...] = (),
    ) -> Self:
        """softmax(scale · K·q + mask) · V for each head.

        Queries self [d, heads, n], key [d, kv heads, m], value [dv, kv heads, m] →
        [dv, heads, n] F32.

        One fused op where the backend's `flash_attention` says so.

        Args:
            value: [m, dv, kv heads] if the cache applied `permuted_v`.
            mask: [m, n], −inf at forbidden cells; None forbids none.
            sinks: [heads], an extra score a head that takes part in the softmax and is dropped.
            vmla: a matrix that multiplies the result before heads and tokens change places.
            softcap: scores s = scale · K·q become softcap · tanh(s / softcap); 0 leaves them.
            cache_config_applied: key, value and mask come from a cache that followed the
                backend's `CacheConfig`.
            parts: rows that attend to cells of their own, all rows in order; only where the
                backend's `CacheConfig` says `parts`. The mask is then [m], the masks [cells, rows]
                of one part after the other.
        """
        if not (math.isfinite(scale) and 0 <= softcap < math.inf):
            reason = f"scale {scale}, softcap {softcap}: finite, and a softcap of 0 or more"
            raise failure("attention", (self, key, value), {}, "", call_site(), reason)
        graph = self.graph or key.graph or value.graph
        config = graph.backend.cache_config if graph is not None else None
        permuted_v = cache_config_applied and config is not None and config.permuted_v
        q = record(self, "permute", order=(0, 2, 1, 3))
        k = record(key, "permute", order=(0, 2, 1, 3))
        flash = graph is not None and graph.backend.flash_attention and not permuted_v
        if parts and not flash:
            raise TensorError("attention has parts only as a fused op")
        if flash:
            v = record(value, "permute", order=(0, 2, 1, 3))
            apart = {"parts": parts} if parts else {}
            out = record(
                q, "flash_attention", k, v, mask, sinks, scale=scale, softcap=softcap, **apart
            )
            if vmla is None:
                return out
            heads_last = record(out, "permute", order=(0, 2, 1, 3))
        else:
            if not permuted_v:
                value = record(record(value, "permute", order=(1, 2, 0, 3)), "contiguous")
            weights = _weights(q, k, mask, sinks, scale, softcap)
            heads_last = record(value, "mulmat", weights)
        if vmla is not None:
            heads_last = record(vmla, "mulmat", heads_last)
        return record(record(heads_last, "permute", order=(0, 2, 1, 3)), "contiguous")


def _weights(q: T, k: T, mask: Node | None, sinks: Node | None, scale: float, softcap: float) -> T:
    """softmax(scale · K·q + mask) of queries [d, n, heads] and keys [d, m, kv heads] →
    [m, n, heads]."""
    scores = record(k, "mulmat", q, full_precision=True)
    if softcap:
        capped = record(record(scores, "scale", s=scale / softcap), "tanh")
        scores, scale = record(capped, "scale", s=softcap), 1.0
    return record(scores, "softmax", mask, sinks, scale=scale)
