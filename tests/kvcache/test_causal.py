"""The causal cache's bookkeeping."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ggmodel.errors import Error, KvCacheFull, TensorError, Unsupported
from ggmodel.kvcache import Causal, CausalCache, Sliding, causal
from ggmodel.kvcache.cells import Cells, Window
from ggmodel.ml import Backend, DType
from ggmodel.model import Step
from tests.kvcache.history import snapshot
from tests.kvcache.naive import Naive, run, seen, step

MakeCache = Callable[..., CausalCache]


def put(cache: CausalCache, batch: Step) -> list[set[int]]:
    cache.start_forward(batch)
    return seen(cache, batch)


def test_cells_are_rounded_up_to_the_padding(make_cache: MakeCache):
    assert make_cache(3, 3).table.count == 12
    assert make_cache(1, 5).table.count == 8


def test_masks_have_the_dtype_of_the_backend(make_cache: MakeCache, backend: Backend):
    batch = run(0, 0, 2)
    cache = make_cache(1, 8)
    cache.start_forward(batch)
    mask = batch.placed[cache].mask
    assert mask.dtype == backend.cache_config.mask_dtype.numpy
    assert mask.tolist() == [[0] + [-np.inf] * 3, [0, 0, -np.inf, -np.inf]]


def test_the_range_grows_by_the_padding(make_cache: MakeCache):
    cache = make_cache(1, 12)
    ranges = []
    for p in range(9):
        batch = step((0, p))
        cache.start_forward(batch)
        ranges.append(batch.placed[cache].window)
        assert cache.shape_key(batch) == ranges[-1]
    assert ranges == [Window(0, size) for size in (4, 4, 4, 4, 8, 8, 8, 8, 12)]


# Scenarios: what is done, then a batch and the positions (sequence → set) each row sees.
Do = Callable[[CausalCache], object]


def puts(*tokens: tuple[int, int]) -> Do:
    return lambda cache: cache.start_forward(step(*tokens))


def removes(sequence: int, begin: int, end: int | None) -> Do:
    return lambda cache: cache.remove(sequence, begin, end)


def copies(source: int, target: int, n: int) -> Do:
    return lambda cache: cache.copy_prefix(source, target, n)


SCENARIOS: dict[str, tuple[list[Do], Step, list[set[int]]]] = {
    "the first token": ([], step((0, 0)), [{0}]),
    "a batch sees itself up to each row": ([], run(0, 0, 3), [{0}, {0, 1}, {0, 1, 2}]),
    "interleaved sequences see only themselves": (
        [puts((0, 0), (1, 0), (0, 1)), puts((1, 1), (0, 2))],
        step((1, 2), (0, 3)),
        [{1, 3, 5}, {0, 2, 4, 6}],
    ),
    "rows in any order": ([], step((0, 1), (0, 0)), [{0, 1}, {1}]),
    "removal at the end": (
        [puts((0, 0), (0, 1), (0, 2), (0, 3)), removes(0, 2, None)],
        step((0, 2)),
        [{0, 1, 2}],
    ),
    "removal up to the end": (
        [puts((0, 0), (0, 1), (0, 2), (0, 3)), removes(0, 2, 4)],
        step((0, 2)),
        [{0, 1, 2}],
    ),
    "removal in the middle, growth into freed cells": (
        [puts((0, 0), (0, 1), (0, 2), (0, 3), (0, 4)), removes(0, 1, 3)],
        step((0, 3), (0, 4)),
        [{0, 3, 4, 1}, {0, 3, 4, 1, 2}],
    ),
    "removal at the beginning": (
        [puts((0, 0), (0, 1), (0, 2)), removes(0, 0, 2)],
        step((0, 1)),
        [{2, 0}],
    ),
    "an empty removal": (
        [puts((0, 0), (0, 1)), removes(0, 1, 1), removes(0, 1, 0), removes(0, 5, 9)],
        step((0, 2)),
        [{0, 1, 2}],
    ),
    "removal from one of two": (
        [puts((0, 0), (1, 0), (0, 1), (1, 1)), removes(0, 0, None)],
        step((1, 2), (0, 0)),
        [{1, 3, 0}, {2}],
    ),
    "a prefix copied, then divergence": (
        [puts((0, 0), (0, 1), (0, 2)), copies(0, 1, 2)],
        step((1, 2), (0, 3)),
        [{0, 1, 3}, {0, 1, 2, 4}],
    ),
    "a copy replaces what the target held": (
        [puts((1, 0), (1, 1)), puts((0, 0)), copies(0, 1, 1)],
        step((1, 1)),
        [{2, 0}],
    ),
    "the source of a copy may go": (
        [puts((0, 0), (0, 1)), copies(0, 1, 2), removes(0, 0, None)],
        step((1, 2), (0, 0)),
        [{0, 1, 2}, {3}],
    ),
    "shared cells removed by one stay for the other": (
        [puts((0, 0), (0, 1), (0, 2)), copies(0, 1, 3), removes(1, 1, None)],
        step((0, 3), (1, 1)),
        [{0, 1, 2, 3}, {0, 4}],
    ),
    "a prefix of itself": (
        [puts((0, 0), (0, 1), (0, 2)), copies(0, 0, 1)],
        step((0, 1)),
        [{0, 1}],
    ),
    "own cells behind a shared prefix may move": (
        [puts((0, 0), (0, 1)), copies(0, 1, 1), puts((1, 1), (1, 2), (1, 3)), removes(1, 1, 2)],
        step((1, 3), (0, 2)),
        [{0, 3, 4, 2}, {0, 1, 5}],
    ),
}


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_scenarios(make_cache: MakeCache, scenario: str):
    before, batch, want = SCENARIOS[scenario]
    cache = make_cache(2, 8)
    for do in before:
        do(cache)
    assert put(cache, batch) == want


def test_lengths_and_resuming(make_cache: MakeCache):
    cache = make_cache(2, 8)
    assert cache.length(0) == 0
    assert cache.can_resume(0, 0) and not cache.can_resume(0, 1)
    cache.start_forward(run(0, 0, 4))
    assert (cache.length(0), cache.length(1)) == (4, 0)
    assert [cache.can_resume(0, p) for p in range(6)] == [True] * 5 + [False]
    cache.copy_prefix(0, 1, 2)
    assert cache.length(1) == 2
    assert cache.can_resume(1, 2) and not cache.can_resume(1, 3)
    cache.remove(0, 1, 2)
    assert cache.length(0) == 3


def test_copies_share_cells(make_cache: MakeCache):
    cache = make_cache(4, 2)
    cache.start_forward(run(0, 0, 6))
    for target in (1, 2, 3):
        cache.copy_prefix(0, target, 6)
    assert (cache.table.position >= 0).sum() == 6
    cache.start_forward(step((1, 6), (2, 6)))  # the last two cells
    with pytest.raises(KvCacheFull):
        cache.start_forward(step((3, 6)))


def test_a_full_cache_changes_nothing(make_cache: MakeCache):
    cache = make_cache(2, 4)
    cache.start_forward(run(0, 0, 5))
    before = snapshot(cache)
    batch = run(1, 0, 4)
    with pytest.raises(KvCacheFull, match=r"4 tokens.* 3 of 8"):
        cache.start_forward(batch)
    assert snapshot(cache) == before
    assert not batch.placed
    assert put(cache, run(1, 0, 3))[2] == {5, 6, 7}


def test_reserving_touches_nothing(make_cache: MakeCache):
    cache = make_cache(2, 4)
    cache.start_forward(run(0, 0, 7))
    before = snapshot(cache)
    batch = run(1, 0, 8)
    cache.start_forward(batch, reserve=True)
    placed = batch.placed[cache]
    assert placed.window == Window(0, 8) and cache.table.count == 8
    assert len(placed.cells) == 8 and placed.mask is None
    assert snapshot(cache) == before
    with pytest.raises(KvCacheFull):
        cache.start_forward(run(0, 0, 9), reserve=True)
    assert snapshot(cache) == before


def test_shared_cells_cannot_move(make_cache: MakeCache):
    cache = make_cache(2, 8)
    cache.start_forward(run(0, 0, 4))
    cache.copy_prefix(0, 1, 4)
    cache.start_forward(step((1, 4)))
    before = snapshot(cache)
    for sequence in (0, 1):
        with pytest.raises(Error, match="shares"):
            cache.remove(sequence, 1, 2)
        assert snapshot(cache) == before
    cache.remove(1, 0, None)  # and computes it again
    assert cache.length(0) == 4 and cache.length(1) == 0
    assert put(cache, run(1, 0, 2)) == [{4}, {4, 5}]
    cache.remove(0, 1, 2)
    assert cache.length(0) == 3


SEQUENCES, CAPACITY = 3, 5
NUMBERS = st.integers(0, SEQUENCES - 1)
POSITIONS = st.integers(0, 8)
ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.lists(NUMBERS, min_size=1, max_size=6)),
        st.tuples(st.just("on"), st.booleans()),
        st.tuples(st.just("end"), NUMBERS, POSITIONS),
        st.tuples(st.just("middle"), NUMBERS, POSITIONS, POSITIONS),
        st.tuples(st.just("copy"), NUMBERS, NUMBERS, POSITIONS),
        st.tuples(st.just("clear"), NUMBERS),
    ),
    max_size=16,
)


def move_on(cache: CausalCache, last: Step) -> bool:
    """A step that has not moved on has its positions again."""
    last.positions += 1
    moved = cache.advance(last)
    last.positions -= not moved
    return moved


def advanced(cache: CausalCache, naive: Naive, last: Step, taken_back: bool) -> None:
    """Moves the last step on, if each of its sequences has one token in it, as `advance` wants."""
    sequences = last.sequences.tolist()
    if not sequences or len(set(sequences)) < len(sequences):
        return
    before = snapshot(cache)
    if not move_on(cache, last):
        assert snapshot(cache) == before
        return
    cells = last.placed[cache].cells.tolist()
    assert not set(cells) & naive.used()
    batch = [(s, naive.length(s)) for s in sequences]
    if taken_back:
        cache.undo(last)
        assert snapshot(cache) == before
        assert not move_on(cache, last)
        return
    for (sequence, position), cell in zip(batch, cells, strict=True):
        naive.lists[sequence].append((cell, position))
    assert last.positions.tolist() == [p for _, p in batch]
    assert seen(cache, last) == [naive.visible(s, p) for s, p in batch]


def test_a_step_of_single_tokens_moves_on(make_cache: MakeCache):
    cache = make_cache(2, 12)
    cache.start_forward(run(0, 0, 3))
    cache.start_forward(run(1, 0, 2))
    batch = step((0, 3), (1, 2))
    assert put(cache, batch) == [{0, 1, 2, 5}, {3, 4, 6}]
    assert not move_on(cache, batch)  # cell 8 lies behind the range of 8 cells
    cache.start_forward(batch := step((0, 4), (1, 3)))
    assert move_on(cache, batch)
    assert seen(cache, batch) == [{0, 1, 2, 5, 7, 9}, {3, 4, 6, 8, 10}]
    assert not move_on(cache, batch)
    assert batch.positions.tolist() == [5, 4]
    assert [cache.length(s) for s in range(2)] == [6, 5]


@pytest.mark.parametrize(
    "change",
    [
        lambda cache: cache.start_forward(step((1, 0))),
        lambda cache: cache.remove(0, 1, 2),
        lambda cache: cache.remove(0, 3, None),
        lambda cache: cache.copy_prefix(0, 1, 2),
        lambda cache: cache.wipe(1),
    ],
    ids=["put", "removed", "cut", "copied", "wiped"],
)
def test_a_step_does_not_move_on_once_something_has_changed(make_cache: MakeCache, change: Do):
    cache = make_cache(2, 12)
    cache.start_forward(run(0, 0, 2))
    batch = step((0, 2))
    cache.start_forward(batch)
    assert move_on(cache, batch)
    change(cache)
    before = snapshot(cache)
    assert not move_on(cache, batch)
    assert snapshot(cache) == before and batch.positions.tolist() == [3]


def test_groups_do_not_move_on(make_cache: MakeCache):
    cache = make_cache(1, 12)
    cache.start_forward(batch := replace(step((0, 0)), groups=np.ones(1, np.int32)))
    assert not move_on(cache, batch)


@given(actions=ACTIONS)
@settings(
    derandomize=True,
    deadline=None,
    max_examples=150,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],  # a new cache for each example
)
def test_any_history_gives_the_masks_of_the_naive_cache(make_cache: MakeCache, actions: list):
    cache = make_cache(SEQUENCES, CAPACITY)
    naive = Naive(SEQUENCES, cache.table.count)
    last = Step(*(np.zeros(0, np.int32) for _ in range(4)))
    for name, *rest in actions:
        if name == "on":
            advanced(cache, naive, last, taken_back=rest[0])
        elif name == "put":
            batch: list[tuple[int, int]] = []
            for s in rest[0]:
                batch.append((s, naive.length(s) + sum(t == s for t, _ in batch)))
            given_step = step(*batch)
            cells = naive.put(batch)
            if cells is None:
                before = snapshot(cache)
                with pytest.raises(KvCacheFull):
                    cache.start_forward(given_step)
                assert snapshot(cache) == before
                continue
            got = put(cache, given_step)
            last = given_step
            assert given_step.placed[cache].cells.tolist() == cells
            assert got == [naive.visible(s, p) for s, p in batch]
            looked_at = {c for s, _ in batch for c, _ in naive.lists[s]}
            begin, end = min(looked_at) // 4 * 4, -(-(max(looked_at) + 1) // 4) * 4
            assert given_step.placed[cache].window == Window(begin, end - begin)
        elif name == "copy":
            source, target, n = rest
            naive.copy_prefix(source, target, n)
            cache.copy_prefix(source, target, n)
        else:
            sequence, begin = rest[0], rest[1] if name != "clear" else 0
            end = rest[2] if name == "middle" else None
            if naive.remove(sequence, begin, end):
                cache.remove(sequence, begin, end)
            else:
                before = snapshot(cache)
                with pytest.raises(Error, match="shares"):
                    cache.remove(sequence, begin, end)
                assert snapshot(cache) == before
        for s in range(SEQUENCES):
            assert cache.length(s) == naive.length(s)
            assert cache.can_resume(s, 3) == naive.can_resume(s, 3)


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
@pytest.mark.parametrize(
    ("owner", "name"),
    [(Cells, "find"), (Cells, "write"), (CausalCache, "_write"), (causal, "look")],
)
def test_a_step_that_is_interrupted_leaves_nothing(
    make_cache: MakeCache,
    monkeypatch: pytest.MonkeyPatch,
    owner: object,
    name: str,
    error: type[BaseException],
):
    cache = make_cache(2, 8, [Sliding(2)])
    for p in range(4):
        put(cache, step((0, p), (1, p)))
    before = snapshot(cache)
    original, calls = getattr(owner, name), []

    def interrupted(*args: object) -> None:
        original(*args)
        calls.append(args)
        if len(calls) == 1:  # taking back writes, too
            raise error

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, interrupted)
        with pytest.raises(error):
            cache.start_forward(step((0, 4), (1, 4)))
    assert snapshot(cache) == before
    assert put(cache, step((0, 4), (1, 4))) is not None


def test_distances_are_of_the_positions_in_the_cells_of_a_step(make_cache: MakeCache):
    """In steps that move on, and behind positions that were forgotten; those that a later step
    overwrites stay those of the step."""
    cache = make_cache(2, 12, [Causal(relative=True)])
    cache.start_forward(first := run(0, 0, 3))
    cache.start_forward(run(1, 0, 2))
    assert first.placed[cache].positions.tolist() == [0, 1, 2, -1]
    cache.start_forward(batch := step((0, 3)))
    assert batch.placed[cache].positions.tolist() == [0, 1, 2, 0, 1, 3, -1, -1]
    assert move_on(cache, batch)
    assert batch.placed[cache].positions.tolist() == [0, 1, 2, 0, 1, 3, 4, -1]
    cache.remove(0, 1, 3)
    cache.start_forward(later := step((0, 3)))
    held, cells = later.placed[cache].positions, seen(cache, later)[0]
    assert sorted(held[cell] for cell in cells) == [0, 1, 2, 3]
    assert batch.placed[cache].positions.tolist() == [0, 1, 2, 0, 1, 3, 4, -1]


def test_distances_are_for_layers_that_are_declared_so(make_cache: MakeCache):
    cache = make_cache(1, 8)
    cache.start_forward(batch := run(0, 0, 2))
    with cache.stored.backend.new_context() as ctx:
        memory: Any = cache.layers(ctx, batch)[0]
        with pytest.raises(TensorError, match=r"declare Causal\(relative=True\) in caches"):
            memory.by_distance(lambda far: far)
    assert batch.placed[cache].positions is None
    with pytest.raises(Unsupported, match="use kv_type 'f16'"):
        make_cache(1, 8, [Causal(relative=True)], DType.Q8_0)
