"""Caches of few bits, whose heads are spread before they are rounded (`kvcache.layer.spread`)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from ggmodel.kvcache import Causal
from ggmodel.kvcache.layer import hadamard, spread_width
from ggmodel.ml import Backend, DType
from ggmodel.nn import attention
from tests.kvcache.conftest import MakeCache
from tests.kvcache.naive import run

N, HEADS, D = 12, 2, 64
SCALE = 0.1


@pytest.mark.parametrize("width", [1, 2, 32, 128])
def test_the_rotation_is_its_own_inverse(width: int):
    matrix = hadamard(width).astype(np.float64)
    np.testing.assert_array_equal(matrix, matrix.T)
    np.testing.assert_allclose(matrix @ matrix, np.eye(width), atol=1e-6)


def test_heads_that_are_no_power_of_two():
    assert [spread_width(d) for d in (32, 64, 80, 96, 128, 256, 576)] == [
        32,
        64,
        16,
        32,
        128,
        128,
        64,
    ]


@dataclass
class Heads:
    """Queries, keys and values [n, heads, d], of which one number of each key is far larger."""

    q: np.ndarray
    k: np.ndarray
    v: np.ndarray

    def attended(self) -> np.ndarray:
        """The right result, float64 [n, heads, d]."""
        scores = SCALE * np.einsum("ihd,jhd->hij", self.q, self.k)
        scores = np.where(np.tri(N, dtype=bool), scores, -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        return np.einsum("hij,jhd->ihd", weights / weights.sum(-1, keepdims=True), self.v)


@pytest.fixture
def heads() -> Heads:
    q, k, v = np.random.default_rng(0).standard_normal((3, N, HEADS, D))
    q[..., 3], k[..., 3] = 0.1 * q[..., 3], 30 + k[..., 3]
    v[..., 5] *= 20
    return Heads(q, k, v)


def computed(
    backend: Backend, make_cache: MakeCache, dtype: DType, heads: Heads, vmla: np.ndarray | None
) -> np.ndarray:
    cache, batch = make_cache(1, N, [Causal()], dtype), run(0, 0, N)
    cache.start_forward(batch)
    with backend.new_context() as ctx, ctx.trace():
        layer, host = cache.layers(ctx, batch)[0], ctx.input()
        assert layer.spreads == dtype.is_quantized
        q, k, v = (host.from_floats(x.astype(np.float32)) for x in (heads.q, heads.k, heads.v))
        matrix = None if vmla is None else host.from_floats(vmla.astype(np.float32))
        out = attention(q, k, v, layer, scale=SCALE, vmla=matrix)
        ctx.forward(out)
        executable = backend.compile(ctx.graph, (out,))
        try:
            executable.run(batch)
            return executable.value(out)[0].reshape(N, HEADS, -1).copy()
        finally:
            executable.close()


@pytest.mark.parametrize("dtype", [DType.Q8_0, DType.Q4_0], ids=str)
@pytest.mark.parametrize("latent", [False, True])
def test_large_numbers_do_not_drown_the_others(
    backend: Backend,
    make_cache: MakeCache,
    heads: Heads,
    dtype: DType,
    latent: bool,
    monkeypatch: pytest.MonkeyPatch,
):
    """Stored as they are, heads lose more than five times as much."""
    if not backend.flash_attention:
        return  # caches of few bits need it
    vmla = np.random.default_rng(1).standard_normal((HEADS, 32, D)) if latent else None
    want = heads.attended()
    small = np.delete(want, 5, -1)
    if vmla is not None:
        want = small = np.einsum("hod,ihd->iho", vmla, want)

    def lost() -> float:
        got = computed(backend, make_cache, dtype, heads, vmla)
        got = got if latent else np.delete(got, 5, -1)
        return float(((got - small) ** 2).sum() / (small**2).sum())

    spread = lost()
    monkeypatch.setattr("ggmodel.kvcache.layer.SPREAD", 1)
    assert 0 < spread < lost() / 5
