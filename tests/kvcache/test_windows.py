"""Caches of which positions see only some: windows and chunks; and groups that see each other."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from ggmodel.errors import ConfigError, KvCacheFull
from ggmodel.kvcache import CacheSpec, Causal, CausalCache, Chunked, Sliding
from ggmodel.model import Step
from ggmodel.nn import Rope
from tests.kvcache.history import snapshot
from tests.kvcache.naive import run, seen, step

MakeCache = Callable[..., CausalCache]


def sees(cache: CausalCache, batch: Step) -> list[set[int]]:
    """Stores a batch: the positions that each of its rows sees."""
    cache.start_forward(batch)
    return [set(cache.table.position[sorted(cells)].tolist()) for cells in seen(cache, batch)]


@pytest.mark.parametrize(
    ("spec", "wanted"),
    [
        (Sliding(1), [{0}, {1}, {2}, {3}, {4}, {5}]),
        (Sliding(3), [{0}, {0, 1}, {0, 1, 2}, {1, 2, 3}, {2, 3, 4}, {3, 4, 5}]),
        (Sliding(3, 5), [{0}, {0, 1}, {0, 1, 2}, {1, 2, 3}, {2, 3, 4}, {3, 4, 5}]),
        (Sliding(9), [set(range(p + 1)) for p in range(6)]),
        (Sliding(1 << 40), [set(range(p + 1)) for p in range(6)]),
        (Chunked(1), [{0}, {1}, {2}, {3}, {4}, {5}]),
        (Chunked(4), [{0}, {0, 1}, {0, 1, 2}, {0, 1, 2, 3}, {4}, {4, 5}]),
        (Chunked(1 << 40), [set(range(p + 1)) for p in range(6)]),
    ],
    ids=str,
)
def test_what_positions_see(make_cache: MakeCache, spec: CacheSpec, wanted: list[set[int]]):
    assert sees(make_cache(1, 8, [spec]), run(0, 0, 6)) == wanted
    cache = make_cache(1, 8, [spec])  # the same one by one
    assert [sees(cache, step((0, p)))[0] for p in range(6)] == wanted


def test_windows_of_two_sequences_in_separate_batches(make_cache: MakeCache):
    cache = make_cache(2, 8, [Sliding(3)])
    assert sees(cache, run(0, 0, 4))[-1] == {1, 2, 3}
    assert sees(cache, run(1, 0, 2)) == [{0}, {0, 1}]
    assert sees(cache, run(0, 4, 6)) == [{2, 3, 4}, {3, 4, 5}]
    assert sees(cache, step((1, 2), (0, 6), (1, 3))) == [{0, 1, 2}, {4, 5, 6}, {1, 2, 3}]


@pytest.mark.parametrize(
    ("spec", "cells"),
    [
        (Causal(), 200),
        (Sliding(10), 36),  # 2 · 10 + 16
        (Sliding(10, 30), 76),
        (Sliding(11, 30), 76),
        (Sliding(90), 196),
        (Sliding(95), 200),  # not more than all
        (Sliding(1000), 200),
        (Chunked(25), 68),  # 66, rounded up to the padding
        (Chunked(1 << 50), 200),
    ],
    ids=str,
)
def test_cells(make_cache: MakeCache, spec: CacheSpec, cells: int):
    cache = make_cache(2, 100, [spec])
    assert cache.table.count == cells
    assert cache.max_batch == 16
    assert make_cache(1, 5, [spec]).max_batch == 8


@pytest.mark.parametrize(
    "spec", [Sliding(1), Sliding(3), Sliding(3, 6), Chunked(1), Chunked(4)], ids=str
)
def test_there_is_always_room(make_cache: MakeCache, spec: CacheSpec):
    """However long the sequences, and whichever fills the cache first."""
    cache = make_cache(3, 1000, [spec], max_batch=8)
    rng = np.random.default_rng(1)
    ends = [0, 0, 0]
    for _ in range(100):
        s, n = int(rng.integers(3)), int(rng.integers(1, 9))
        assert len(sees(cache, run(s, ends[s], ends[s] + n))) == n
        ends[s] += n
        assert [cache.length(i) for i in range(3)] == ends


def test_only_what_lies_outside_of_the_memory_goes(make_cache: MakeCache):
    cache = make_cache(2, 100, [Sliding(2, 5)], max_batch=6)  # 16 cells
    cache.start_forward(run(0, 0, 6))
    assert cache.table.position[cache.table.member[0]].tolist() == [0, 1, 2, 3, 4, 5]
    cache.start_forward(step((0, 6)))  # in place of one of 0 and 1
    assert sorted(cache.table.position[cache.table.member[0]]) == [2, 3, 4, 5, 6]
    cache.start_forward(run(1, 0, 6))
    assert cache.table.member[0].sum() == 5  # there was room
    cache.start_forward(run(1, 6, 12))
    assert (
        cache.table.member[0].sum() == 5
        and sorted(cache.table.position[cache.table.member[1]])[0] == 2
    )
    assert cache.can_resume(0, 7) and cache.can_resume(1, 12)


def test_others_give_cells_up_only_when_there_are_too_few(make_cache: MakeCache):
    cache = make_cache(2, 100, [Sliding(2)], max_batch=8)  # 12 cells
    cache.start_forward(run(0, 0, 8))
    cache.start_forward(run(1, 0, 4))
    assert cache.table.member[0].sum() == 8
    cache.start_forward(step((1, 4)))  # one of its own is enough
    assert cache.table.member[0].sum() == 8
    cache.start_forward(run(1, 5, 12))
    assert sorted(cache.table.position[cache.table.member[0]]) == [7]  # what position 8 sees


@pytest.mark.parametrize("moved", [False, True])
@pytest.mark.parametrize("begun", [False, True])
def test_what_a_step_has_overwritten_does_not_come_back(
    make_cache: MakeCache, moved: bool, begun: bool
):
    cache = make_cache(1, 100, [Sliding(4)], max_batch=4)  # 8 cells
    cache.start_forward(run(0, 0, 4))
    cache.start_forward(run(0, 4, 7))
    cache.start_forward(batch := step((0, 7)))
    before = [cache.can_resume(0, p) for p in range(9)]
    if moved:
        batch.positions += 1
        assert cache.advance(batch)
    else:
        cache.start_forward(batch := run(0, 8, 12))
    overwritten = batch.placed[cache].cells
    batch.begun = begun
    cache.undo(batch)
    assert cache.length(0) == 8 and cache.can_resume(0, 8)
    if begun:
        assert not cache.table.member[0, overwritten].any()
        assert not any(cache.can_resume(0, p) for p in range(1, 8))
    else:
        assert [cache.can_resume(0, p) for p in range(9)] == before


def test_a_batch_that_does_not_fit_evicts_nothing(make_cache: MakeCache):
    cache = make_cache(2, 100, [Sliding(2)], max_batch=4)  # 8 cells
    cache.start_forward(run(0, 0, 4))
    cache.start_forward(run(1, 0, 4))
    before, batch = snapshot(cache), run(0, 4, 12)
    with pytest.raises(KvCacheFull, match=r"8 tokens.* 6 of 8 are free"):
        cache.start_forward(batch)
    assert snapshot(cache) == before and not batch.placed


def test_resuming_only_where_the_window_is_intact(make_cache: MakeCache):
    cache = make_cache(1, 100, [Sliding(3, 5)])
    cache.start_forward(run(0, 0, 10))
    cache.start_forward(step((0, 10)))  # 6 to 10 are left
    resumable = [p for p in range(13) if cache.can_resume(0, p)]
    assert resumable == [0, 8, 9, 10, 11]
    cache.remove(0, 8, None)
    assert cache.can_resume(0, 8)
    assert sees(cache, step((0, 8))) == [{6, 7, 8}]


def test_resuming_at_a_chunk(make_cache: MakeCache):
    cache = make_cache(1, 100, [Chunked(4)])
    cache.start_forward(run(0, 0, 10))
    assert all(cache.can_resume(0, p) for p in range(11))
    cache.start_forward(step((0, 10)))  # 8 to 10 are left
    assert [p for p in range(14) if cache.can_resume(0, p)] == [0, 4, 8, 9, 10, 11]
    cache.remove(0, 4, None)
    assert cache.length(0) == 4 and cache.can_resume(0, 4) and not cache.can_resume(0, 8)
    assert sees(cache, step((0, 4))) == [{4}]


def test_a_shift_may_leave_too_little_to_go_on(make_cache: MakeCache):
    cache = make_cache(1, 100, [Sliding(4)])
    cache.start_forward(run(0, 0, 10))
    cache.start_forward(step((0, 10)))  # 7 to 10 are left
    cache.remove(0, 0, 5)
    assert sorted(cache.table.position[cache.table.member[0]]) == [2, 3, 4, 5]
    assert cache.can_resume(0, 6)
    cache.remove(0, 3, 5)
    assert cache.length(0) == 4 and not cache.can_resume(0, 4)
    cache.remove(0, 0, None)
    assert cache.can_resume(0, 0)


def test_a_prefix_copied_from_a_window(make_cache: MakeCache):
    cache = make_cache(2, 100, [Sliding(3, 6)])
    cache.start_forward(run(0, 0, 8))
    cache.start_forward(step((0, 8)))  # 3 to 8 are left
    cache.copy_prefix(0, 1, 6)
    assert cache.length(1) == 6 and cache.can_resume(1, 6) and not cache.can_resume(1, 4)
    assert sees(cache, step((1, 6), (0, 9))) == [{4, 5, 6}, {7, 8, 9}]
    for p in range(10, 30):  # what one gives up the other keeps
        cache.start_forward(step((0, p)))
    assert sees(cache, step((1, 7))) == [{5, 6, 7}]


@pytest.mark.parametrize("spec", [Causal(), Sliding(2), Chunked(4)], ids=str)
def test_undoing_a_step(make_cache: MakeCache, spec: CacheSpec):
    cache = make_cache(2, 100, [spec], max_batch=4)
    for p in range(0, 8, 4):
        cache.start_forward(run(0, p, p + 4))
    cache.start_forward(run(1, 0, 4))
    before = snapshot(cache)
    for batch in (step((0, 8)), run(1, 4, 8), step((0, 8), (1, 4), (0, 9))):
        cache.start_forward(batch)
        assert snapshot(cache) != before
        cache.undo(batch)
        assert snapshot(cache) == before and not batch.placed
        cache.undo(batch)  # is without effect
        assert snapshot(cache) == before
    reserved = run(0, 0, 4)
    cache.start_forward(reserved, reserve=True)
    cache.undo(reserved)
    assert snapshot(cache) == before


def grouped(batch: Step, *groups: int) -> Step:
    batch.groups = np.array(groups, np.int32)
    return batch


def test_a_group_sees_all_of_itself(make_cache: MakeCache):
    cache = make_cache(2, 8)
    batch = grouped(run(0, 0, 6), 0, 1, 1, 0, 2, 2)
    assert sees(cache, batch) == [
        {0},
        {0, 1, 2},
        {0, 1, 2},
        {0, 1, 2, 3},
        {0, 1, 2, 3, 4, 5},
        {0, 1, 2, 3, 4, 5},
    ]
    # The same number in another sequence is another group.
    batch = grouped(step((1, 0), (0, 6), (1, 1), (0, 7)), 3, 3, 3, 3)
    assert sees(cache, batch) == [{0, 1}, set(range(8)), {0, 1}, set(range(8))]


def test_neighbouring_groups_are_apart(make_cache: MakeCache):
    batch = grouped(run(0, 0, 4), 1, 1, 2, 2)
    assert sees(make_cache(1, 8), batch)[0] == {0, 1}


def test_a_group_looks_ahead_but_no_further_back(make_cache: MakeCache):
    batch = grouped(run(0, 0, 5), 0, 1, 1, 1, 1)
    assert sees(make_cache(1, 8, [Sliding(2)]), batch) == [
        {0},
        {0, 1, 2, 3, 4},
        {1, 2, 3, 4},
        {2, 3, 4},
        {3, 4},
    ]
    batch = grouped(run(0, 0, 5), 0, 1, 1, 1, 1)
    assert sees(make_cache(1, 8, [Chunked(3)]), batch)[2:] == [{0, 1, 2, 3, 4}, {3, 4}, {3, 4}]


def test_groups_do_not_depend_on_the_batch(make_cache: MakeCache):
    """Also where a later group has the number of an earlier one."""
    groups = [0, 1, 1, 0, 1, 1, 1]
    whole = make_cache(1, 8, [Sliding(3)])
    wanted = sees(whole, grouped(run(0, 0, 7), 0, 1, 1, 0, 2, 2, 2))
    parts = make_cache(1, 8, [Sliding(3)])
    got = [
        row
        for lo, hi in ((0, 1), (1, 4), (4, 7))
        for row in sees(parts, grouped(run(0, lo, hi), *groups[lo:hi]))
    ]
    assert got == wanted


def test_nothing_resumes_within_a_group(make_cache: MakeCache):
    cache = make_cache(2, 8)
    cache.start_forward(grouped(run(0, 0, 6), 0, 1, 1, 2, 2, 0))
    assert [p for p in range(7) if cache.can_resume(0, p)] == [0, 1, 3, 5, 6]
    cache.remove(0, 0, None)
    cache.start_forward(run(1, 0, 6))  # in the same cells
    assert [p for p in range(7) if cache.can_resume(1, p)] == [0, 1, 2, 3, 4, 5, 6]


def test_windows_in_some_layers():
    ropes = [Rope(8), Rope(8, base=5.0), Rope(8)]
    assert Sliding.where([True, False, True], 3, ropes) == [
        Sliding(3, rope=ropes[0]),
        Causal(ropes[1]),
        Sliding(3, rope=ropes[2]),
    ]
    assert Sliding.where([False] * 3, 0, ropes) == [Causal(rope) for rope in ropes]
    with pytest.raises(ValueError, match="zip"):
        Sliding.where([True], 3, ropes)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Sliding.where([True], 0, [Rope(8)]), "window of 0 positions"),
        (lambda: Sliding(0), "window of 0 positions"),
        (lambda: Sliding(4, 3), "memory of 3 positions for a window of 4"),
        (lambda: Chunked(-1), "chunk of -1 positions"),
    ],
)
def test_bad_declarations(make: Callable[[], object], message: str):
    with pytest.raises(ConfigError, match=message):
        make()
