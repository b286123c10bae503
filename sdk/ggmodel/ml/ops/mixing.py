"""Mixing of positions: rotary positions, attention, and recurrent layers.

Recurrent layers are state-space models and delta rules.
"""

from __future__ import annotations

import enum
import math
from typing import TYPE_CHECKING

from ..arguments import integer
from ..graph import call_site, record
from ..node import Node, T, failure
from ..table import (
    F16,
    F32,
    FULL,
    HALF,
    I32,
    NUMBERS,
    Layout,
    Operand,
    Result,
    define,
    dense,
    need,
)
from .arithmetic import need_cover, need_slopes

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


ORDER_ROW = 5
"""Numbers of a row in an order, I32 [5·n + cells]: where the list of its sequence's cells begins,
how long that is, the position of its first cell, and the range of positions that the row sees, its
own the last. Lists follow, by position, −1 where there is no cell."""


@define(
    "flash_attention",
    Operand("query", FULL, F32, Layout.ROWS),
    Operand("key", NUMBERS, None, Layout.ROWS),
    Operand("value", NUMBERS, None, Layout.ROWS),
    Operand("mask", frozenset({F16, I32}), F16, Layout.CONTIGUOUS, optional=True),
    dense("sinks", optional=True),
    dense("bias", optional=True),
)
def _flash_attention(
    q: Node,
    k: Node,
    v: Node,
    mask: Node | None,
    sinks: Node | None,
    bias: Node | None,
    scale: float,
    softcap: float,
    max_bias: float = 0.0,
) -> Result:
    """q [d, n, heads], k [d, m, kv heads], v [dv, m, kv heads] → [dv, heads, n]. The mask may be an
    order, I32, and there may be a bias, where the backend's `CacheConfig` says `ordered`."""
    need(q.ne[0] == k.ne[0], lambda: f"query width {q.ne[0]}, key width {k.ne[0]}")
    need(k.ne[1] == v.ne[1] and k.ne[2:] == v.ne[2:], "key and value differ in cells or heads")
    need(q.ne[2] % k.ne[2] == 0 and q.ne[3] % k.ne[3] == 0, "kv heads must divide the heads")
    ordered = mask is not None and mask.dtype is I32
    if mask is not None and ordered:
        least = ORDER_ROW * q.ne[1]
        need(mask.ne == (mask.n_elements, 1, 1, 1), "an order has one dim")
        need(
            mask.n_elements > least, lambda: f"an order of {q.ne[1]} rows has over {least} numbers"
        )
    if bias is not None:
        wide = bias.ne[0] <= k.ne[1] and bias.ne[1] == q.ne[1] and q.ne[2] % bias.ne[2] == 0
        need(
            wide and bias.ne[3] == 1, lambda: f"a bias {list(bias.shape)}, [m, n, heads] is wanted"
        )
    need_cover((k.ne[1], *q.ne[1:]), None if ordered else mask, sinks)
    need(0 <= softcap < math.inf, lambda: f"softcap {softcap}: 0, for none, or more")
    need_slopes(max_bias, mask)
    return Result((v.ne[0], q.ne[2], q.ne[1], q.ne[3]), F32)


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
        bias: Node | None = None,
        max_bias: float = 0.0,
    ) -> Self:
        """softmax(scale · K·q + bias + mask) · V for each head.

        Queries self [d, heads, n], key [d, kv heads, m], value [dv, kv heads, m] →
        [dv, heads, n] F32.

        One fused op where the backend's `flash_attention` says so.

        Args:
            value: [m, dv, kv heads] if the cache applied `permuted_v`.
            mask: [m, n], −inf at forbidden cells; None forbids none. Or an order, see `ORDER_ROW`.
            sinks: [heads], an extra score a head that takes part in the softmax and is dropped.
            vmla: a matrix that multiplies the result before heads and tokens change places.
            softcap: scores s = scale · K·q become softcap · tanh(s / softcap); 0 leaves them.
            cache_config_applied: key, value and mask come from a cache that followed the
                backend's `CacheConfig`.
            bias: F32 [m', n, heads] of the first m' keys, all that count; fused with orders only.
            max_bias: of ALiBi (arXiv 2108.12409): slopes of heads multiply a mask of −distances;
                2^(−max_bias · i/h) for i = 1 … h if h is a power of two. 0 is none.
        """
        if not (math.isfinite(scale) and 0 <= softcap < math.inf):
            reason = f"scale {scale}, softcap {softcap}: finite, and a softcap of 0 or more"
            raise failure("attention", (self, key, value), {}, "", call_site(), reason)
        graph = self.graph or key.graph or value.graph
        config = graph.backend.cache_config if graph is not None else None
        permuted_v = cache_config_applied and config is not None and config.permuted_v
        q, k = (record(x, "permute", order=(0, 2, 1, 3)) for x in (self, key))
        fused = (bias is None or (config is not None and config.ordered)) and not permuted_v
        if fused and graph is not None and graph.backend.flash_attention:
            out = _fused((q, k, value, mask, sinks, bias), scale, softcap, max_bias)
            if vmla is None:
                return out
            heads_last = record(out, "permute", order=(0, 2, 1, 3))
        else:
            if not permuted_v:
                value = record(record(value, "permute", order=(1, 2, 0, 3)), "contiguous")
            weights = _weights(q, k, mask, sinks, scale, softcap, bias, max_bias)
            heads_last = record(value, "mulmat", weights)
        if vmla is not None:
            heads_last = record(vmla, "mulmat", heads_last)
        return record(record(heads_last, "permute", order=(0, 2, 1, 3)), "contiguous")


