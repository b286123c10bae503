"""Ops of recurrent layers: state-space models, delta rules, triangular systems."""

from __future__ import annotations

import math
from contextlib import nullcontext
from typing import TYPE_CHECKING

from ...errors import TensorError
from ..graph import record, tracing
from ..node import Node, T
from ..table import F32, FULL, I32, Layout, Mismatch, Operand, Result, define, dense, need

if TYPE_CHECKING:
    from typing_extensions import Self


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


@define("solve_tri", dense("a"), dense("b"))
def _solve_tri(a: Node, b: Node) -> Result:
    need(a.ne[0] == a.ne[1], f"{list(a.shape)} is not square")
    need(a.ne[1:] == b.ne[1:], f"{list(a.shape)} and {list(b.shape)}: dims 1 to 3 differ")
    return Result(b.ne, F32)


class Recurrent(Node):
    """State-space models, delta rules, triangular systems; results are F32."""

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
