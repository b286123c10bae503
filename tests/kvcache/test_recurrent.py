"""Which states a recurrent cache keeps, and how layers get at them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ggmodel.errors import ConfigError, Error, OutOfMemory, TensorError
from ggmodel.kvcache import (
    Causal,
    LayerStates,
    Part,
    Recurrent,
    RecurrentCache,
    Sliding,
    WrapperCache,
    new_cache,
)
from ggmodel.ml import Backend, Context, DType, Tensor
from ggmodel.model import Step
from tests.kvcache.conftest import small_backend
from tests.kvcache.naive import run, step

MakeCache = Callable[..., Any]

SUM = Recurrent(checkpoints=2, sum=(4,))


def resumable(cache: Any, sequence: int) -> list[int]:
    return [p for p in range(cache.length(sequence) + 3) if cache.can_resume(sequence, p)]


def snapshot(cache: RecurrentCache) -> tuple[list, list]:
    return list(cache.states), list(cache.lengths)


def forward(cache: RecurrentCache, batch: Step, rows: np.ndarray) -> np.ndarray:
    """Adds rows [n, 4] to the state of the first layer, which comes back for each: [n, 4]."""
    cache.start_forward(batch)
    return run_placed(cache, batch, rows)


def run_placed(cache: RecurrentCache, batch: Step, rows: np.ndarray) -> np.ndarray:
    with cache.backend.new_context() as ctx, ctx.trace():
        layer = cache.layers(ctx, batch)[0]
        y = layer.each(add_up, ctx.input().from_floats(rows))
        ctx.forward(y)
        executable = cache.backend.compile(ctx.graph, (y,))
        try:
            executable.run(batch)
            return executable.value(y).reshape(rows.shape).copy()
        finally:
            executable.close()


def add_up(part: Part, x: Tensor) -> Tensor:
    before = part.get("sum").reshape(4, 1, part.sequences)
    sums = x.permute(1, 0).contiguous().cumsum().permute(1, 0).contiguous() + before
    part.put("sum", sums.slice(1, part.n - 1, part.n))
    return sums


ROWS = np.arange(40, dtype=np.float32).reshape(10, 4)


# what is kept


def test_a_sequence_is_resumed_where_it_ends_and_where_pieces_of_it_ended(make_cache: MakeCache):
    cache = make_cache(1, 99, [SUM])
    assert (cache.length(0), resumable(cache, 0)) == (0, [0])
    for begin, end, wanted in (
        (0, 4, [0, 4]),
        (4, 5, [0, 4, 5]),
        (5, 6, [0, 4, 6]),
        (6, 9, [0, 4, 9]),
        (9, 10, [0, 4, 9, 10]),
        (10, 12, [0, 4, 9, 12]),
        (12, 14, [0, 9, 12, 14]),
        (14, 15, [0, 12, 14, 15]),
    ):
        cache.start_forward(run(0, begin, end))
        assert (cache.length(0), resumable(cache, 0)) == (end, wanted)
    assert [cache.resume_point(0, p) for p in (0, 11, 12, 13, 14, 15, 99)] == [
        *(0, 0, 12, 12, 14, 15, 15)
    ]


def test_no_checkpoints_at_all(make_cache: MakeCache):
    cache = make_cache(1, 99, [Recurrent(checkpoints=0, sum=(4,))])
    for begin in (0, 3, 6):
        cache.start_forward(run(0, begin, begin + 3))
        assert resumable(cache, 0) == [0, begin + 3]
    assert cache.slots == 3


def test_removal_at_the_end_keeps_earlier_states(make_cache: MakeCache):
    cache = make_cache(1, 99, [SUM])
    for begin, end in ((0, 4), (4, 8), (8, 9)):
        cache.start_forward(run(0, begin, end))
    cache.remove(0, 20, None)
    cache.remove(0, 5, 5)
    assert (cache.length(0), resumable(cache, 0)) == (9, [0, 4, 8, 9])
    cache.remove(0, 8, 9)
    assert (cache.length(0), resumable(cache, 0)) == (8, [0, 4, 8])
    cache.remove(0, 6, None)
    assert (cache.length(0), resumable(cache, 0)) == (6, [0, 4])
    for begin, point in ((6, 4), (4, 4), (3, 0), (9, 4)):
        with pytest.raises(
            Error, match=rf"0, of 6 .* cannot go on at position {begin}; remove\(0, {point}, None\)"
        ):
            cache.start_forward(run(0, begin, begin + 1))
    cache.remove(0, 4, None)
    cache.start_forward(run(0, 4, 5))
    assert (cache.length(0), resumable(cache, 0)) == (5, [0, 4, 5])


@pytest.mark.parametrize("layers", [[SUM], [Causal(), SUM], [SUM, Causal()]], ids=len)
def test_removal_in_the_middle_is_refused(make_cache: MakeCache, layers: list):
    cache = make_cache(1, 99, layers)
    cache.start_forward(run(0, 0, 4))
    cache.start_forward(run(0, 4, 9))
    for begin, end, point in ((5, 6, 4), (0, 1, 0), (2, 8, 0)):
        with pytest.raises(Error, match=rf"cannot lose.* {begin} to {end}; remove\(0, {point}, "):
            cache.remove(0, begin, end)
        assert (cache.length(0), resumable(cache, 0)) == (9, [0, 4, 9])
    cache.remove(0, 0, None)
    assert (cache.length(0), resumable(cache, 0)) == (0, [0])


def test_a_prefix_is_what_can_be_resumed_of_it(make_cache: MakeCache):
    cache = make_cache(3, 99, [SUM])
    for begin, end in ((0, 4), (4, 8), (8, 9)):
        cache.start_forward(run(0, begin, end))
    cache.start_forward(run(1, 0, 2))
    cache.copy_prefix(0, 1, 8)
    assert (cache.length(1), resumable(cache, 1)) == (8, [0, 4, 8])
    cache.copy_prefix(0, 2, 7)
    assert (cache.length(2), resumable(cache, 2)) == (7, [0, 4])
    cache.copy_prefix(2, 2, 4)
    assert (cache.length(2), resumable(cache, 2)) == (4, [0, 4])
    assert len({s.slot for states in cache.states for s in states}) == 3
    assert resumable(cache, 0) == [0, 4, 8, 9]


def test_there_is_a_free_slot_for_each_sequence(make_cache: MakeCache):
    cache = make_cache(3, 99, [SUM])
    for i in range(12):
        pieces = [(s, p) for s in range(3) for p in range(2 * i, 2 * i + 2)]
        cache.start_forward(step(*pieces))
        held = [state.slot for states in cache.states for state in states]
        assert len(set(held)) == len(held) and 0 not in held and max(held) < cache.slots
    assert len(held) == 9 and cache.slots == 13


def test_undoing_goes_back(make_cache: MakeCache):
    cache = make_cache(2, 99, [SUM])
    cache.start_forward(run(0, 0, 4))
    before, batch = snapshot(cache), step((0, 4), (1, 0), (1, 1))
    cache.start_forward(batch)
    assert snapshot(cache) != before
    cache.undo(batch)
    cache.undo(batch)
    assert snapshot(cache) == before and not batch.placed
    cache.start_forward(batch, reserve=True)
    cache.undo(batch)
    assert snapshot(cache) == before and not batch.placed


def test_a_step_may_be_placed_while_the_one_before_it_is_computed(make_cache: MakeCache):
    """And both taken back, when that one fails."""
    cache = make_cache(2, 99, [SUM])
    forward(cache, step((0, 0), (1, 0)), ROWS[:2])
    before = snapshot(cache)
    now, then = step((0, 1), (1, 1)), step((0, 2))
    for batch in (now, then):
        cache.start_forward(batch)
    run_placed(cache, now, ROWS[2:4])
    cache.undo(then)
    cache.undo(now)
    assert snapshot(cache) == before
    for batch in (now, then):
        cache.start_forward(batch)
    np.testing.assert_array_equal(run_placed(cache, now, ROWS[4:6]), ROWS[:2] + ROWS[4:6])
    np.testing.assert_array_equal(
        run_placed(cache, then, ROWS[6:7])[0], ROWS[0] + ROWS[4] + ROWS[6]
    )


@pytest.mark.parametrize(
    "batch",
    [
        step((0, 1)),
        step((0, 0), (0, 2)),
        step((0, 1), (0, 0)),
        step((0, 0), (0, 0)),
        step((0, 0), (1, 0), (0, 0)),
        step((1, 0), (0, 3)),
    ],
    ids=lambda b: str(list(zip(b.sequences.tolist(), b.positions.tolist(), strict=True))),
)
@pytest.mark.parametrize("layers", [[SUM], [Causal(), SUM]], ids=["alone", "mixed"])
def test_steps_that_cannot_be_placed(make_cache: MakeCache, layers: list, batch: Step):
    cache = make_cache(2, 99, layers)
    with pytest.raises(Error, match=r"sequence 0(, of 0 .* position [13];| are not in one)"):
        cache.start_forward(batch)
    assert not batch.placed and cache.length(0) == cache.length(1) == 0


# behind one face


def test_layers_of_a_kind_share_slots(make_cache: MakeCache):
    other = Recurrent(checkpoints=2, sum=(4,), conv=(3, 2))
    cache = make_cache(2, 8, [SUM, Causal(), other, Recurrent(sum=(4,))])
    assert isinstance(cache, WrapperCache)
    shapes = [
        {i: {n: t.shape for n, t in s.items()} for i, s in part.stored.items()}
        for part in cache.caches
        if isinstance(part, RecurrentCache)
    ]
    assert shapes == [
        {0: {"sum": (4, 9)}, 2: {"sum": (4, 9), "conv": (6, 9)}},
        {3: {"sum": (4, 13)}},
    ]


def test_all_of_them_have_to_resume(make_cache: MakeCache):
    cache = make_cache(2, 99, [SUM, Sliding(3, 5), Causal()])
    for begin, end in ((0, 6), (6, 9), (9, 10)):
        cache.start_forward(run(0, begin, end))
    assert resumable(cache, 0) == [0, 9, 10]
    assert [cache.resume_point(0, p) for p in (0, 6, 8, 9, 10)] == [0, 0, 0, 9, 10]
    cache.copy_prefix(0, 1, 9)
    assert resumable(cache, 1) == [0, 9] and cache.length(1) == 9


def test_caches_that_keep_all_resume_anywhere(make_cache: MakeCache):
    for layers in ([Causal()], [Causal(), Sliding(3, 99)]):
        cache = make_cache(1, 99, layers)
        cache.start_forward(run(0, 0, 6))
        assert [cache.resume_point(0, p) for p in (0, 3, 6)] == [0, 3, 6]
    cache = make_cache(1, 99, [Sliding(2)])
    cache.start_forward(run(0, 0, 6))
    cache.start_forward(run(0, 6, 7))
    assert [cache.resume_point(0, p) for p in (3, 6, 7)] == [0, 6, 7]


# states as tensors


def test_sequences_see_their_own_states(make_cache: MakeCache):
    cache = make_cache(3, 99, [SUM])
    first = forward(cache, step((1, 0), (0, 0), (0, 1), (2, 0), (2, 1)), ROWS[:5])
    np.testing.assert_array_equal(
        first, [ROWS[0], ROWS[1], ROWS[1:3].sum(0), ROWS[3], ROWS[3:5].sum(0)]
    )
    then = forward(cache, step((2, 2), (0, 2), (1, 1)), ROWS[5:8])
    np.testing.assert_array_equal(
        then, [ROWS[3:6].sum(0), ROWS[1:3].sum(0) + ROWS[6], ROWS[0] + ROWS[7]]
    )


def test_a_shared_state_parts_when_one_goes_on(make_cache: MakeCache):
    cache = make_cache(2, 99, [SUM])
    forward(cache, run(0, 0, 2), ROWS[:2])
    cache.copy_prefix(0, 1, 2)
    for sequence, row in ((1, 4), (0, 5)):
        got = forward(cache, step((sequence, 2)), ROWS[row : row + 1])
        np.testing.assert_array_equal(got[0], ROWS[:2].sum(0) + ROWS[row])
    cache.remove(0, 0, None)
    np.testing.assert_array_equal(forward(cache, step((0, 0)), ROWS[:1]), ROWS[:1])
    got = forward(cache, step((1, 3)), ROWS[6:7])
    np.testing.assert_array_equal(got[0], ROWS[[0, 1, 4, 6]].sum(0))


def test_a_step_that_was_computed_can_be_undone(make_cache: MakeCache):
    cache = make_cache(2, 99, [SUM])
    forward(cache, step((0, 0), (1, 0)), ROWS[:2])
    batch = step((0, 1), (1, 1))
    forward(cache, batch, np.full((2, 4), np.nan, np.float32))
    cache.undo(batch)
    got = forward(cache, batch, ROWS[2:4])
    np.testing.assert_array_equal(got, ROWS[:2] + ROWS[2:4])


def test_wiping_leaves_nothing_behind_but_what_others_have(make_cache: MakeCache):
    cache = make_cache(2, 99, [SUM])
    forward(cache, run(0, 0, 2), 1 + ROWS[:2])
    cache.copy_prefix(0, 1, 2)
    forward(cache, run(0, 2, 4), ROWS[2:4])
    for p in range(4, 8):
        forward(cache, step((0, p)), np.full((1, 4), np.nan, np.float32))
    cache.wipe(0)
    states = cache.stored[0]["sum"].numpy()
    assert np.flatnonzero(states.any(axis=1)).tolist() == [cache.states[1][0].slot]
    assert cache.length(0) == 0 and cache.length(1) == 2
    got = forward(cache, step((0, 0), (1, 2)), ROWS[4:6])
    np.testing.assert_array_equal(got, [ROWS[4], 2 + ROWS[:2].sum(0) + ROWS[5]])


def test_groups_are_what_a_graph_depends_on(make_cache: MakeCache):
    cache = make_cache(4, 99, [SUM])
    batch = step((2, 0), (0, 0), (1, 0), (1, 1), (3, 0), (3, 1))
    cache.start_forward(batch)
    assert cache.shape_key(batch) == ((1, 2), (2, 2))
    batch = step((0, 1), (1, 2), (1, 3), (1, 4), (2, 1))
    cache.start_forward(batch)
    assert cache.shape_key(batch) == ((1, 1), (3, 1), (1, 1))


def test_a_closed_cache_frees_its_memory(backend: Backend, make_cache: MakeCache):
    before = sum(backend.backend_memory().cpu.cache)
    cache = make_cache(2, 8, [Recurrent(checkpoints=2, sum=(8,))])
    assert sum(backend.backend_memory().cpu.cache) - before == 4 * 8 * cache.slots
    cache.close()
    cache.close()
    assert sum(backend.backend_memory().cpu.cache) == before


@pytest.mark.parametrize("n", [1, 2, 3, 7])
def test_a_dry_run_lays_all_of_them_out(n: int):
    with small_backend(flash=True, alloc_memory=False) as backend:
        size = {"sequences": 3, "capacity": 16, "max_batch": 7}
        specs = [Recurrent(checkpoints=1, sum=(4,))] * 2
        cache: Any = new_cache(backend, specs, dtype=DType.F16, **size)
        batch = run(0, 0, n)
        cache.start_forward(batch, reserve=True)
        assert cache.length(0) == 0
        with backend.new_context() as ctx:
            with ctx.trace():
                rows = ctx.input().zeros(DType.F32, 4, n)
                for layer in cache.layers(ctx, batch).values():
                    ctx.forward(layer.each(add_up, rows))
            backend.allocate(ctx.graph)
            backend.reserve(ctx.graph)
        assert list(backend.backend_memory().cpu.cache)[:2] == [4 * 4 * cache.slots] * 2
        cache.close()


# what is no declaration, and what is no step


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ({}, "without states"),
        ({"conv": ()}, "'conv' has the shape"),
        ({"conv": (3, 0)}, "above 0"),
        ({"conv": (-3, 2)}, "above 0"),
        ({"ssm": (2, 2, 2, 2)}, "one to three dims"),
        ({"ssm": 4}, "shape 4"),
        ({"ssm": (2.0, 1)}, "shape"),
        ({"ssm": (2,), "checkpoints": -1}, "-1 checkpoints"),
        ({"ssm": (2,), "checkpoints": 1.5}, "1.5 checkpoints"),
    ],
    ids=str,
)
def test_declarations_that_cannot_be(shapes: dict, message: str):
    with pytest.raises(ConfigError, match=message):
        Recurrent(**shapes)


def test_states_that_do_not_fit_memory(make_cache: MakeCache):
    with pytest.raises(OutOfMemory):
        make_cache(1, 8, [Recurrent(ssm=(1 << 40, 1 << 20))])


Misuse = Callable[[Context, LayerStates, Tensor], Any]


def _twice(layer: LayerStates, x: Tensor) -> None:
    layer.each(add_up, x)
    layer.each(add_up, x)


def _put(*values: Callable[[Part, Tensor], Tensor], name: str = "sum"):
    def stepped(part: Part, x: Tensor) -> Tensor:
        for value in values:
            part.put(name, value(part, x))
        return x

    return lambda layer, x: layer.each(stepped, x)


def _old(part: Part, x: Tensor) -> Tensor:
    return part.get("sum")


@pytest.mark.parametrize(
    ("misuse", "message"),
    [
        (_twice, "layer 0 were stepped twice"),
        (lambda layer, x: layer.put(x, x), r"layer 0 is Recurrent .* each\(step, x\)"),
        (lambda layer, x: layer.get(), r"each\(step, x\)"),
        (lambda layer, x: layer.rotate(x, x), r"each\(step, x\)"),
        (lambda layer, x: layer.each(add_up, x.slice(1, 0, 2)), r"rows \[d, 3\].*\[4, 2\]"),
        (lambda layer, x: layer.each(add_up, x.reshape(2, 2, 3)), r"rows \[d, 3\].*\[2, 2, 3\]"),
        (lambda layer, x: layer.each(lambda part, x: x, x), r"without put\('sum'"),
        (_put(_old, _old), "'sum' of layer 0 was put twice"),
        (_put(lambda part, x: x), "4, 3.*12 elements"),
        (_put(_old, name="summ"), "no state 'summ'; it has sum"),
        (lambda layer, x: layer.each(lambda part, x: part.get("s"), x), "no state 's'"),
        (lambda layer, x: layer.each(lambda part, x: part.slots("s"), x), "no state 's'"),
        (
            lambda layer, x: layer.each(lambda p, x: p.put("sum", p.get("sum")), x),
            r"returned NoneType; it must return \[e, 3, 1\]",
        ),
        (
            lambda layer, x: layer.each(lambda p, x: p.put("sum", p.get("sum")) or p.get("sum"), x),
            r"returned .* \[4\]; it must return \[e, 3, 1\]",
        ),
    ],
)
def test_steps_that_are_none(make_cache: MakeCache, misuse: Any, message: str):
    cache, batch = make_cache(1, 8, [SUM]), run(0, 0, 3)
    cache.start_forward(batch)
    with cache.backend.new_context() as ctx, ctx.trace():
        layer = cache.layers(ctx, batch)[0]
        with pytest.raises(TensorError, match=message):
            misuse(layer, ctx.input().from_floats(ROWS[:3]))


def test_a_tentative_step_can_be_taken_back_until_the_next(make_cache: MakeCache):
    cache = make_cache(1, 99, [SUM])

    def tentative(begin: int, end: int) -> Step:
        batch = run(0, begin, end)
        batch.tentative = frozenset([0])
        cache.start_forward(batch)
        return batch

    for begin, end in ((0, 3), (3, 5), (5, 6)):
        cache.start_forward(run(0, begin, end))
    tentative(6, 10)
    assert resumable(cache, 0) == [0, 3, 5, 6, 10]
    cache.remove(0, cache.resume_point(0, 8), None)
    assert (cache.length(0), resumable(cache, 0)) == (6, [0, 3, 5, 6])
    cache.undo(tentative(6, 11))
    assert (cache.length(0), resumable(cache, 0)) == (6, [0, 3, 5, 6])
    tentative(6, 11)
    cache.start_forward(run(0, 11, 12))
    assert (cache.length(0), resumable(cache, 0)) == (12, [0, 3, 5, 12])
    without = make_cache(1, 99, [Recurrent(checkpoints=0, sum=(4,))])
    without.start_forward(run(0, 0, 3))
    batch = run(0, 3, 5)
    batch.tentative = frozenset([0])
    without.start_forward(batch)
    assert resumable(without, 0) == [0, 3, 5]
