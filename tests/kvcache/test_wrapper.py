"""Layers of several kinds behind one face."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from ggmodel.errors import ConfigError, Error, GraphError, KvCacheFull, TensorError, Unsupported
from ggmodel.kvcache import (
    Cache,
    Causal,
    CausalCache,
    Chunked,
    Cross,
    Sliding,
    new_cache,
    several,
    share_last,
)
from ggmodel.kvcache.cells import Window
from ggmodel.ml import DType
from ggmodel.model import Step
from ggmodel.nn import Rope
from tests.kvcache.conftest import small_backend
from tests.kvcache.history import Spec, parts, snapshot
from tests.kvcache.naive import run, step

MakeCache = Callable[..., Cache]

MIXED: list[Spec] = [
    Sliding(3, rope=Rope(8)),
    Causal(),
    Sliding(3),
    Chunked(4),
    Sliding(4),
    Causal(Rope(8)),
    Sliding(3, 6),
]


def test_layers_of_a_kind_share_a_cache(make_cache: MakeCache):
    cache = make_cache(2, 8, MIXED)
    assert [list(part.stored.ropes) for part in parts(cache)] == [[0, 2], [1, 5], [3], [4], [6]]
    assert parts(cache)[0].stored.ropes[0] == Rope(8) and parts(cache)[0].stored.ropes[2] is None


def test_one_kind_needs_no_wrapper(make_cache: MakeCache):
    for layers in ([Causal(), Causal(Rope(8))], [Sliding(3), Sliding(3, 3)], []):
        assert type(make_cache(1, 4, layers)) is CausalCache


def test_all_layers_are_there(make_cache: MakeCache):
    cache = make_cache(2, 8, MIXED)
    batch = run(0, 0, 3)
    cache.start_forward(batch)
    with parts(cache)[0].stored.backend.new_context() as ctx, ctx.trace():
        layers = cache.layers(ctx, batch)
        assert {i: layer.layer for i, layer in layers.items()} == {i: i for i in range(7)}
    assert cache.shape_key(batch) == (Window(0, 4),) * 5
    hash(cache.shape_key(batch))


# layers with several memories


def test_a_layer_with_several_memories_gets_them_in_its_order(make_cache: MakeCache):
    pair = (Causal(absolute=True), Cross(rows=4))
    cache = make_cache(2, 8, [pair, Causal(), pair[::-1]])
    assert [list(part.stored.ropes) for part in parts(cache)] == [[0, 2], [1]]
    batch = run(0, 0, 3)
    cache.start_forward(batch)
    with parts(cache)[0].stored.backend.new_context() as ctx, ctx.trace():
        layers = cache.layers(ctx, batch)
        kinds = {i: [type(one).__name__ for one in several(x)] for i, x in layers.items()}
    own, cross = "LayerCache", "LayerObjects"
    assert kinds == {0: [own, cross], 1: [own], 2: [cross, own]}


def test_one_layer_of_one_kind_in_a_tuple_gets_a_tuple(make_cache: MakeCache):
    cache = make_cache(1, 4, [(Causal(),)])
    batch = run(0, 0, 2)
    cache.start_forward(batch)
    with parts(cache)[0].stored.backend.new_context() as ctx, ctx.trace():
        (memory,) = cache.layers(ctx, batch)[0]
    assert memory.layer == 0


def test_a_layer_has_one_memory_of_a_kind(make_cache: MakeCache):
    with pytest.raises(TensorError, match=r"entry 1 of .* declares two memories of one kind"):
        make_cache(1, 4, [Causal(), (Causal(), Causal(Rope(8)))])


def test_keys_that_hold_their_positions_do_not_move(make_cache: MakeCache):
    cache = make_cache(1, 8, [Causal(absolute=True)])
    cache.start_forward(run(0, 0, 6))
    with pytest.raises(Error, match="what entered the layers holds them"):
        cache.check_remove(0, 0, 2)
    cache.remove(0, 3, None)  # the end can go
    assert cache.length(0) == 3


# layers that share keys and values


def test_the_last_layers_share_with_the_last_ones_of_their_kind():
    layers = [Sliding(3), Causal(), Sliding(3), Causal(), Sliding(3), Sliding(3)]
    assert [spec.shares for spec in share_last(layers, 3)] == [None] * 3 + [1, 2, 2]
    assert share_last(layers, 0) == layers
    for n in (-1, 6, 7):
        with pytest.raises(ConfigError, match="share"):
            share_last(layers, n)
    with pytest.raises(ConfigError, match="layer 1 shares keys and values, but none of the 1"):
        share_last(layers, 5)


def test_what_is_shared_is_stored_once(make_cache: MakeCache):
    specs = [Causal(Rope(8)), Sliding(3), Causal(Rope(8), shares=0), Sliding(3, shares=1)]
    cache = make_cache(2, 8, specs)
    assert [list(part.stored.ropes) for part in parts(cache)] == [[0], [1]]
    batch = run(0, 0, 3)
    cache.start_forward(batch)
    with parts(cache)[0].stored.backend.new_context() as ctx, ctx.trace():
        layers = cache.layers(ctx, batch)
        k = ctx.input().zeros(DType.F32, 8, 2, 3)
        assert [layer.shares for layer in layers.values()] == [None, 0, None, 1]
        assert layers[2].rope == Rope(8) and layers[2].layer == 2
        with pytest.raises(TensorError, match=r"get\(\) before put\(\) on the cache of layer 0"):
            layers[2].get()
        with pytest.raises(TensorError, match="share the keys and values of layer 0"):
            layers[2].put(k, k)
        layers[1].put(k, k)
        assert layers[3].get()[0].describe() == layers[1].get()[0].describe()
    assert [list(part.stored.keys) for part in parts(cache)] == [[], [1]]


@pytest.mark.parametrize(
    "specs",
    [
        [Causal(), Causal(Rope(8), shares=0)],
        [Causal(), Sliding(3, shares=0)],
        [Sliding(3), Sliding(4, shares=0)],
        [Causal(), Causal(shares=1)],
        [Causal(), Causal(shares=2), Causal()],
        [Causal(), Causal(shares=-2), Causal()],
        [Causal(), Causal(shares=0), Causal(shares=1)],
    ],
)
def test_layers_that_are_not_alike_share_nothing(make_cache: MakeCache, specs: list[Spec]):
    with pytest.raises(ConfigError, match="shares the keys and values of layer"):
        make_cache(1, 8, specs)


def test_lengths_resuming_and_prefixes(make_cache: MakeCache):
    cache = make_cache(2, 100, [Causal(), Sliding(3, 5), Chunked(4)])
    assert cache.max_batch == 16
    cache.start_forward(run(0, 0, 10))
    cache.start_forward(step((0, 10)))
    assert (cache.length(0), cache.length(1)) == (11, 0)
    assert [p for p in range(13) if cache.can_resume(0, p)] == [0, 8, 9, 10, 11]
    cache.copy_prefix(0, 1, 9)
    assert cache.length(1) == 9 and cache.can_resume(1, 9)
    cache.remove(0, 8, None)
    assert cache.length(0) == 8 and cache.can_resume(0, 8)
    cache.wipe(1)
    assert cache.length(1) == 0 and cache.length(0) == 8


def test_a_batch_of_one_is_the_smallest_of_all(make_cache: MakeCache):
    assert make_cache(1, 8, [Causal(), Sliding(2)], max_batch=30).max_batch == 8


@pytest.mark.parametrize("layers", [[Sliding(2), Causal()], [Causal(), Sliding(2)]], ids=str)
def test_a_full_cache_unwinds_the_others(make_cache: MakeCache, layers: list[Spec]):
    cache = make_cache(2, 4, layers, max_batch=4)
    cache.start_forward(run(0, 0, 4))
    cache.start_forward(run(0, 4, 7))
    before = snapshot(cache)
    for reserve, batch in ((False, run(0, 7, 9)), (True, run(1, 0, 9))):
        with pytest.raises(KvCacheFull):
            cache.start_forward(batch, reserve)
        assert snapshot(cache) == before and not batch.placed
    batch = step((0, 7))
    cache.start_forward(batch)
    assert len(batch.placed) == 2
    cache.undo(batch)
    assert snapshot(cache) == before and not batch.placed


class Failing(Exception):
    pass


def test_any_failure_unwinds_the_others(make_cache: MakeCache, monkeypatch: pytest.MonkeyPatch):
    cache = make_cache(1, 8, [Sliding(2), Chunked(2), Causal()])
    cache.start_forward(run(0, 0, 4))
    before, batch = snapshot(cache), step((0, 4))

    def fail(*_: object) -> None:
        raise Failing

    monkeypatch.setattr(parts(cache)[2], "start_forward", fail)
    with pytest.raises(Failing):
        cache.start_forward(batch)
    assert snapshot(cache) == before and not batch.placed


@pytest.mark.parametrize("stops", ["refused", "before", "after"])
@pytest.mark.parametrize("at", range(3))
def test_all_move_on_or_none(
    make_cache: MakeCache, monkeypatch: pytest.MonkeyPatch, stops: str, at: int
):
    cache = make_cache(1, 8, [Sliding(2), Chunked(4), Causal()])
    cache.start_forward(run(0, 0, 4))
    cache.start_forward(batch := step((0, 4)))
    before = snapshot(cache)
    part = parts(cache)[at]
    advance = part.advance

    def stopped(batch: Step) -> bool:
        if stops == "refused":
            return False
        if stops == "after":
            assert advance(batch)
        raise Failing

    monkeypatch.setattr(part, "advance", stopped)
    batch.positions += 1
    if stops == "refused":
        assert not cache.advance(batch)
    else:
        with pytest.raises(Failing):
            cache.advance(batch)
    assert snapshot(cache) == before
    monkeypatch.undo()
    cache.start_forward(batch := step((0, 5)))
    batch.positions += 1
    assert cache.advance(batch) and cache.length(0) == 7
    cache.undo(batch)
    assert cache.length(0) == 6


def test_a_refused_removal_changes_none(make_cache: MakeCache):
    """The window has lost what the sequences share and could move; the other one cannot."""
    cache = make_cache(2, 100, [Sliding(2), Causal()])
    cache.start_forward(run(0, 0, 6))
    cache.copy_prefix(0, 1, 3)
    cache.start_forward(step((0, 6)))
    before = snapshot(cache)
    with pytest.raises(Error, match="shares"):
        cache.remove(0, 0, 2)
    assert snapshot(cache) == before
    cache.remove(0, 0, None)
    assert cache.length(0) == 0 and cache.can_resume(0, 0)


def test_closing_closes_all(make_cache: MakeCache):
    cache = make_cache(1, 8, MIXED)
    cache.close()
    cache.close()
    for part in parts(cache):
        with pytest.raises(GraphError, match="closed"):
            part.stored.layer(0, (8, 2), (8, 2))


def test_what_is_no_declaration(make_cache: MakeCache):
    with pytest.raises(TensorError, match="entry 1 is 'causal'"):
        make_cache(1, 4, [Causal(), "causal"])


def test_a_kind_that_cannot_be_made_leaves_nothing(make_cache: MakeCache):
    with pytest.raises(Unsupported, match="bf16"):
        make_cache(1, 4, MIXED, DType.BF16)


@pytest.mark.parametrize("flash", [True, False], ids=["flash", "plain"])
@pytest.mark.parametrize("dtype", [DType.F16, DType.Q8_0], ids=str)
def test_a_dry_run_lays_all_of_them_out(flash: bool, dtype: DType):
    if dtype.is_quantized and not flash:
        return
    layers: list[Spec] = [Causal(Rope(32)), Sliding(5), Sliding(5, 9), Chunked(4)]
    with small_backend(flash, alloc_memory=False) as backend:
        size = {"sequences": 2, "capacity": 16, "max_batch": 4}
        cache = new_cache(backend, layers, dtype=dtype, **size)
        batch = run(0, 0, cache.max_batch)
        cache.start_forward(batch, reserve=True)
        with backend.new_context() as ctx:
            with ctx.trace():
                q = ctx.input().zeros(DType.F32, 32, 2, 4)
                for layer in cache.layers(ctx, batch).values():
                    layer.put(q, q)
                    out = q.scaled_dot_product_attention(
                        *layer.get(), scale=1.0, cache_config_applied=True
                    )
                    ctx.forward(out)
            backend.allocate(ctx.graph)
            backend.reserve(ctx.graph)
        memory = backend.backend_memory().cpu
        cells = [part.table.count for part in parts(cache)]
        assert cells == [32, 16, 24, 12]
        wanted = [2 * dtype.row_size(64) * n for n in cells]
        assert list(memory.cache)[:4] == pytest.approx(wanted, rel=0.05)  # alignment
        cache.close()


def test_masks_are_made_for_each_kind(make_cache: MakeCache):
    cache = make_cache(1, 16, [Causal(), Sliding(2)])
    cache.start_forward(run(0, 0, 4))
    batch = step((0, 4))
    cache.start_forward(batch)
    visible = [int(np.isfinite(placed.mask).sum()) for placed in batch.placed.values()]
    assert visible == [5, 2]