def _fused(
    operands: tuple[T, T, T, Node | None, Node | None, Node | None],
    scale: float,
    softcap: float,
    max_bias: float,
) -> T:
    """The one op, of a value [dv, kv heads, m] and of others as it takes them."""
    q, k, value, mask, sinks, bias = operands
    v = record(value, "permute", order=(0, 2, 1, 3))
    slopes = {"max_bias": max_bias} if max_bias else {}
    others = (k, v, mask, sinks, bias)
    return record(q, "flash_attention", *others, scale=scale, softcap=softcap, **slopes)


def _weights(
    q: T,
    k: T,
    mask: Node | None,
    sinks: Node | None,
    scale: float,
    softcap: float,
    bias: Node | None = None,
    max_bias: float = 0.0,
) -> T:
    """softmax(scale · K·q + bias + mask) of queries [d, n, heads] and keys [d, m, kv heads] →
    [m, n, heads]."""
    scores = record(k, "mulmat", q, full_precision=True)
    if softcap:
        capped = record(record(scores, "scale", s=scale / softcap), "tanh")
        scores, scale = record(capped, "scale", s=softcap), 1.0
    if bias is not None:
        if more := k.ne[1] - bias.ne[0]:
            bias = record(bias, "pad", amounts=(more, 0, 0, 0))
        scores, scale = record(record(scores, "scale", s=scale), "add", bias), 1.0
    slopes = {"max_bias": max_bias} if max_bias else {}
    return record(scores, "softmax", mask, sinks, scale=scale, **slopes)


@define("ssm_conv", dense("x"), dense("kernel"))
def _ssm_conv(x: Node, kernel: Node) -> Result:
    width, channels = kernel.ne[:2]
    need(kernel.ne[2] == kernel.ne[3] == 1, "the kernel is [width, channels]")
    need(x.ne[3] == 1, "x is [width − 1 + tokens, channels, sequences]")
    need(x.ne[1] == channels, f"{x.ne[1]} channels, the kernel has {channels}")
    tokens = x.ne[0] - width + 1
    need(width > 0 and tokens > 0, f"a kernel of {width} needs as many columns, not {x.ne[0]}")
    return Result((channels, tokens, x.ne[2], 1), F32)


@define(
    "ssm_scan",
    *map(dense, ("states", "x", "dt", "A", "B", "C")),
    Operand("ids", frozenset({I32}), None, Layout.CONTIGUOUS, selects=(0, 3)),
)
def _ssm_scan(s: Node, x: Node, dt: Node, A: Node, B: Node, C: Node, ids: Node) -> Result:
    size, width, heads, _ = s.ne
    tokens, sequences = x.ne[2:]
    need(x.ne[:2] == (width, heads), f"x begins with {x.ne[:2]}, not with {(width, heads)}")
    need(dt.ne == (heads, tokens, sequences, 1), "dt is [heads, tokens, sequences] of x")
    need(A.ne in ((1, heads, 1, 1), (size, heads, 1, 1)), f"A is [1 or {size}, {heads}]")
    need(B.ne == C.ne, f"B {list(B.shape)} and C {list(C.shape)} differ")
    need((B.ne[0], *B.ne[2:]) == (size, tokens, sequences), "B is [state, groups, *x.shape[2:]]")
    need(B.ne[1] > 0 and heads % B.ne[1] == 0, f"{B.ne[1]} groups do not divide {heads} heads")
    need(ids.ne == (sequences, 1, 1, 1), f"one state a sequence is chosen: ids is [{sequences}]")
    need(x.n_elements > 0 and size > 0, "x and the states have elements")
    return Result((x.n_elements + math.prod((size, width, heads, sequences)), 1, 1, 1), F32)


def _rows(name: str) -> Operand:
    return Operand(name, FULL, F32, Layout.ROWS)


