"""Attention to rows nearby, against the same row by row in numpy."""

from __future__ import annotations

import numpy as np
import pytest

from ggmodel import nn
from ggmodel.gguf_file import MemorySource
from ggmodel.ml import new_backend
from ggmodel.workbench.golden import nmse

D, HEADS, CAP = 8, 2, 5.0


def row_by_row(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, relative: np.ndarray, past: int, ahead: int
) -> np.ndarray:
    """[n, heads · d] of [n, heads, d]."""
    n, found = len(q), np.zeros(q.shape)
    for row in range(n):
        for head in range(HEADS):
            seen = [i for i in range(n) if -ahead <= row - i <= past]
            score = np.array(
                [q[row, head] @ (k[i, head] + relative[past - row + i, head]) for i in seen]
            )
            weight = np.exp(CAP * np.tanh(score / CAP))
            found[row, head] = weight @ v[seen, head] / weight.sum()
    return found.reshape(n, -1)


@pytest.mark.parametrize("backend", ["ggml", "reference"])
@pytest.mark.parametrize("n", [1, 3, 4, 5, 13])
@pytest.mark.parametrize(("past", "ahead"), [(4, 0), (0, 0), (3, 2), (2, 3), (12, 1)])
def test_rows_see_those_nearby(backend: str, n: int, past: int, ahead: int):
    random = np.random.default_rng(n)
    q, k, v = (random.standard_normal((n, HEADS, D)).astype(np.float32) for _ in range(3))
    relative = random.standard_normal((past + 1 + ahead, HEADS, D)).astype(np.float32)
    source = MemorySource({"general.architecture": "none"}, {})
    with new_backend(source, name=backend) as opened, opened.new_context() as ctx, ctx.trace():
        given = [ctx.input().from_floats(x) for x in (q, k, v, relative)]
        y = nn.LocalAttention(ctx, n, past, ahead, CAP, D).attend(*given)
        ctx.forward(y).compute(y)
        got = y.floats()
    want = row_by_row(q, k, v, relative, past, ahead)
    assert nmse(got.reshape(want.shape), want) < (1e-11 if backend == "ggml" else 1e-12)


def test_the_furthest_distance_comes_first():
    source = MemorySource({"general.architecture": "none"}, {})
    with new_backend(source) as opened, opened.new_context() as ctx, ctx.trace():
        y = nn.LocalAttention(ctx, 9, 2, 1, CAP, 6).distances.scale(1.0)
        ctx.forward(y).compute(y)
        table = y.floats().reshape(4, 6)
    rates = [1.0, 1e-2, 1e-4]
    for row, distance in zip(table, (2, 1, 0, -1), strict=True):
        want = [*np.sin(np.multiply(distance, rates)), *np.cos(np.multiply(distance, rates))]
        assert np.allclose(row, want, atol=1e-6)
