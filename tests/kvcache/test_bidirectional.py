"""Tokens of a step that see each other in both directions, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ggmodel.errors import ConfigError, Error, TensorError
from ggmodel.kvcache import Bidirectional, BidirectionalCache
from ggmodel.ml import Backend, DType
from ggmodel.model import Step
from tests.kvcache.naive import run, step

MakeCache = Callable[..., Any]

TOGETHER = [(1, 0), (0, 0), (1, 1), (0, 1), (0, 2), (1, 2), (0, 3)]  # sequence, position


def seen(cache: BidirectionalCache, batch: Step) -> np.ndarray:
    """bool [n, n]: which tokens of a step each of them sees."""
    cache.start_forward(batch)
    n = len(batch.positions)
    mask = batch.placed[cache].mask
    assert np.isneginf(mask[:, n:]).all()
    return mask[:, :n] == 0


@pytest.mark.parametrize("window", [None, 1, 2, 3, 100])
def test_tokens_see_their_sequence_within_the_window(make_cache: MakeCache, window: int | None):
    cache = make_cache(2, 8, [Bidirectional(window)])
    batch = step(*TOGETHER)
    for (s, p), row in zip(TOGETHER, seen(cache, batch), strict=True):
        for (t, q), sees in zip(TOGETHER, row, strict=True):
            assert sees == (s == t and (window is None or abs(p - q) < window))


@pytest.mark.parametrize("padding", [1, 16])
@pytest.mark.parametrize("window", [None, 2])
@pytest.mark.parametrize("dtype", [DType.F32, DType.F16])
def test_attention(
    make_cache: MakeCache,
    backend: Backend,
    monkeypatch: pytest.MonkeyPatch,
    dtype: DType,
    window: int | None,
    padding: int,
):
    config = replace(backend.cache_config, mask_batch_padding=padding)
    monkeypatch.setattr(backend, "cache_config", config)
    cache = make_cache(2, 8, [Bidirectional(window)], dtype=dtype)
    batch, n, random = step(*TOGETHER), len(TOGETHER), np.random.default_rng(1)
    q, k, v = (random.standard_normal((n, h, 32)).astype(np.float32) for h in (4, 2, 2))
    sees = seen(cache, batch)[:n]
    with backend.new_context() as ctx, ctx.trace():
        layer = cache.layers(ctx, batch)[0]
        inputs = [ctx.input().from_floats(x) for x in (q, k, v)]
        layer.put(*inputs[1:])
        keys, values, mask = layer.get()
        assert keys.dtype is values.dtype is dtype
        out = inputs[0].scaled_dot_product_attention(
            keys, values, mask, scale=0.2, cache_config_applied=True
        )
        ctx.forward(out)
        graph = backend.compile(ctx.graph, (out,))
        graph.run(batch)
        got = graph.value(out).reshape(n, 4, 32)
    k, v = (np.repeat(x, 2, axis=1) for x in (k, v))
    weights = np.exp(0.2 * np.einsum("nhd,mhd->hnm", q, k)) * sees
    weights /= weights.sum(2, keepdims=True)
    want = np.einsum("hnm,mhd->nhd", weights, v)
    # Keys and values of 11 bits where they are F16; flash attention adds values up in F16 then.
    assert ((got - want) ** 2).sum() / (want**2).sum() < (1e-11 if dtype is DType.F32 else 1e-6)


def test_nothing_is_remembered(make_cache: MakeCache):
    cache = make_cache(3, 8, [Bidirectional()])
    cache.start_forward(run(0, 0, 5))
    assert (cache.length(0), cache.length(1)) == (5, 0)
    assert [p for p in range(7) if cache.can_resume(0, p)] == [0]
    assert cache.resume_point(0, 5) == 0
    with pytest.raises(Error, match="sequence 0 goes on at position 5"):
        cache.start_forward(run(0, 5, 7))
    assert cache.length(0) == 5
    cache.start_forward(run(0, 0, 3))  # another text
    cache.wipe(0)
    assert cache.length(0) == 0


def test_lengths(make_cache: MakeCache):
    cache = make_cache(2, 8, [Bidirectional()])
    batch = run(0, 0, 6)
    cache.start_forward(batch)
    cache.copy_prefix(0, 1, 4)
    cache.remove(0, 1, 3)
    assert (cache.length(0), cache.length(1)) == (4, 4)
    cache.remove(0, 2, None)
    cache.remove(1, 5, 7)
    assert (cache.length(0), cache.length(1)) == (2, 4)
    cache.undo(batch)
    cache.undo(batch)  # without effect
    assert cache.length(0) == 0


def test_reserving_changes_nothing(make_cache: MakeCache):
    cache = make_cache(2, 8, [Bidirectional(2)])
    batch = run(0, 0, 4)
    cache.start_forward(batch, reserve=True)
    cache.undo(batch)
    assert cache.length(0) == 0


def test_misuse(make_cache: MakeCache, backend: Backend):
    with pytest.raises(ConfigError, match="window of 0"):
        Bidirectional(0)
    cache, batch = make_cache(1, 8, [Bidirectional()]), run(0, 0, 2)
    cache.start_forward(batch)
    with backend.new_context() as ctx, ctx.trace():
        layer = cache.layers(ctx, batch)[0]
        with pytest.raises(TensorError, match="before put"):
            layer.get()
        k = ctx.input().from_floats(np.zeros((2, 1, 32), np.float32))
        layer.put(k, k)
        with pytest.raises(TensorError, match="twice"):
            layer.put(k, k)
