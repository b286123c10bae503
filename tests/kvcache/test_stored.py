"""Keys and values as tensors: what is kept, moved, cleared and freed."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from ggmodel.errors import TensorError, Unsupported
from ggmodel.kvcache import KV_TYPES, Causal, CausalCache, Sliding
from ggmodel.kvcache.layer import hadamard
from ggmodel.ml import Backend, DType
from ggmodel.nn import Rope
from tests.kvcache.history import BOUND, HEADS, Spec, Token, attend
from tests.kvcache.naive import run

MakeCache = Callable[..., CausalCache]

WIDTH, VALUES, LONG = 8, 6, 32


def fill(cache: CausalCache, specs: list[Spec], n: int, d: int = WIDTH, dv: int = VALUES) -> None:
    """Positions 0 to n of sequence 0."""
    batch = run(0, 0, n)
    cache.start_forward(batch)
    attend(cache, batch, [Token(p, 0, p) for p in range(n)], specs, d, dv)


@pytest.mark.parametrize("dtype", [DType.Q5_0, DType.BF16, DType.I32], ids=str)
def test_other_dtypes_are_not_there(make_cache: MakeCache, dtype: DType):
    with pytest.raises(Unsupported, match=f"{dtype.name.lower()}.*f32, f16, q8_0, q4_0"):
        make_cache(1, 4, dtype=dtype)


@pytest.mark.parametrize("dtype", [t for t in KV_TYPES if t.is_quantized], ids=str)
def test_blocks_need_flash_attention(make_cache: MakeCache, backend: Backend, dtype: DType):
    if backend.flash_attention:
        make_cache(1, 4, dtype=dtype)
        return
    with pytest.raises(Unsupported, match=f"{dtype.name.lower()} needs flash attention.*'f16'"):
        make_cache(1, 4, dtype=dtype)


@pytest.mark.parametrize(("d", "dv"), [(WIDTH, LONG), (LONG, WIDTH), (48, 48)])
def test_heads_that_blocks_do_not_divide(make_cache: MakeCache, backend: Backend, d: int, dv: int):
    if not backend.flash_attention:  # then it does not even come to heads
        with pytest.raises(Unsupported, match="needs flash attention"):
            make_cache(1, 4, [Causal()], DType.Q8_0)
        return
    cache = make_cache(1, 4, [Causal()], DType.Q8_0)
    with pytest.raises(Unsupported, match=r"q8_0 stores blocks of 32.* layer 0 have (8|48)"):
        fill(cache, [Causal()], 2, d, dv)


def dtypes(backend: Backend) -> list[DType]:
    return [t for t in KV_TYPES if backend.flash_attention or not t.is_quantized]


def test_a_shift_moves_only_what_it_must(make_cache: MakeCache, backend: Backend):
    """Neither layers without rotation, nor other cells, nor values."""
    rope = Rope(LONG)
    specs: list[Spec] = [Causal(), Causal(rope), Causal(rope)]
    for dtype in dtypes(backend):
        cache = make_cache(1, 12, specs, dtype, max_batch=7)
        fill(cache, specs, 7, LONG, LONG)
        keys, values = cache.stored.keys, cache.stored.values
        before = {i: keys[i].numpy().astype(np.float64) for i in range(3)}
        kept = {i: values[i].bytes() for i in range(3)}
        cache.remove(0, 2, 4)
        assert {i: values[i].bytes() for i in range(3)} == kept
        assert (keys[0].numpy() == before[0]).all()
        for layer in (1, 2):
            moved = keys[layer].numpy()
            untouched = [0, 1, 2, 3, *range(7, cache.table.count)]
            np.testing.assert_array_equal(moved[untouched], before[layer][untouched])
            angles = -2 * 10000.0 ** (-2 * np.arange(LONG // 2) / LONG)
            spread = hadamard(LONG) if dtype.is_quantized else np.eye(LONG)
            old = (before[layer][4:7].reshape(3, HEADS, LONG) @ spread).reshape(3, HEADS, -1, 2)
            turned = (old[..., 0] + 1j * old[..., 1]) * np.exp(1j * angles)
            want = np.stack([turned.real, turned.imag], -1).reshape(3, HEADS, LONG) @ spread
            want = want.reshape(3, -1)
            assert ((moved[4:7] - want) ** 2).sum() / (want**2).sum() < BOUND[dtype]


def test_more_cells_than_a_batch_has_move(make_cache: MakeCache):
    specs: list[Spec] = [Causal(Rope(WIDTH))]
    at_once, in_parts = (make_cache(1, 12, specs, max_batch=n) for n in (12, 5))
    for cache in (at_once, in_parts):
        fill(cache, specs, 12)
        cache.remove(0, 0, 1)
    assert at_once.stored.keys[0].bytes() == in_parts.stored.keys[0].bytes()


@pytest.mark.parametrize("spec", [Causal(), Sliding(2)], ids=["causal", "sliding"])
def test_wiping_leaves_nothing_behind_but_what_others_have(
    make_cache: MakeCache, backend: Backend, spec: Spec
):
    for dtype in dtypes(backend):
        cache = make_cache(2, 12, [spec], dtype, max_batch=5)
        fill(cache, [spec], 5, LONG, LONG)
        cache.copy_prefix(0, 1, 2)
        for p in range(5, 8):  # a window gives cells up
            batch = run(0, p, p + 1)
            cache.start_forward(batch)
            attend(cache, batch, [Token(p, 0, p)], [spec], LONG, LONG)
        shared = cache.table.member[1].copy()
        cache.wipe(0)
        keys, values = cache.stored.keys[0].numpy(), cache.stored.values[0].numpy()
        values = values.T if cache.stored.permuted_v else values
        for rows in (keys, values):
            assert (rows.any(axis=1) == shared).all()
        assert shared.sum() == 2
        assert cache.length(0) == 0 and cache.length(1) == 2


def test_a_closed_cache_frees_its_memory(backend: Backend, make_cache: MakeCache):
    before = sum(backend.backend_memory().cpu.cache)
    cache = make_cache(1, 8)
    fill(cache, [Causal()], 1)
    used = sum(backend.backend_memory().cpu.cache) - before
    assert used == 4 * cache.table.count * HEADS * (WIDTH + VALUES)
    cache.close()
    cache.close()
    assert sum(backend.backend_memory().cpu.cache) == before


def test_a_layer_is_given_keys_and_values_once(make_cache: MakeCache, backend: Backend):
    cache, batch = make_cache(1, 4), run(0, 0, 1)
    cache.start_forward(batch)
    with backend.new_context() as ctx, ctx.trace():
        layer = cache.layers(ctx, batch)[0]
        k = ctx.input().zeros(DType.F32, WIDTH, HEADS, 1)
        with pytest.raises(TensorError, match=r"get\(\) before put\(\)"):
            layer.get()
        layer.put(k, k)
        with pytest.raises(TensorError, match="twice"):
            layer.put(k, k)