@define("gated_delta_net", *map(_rows, "qkv"), *map(dense, ("decay", "beta", "states")), own=True)
def _gated_delta_net(q: Node, k: Node, v: Node, decay: Node, beta: Node, s: Node) -> Result:
    width, heads, tokens, sequences = v.ne
    many = v.ne[1:]
    need(q.ne == k.ne, f"q {list(q.shape)} and k {list(k.shape)} differ")
    need(q.ne[0] == width, f"keys are {q.ne[0]} wide, values {width}; they must be alike")
    need(q.ne[2:] == v.ne[2:], f"{list(q.ne[2:])} tokens and sequences, of v {list(v.ne[2:])}")
    need(q.ne[1] > 0 and heads % q.ne[1] == 0, f"{q.ne[1]} keys do not divide {heads} heads")
    need(decay.ne in ((1, *many), (width, *many)), f"decay is [1 or {width}, {list(many)}]")
    need(beta.ne == (1, *many), f"beta is [1, {list(many)}]")
    need(s.ne == (width, width, heads, sequences), "the states are [d, d, heads, sequences] of v")
    need(v.n_elements > 0, "v has elements")
    return Result((width * heads, (tokens + width) * sequences, 1, 1), F32)


# ggml reads 64 elements at once with AVX-512; CUDA has kernels for these, and ends at others.
_WKV_WIDTHS = (64, 128)


@define("rwkv_wkv7", *map(dense, ("r", "decay", "k", "v", "a", "b", "states")), own=True)
def _rwkv_wkv7(r: Node, decay: Node, k: Node, v: Node, a: Node, b: Node, s: Node) -> Result:
    width, heads, tokens, sequences = r.ne
    for name, x in (("decay", decay), ("k", k), ("v", v), ("a", a), ("b", b)):
        need(x.ne == r.ne, lambda name=name, x=x: f"{name} is {list(x.shape)}, r {list(r.shape)}")
    need(s.ne == (width, width, heads, sequences), "the states are [d, d, heads, sequences] of r")
    need(width in _WKV_WIDTHS, lambda: f"heads of {width}; ggml has kernels for 64 and 128")
    need(r.n_elements > 0, "r has elements")
    return Result((width * heads, (tokens + width) * sequences, 1, 1), F32)


class Recurrent(Node):
    """State-space models and delta rules; results are F32."""

    __slots__ = ()

    def ssm_conv(self, kernel: Node) -> Self:
        """Causal convolution of each channel: self [k − 1 + n, d, sequences] with kernel [k, d] →
        [d, n, sequences].

        The first k − 1 columns of self precede the n tokens.
        """
        return record(self, "ssm_conv", kernel)

    def ssm_scan(self, x: Node, dt: Node, A: Node, B: Node, C: Node, ids: Node) -> Self:
        """Selective scan (Mamba) of states self [state, d, heads, slots] over x [d, heads, n,
        sequences] → y of x's shape, then the new states [state, d, heads, sequences], flat in one
        tensor.

        With t = softplus(dt) a token does s ← s · exp(t · A) + t · x · B and gives y = Σ s · C over
        dim 0. `view` takes the two parts out of the result; self is not written.

        Args:
            dt: [heads, n, sequences].
            A: [1, heads] (Mamba 2) or [state, heads] (Mamba 1), usually negative.
            B, C: [state, groups, n, sequences]; each group serves heads / groups neighbours.
            ids: I32 [sequences], the slot of self where each sequence begins.
        """
        return record(self, "ssm_scan", x, dt, A, B, C, ids)

    def gated_delta_net(self, k: Node, v: Node, decay: Node, beta: Node, states: Node) -> Self:
        """Gated delta rule (arXiv 2412.06464) with queries self [d, groups, n, sequences] → rows
        [d · heads]: n · sequences of results, then d · sequences of the last states.

        A token does S ← S · exp(decay), S ← S + k · (beta · (v − Sᵀ · k))ᵀ and gives
        y = Sᵀ · q / √d. `slice` takes the two parts out of the result: `slice(1, 0, n · sequences)`
        is y, the rest has the elements of states; that operand is not written.

        Args:
            k: [d, groups, n, sequences]; head i has the keys and queries of group i mod groups.
            v: [d, heads, n, sequences].
            decay: [1, heads, n, sequences], or [d, …] for each key element one; not above 0.
            beta: [1, heads, n, sequences], how much is overwritten, usually from 0 to 1.
            states: [d, d, heads, sequences] before the first token: keys along dim 0, values
                along dim 1.
        """
        return record(self, "gated_delta_net", k, v, decay, beta, states)

    def rwkv_wkv7(self, decay: Node, k: Node, v: Node, a: Node, b: Node, states: Node) -> Self:
        """Generalised delta rule of RWKV-7 (arXiv 2503.14456) with receptances self [d, heads, n,
        sequences] → rows [d · heads]: n · sequences of results, then d · sequences of the last
        states.

        A token does S ← diag(decay) · S + b · (Sᵀ · a)ᵀ + k · vᵀ, with S of before in both places,
        and gives y = Sᵀ · r. `slice` takes the two parts out, as of `gated_delta_net`.

        Args:
            decay: of self's shape, as k, v, a and b; from 0 to 1 for each key element.
            states: [d, d, heads, sequences] before the first token: keys along dim 0, values
                along dim 1; d is a multiple of 64.
        """
        return record(self, "rwkv_wkv7", decay, k, v, a, b, states)
