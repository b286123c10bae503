"""Rooms: cells that stay free for a sequence that is expected to grow."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ggmodel.kvcache import Cache, Causal, Sliding
from ggmodel.kvcache.cells import Cells
from ggmodel.ml import Backend
from tests.kvcache.history import parts

MakeCache = Callable[..., Cache]


def put(table: Cells, sequence: int, n: int) -> list[int]:
    """The cells where n more positions of a sequence go."""
    sequences = np.full(n, sequence, np.int32)
    cells = table.find(sequences)
    first = int(table.member[sequence].sum())
    table.write(cells, sequences, np.arange(first, first + n), np.zeros(n, np.int32))
    return cells.tolist()


def test_others_go_behind_a_room_until_no_cells_are_left():
    table = Cells(12, 2, padding=4)
    table.allocate(0, 6)
    assert put(table, 0, 2) == [0, 1]
    assert put(table, 1, 3) == [6, 7, 8]
    assert put(table, 0, 2) == [2, 3]
    assert put(table, 1, 5) == [9, 10, 11, 4, 5]


def test_a_room_is_as_large_as_what_is_still_to_come():
    table = Cells(32, 2, padding=4)
    assert put(table, 0, 4) == [0, 1, 2, 3]
    table.allocate(0, 10)
    assert put(table, 0, 1) == [4]
    assert table.allocations == {0: (4, 10)}


def test_a_sequence_that_outgrows_its_room_gets_one_with_the_padding_to_spare():
    table = Cells(32, 2, padding=4)
    table.allocate(0, 4)
    assert put(table, 0, 4) == [0, 1, 2, 3]
    assert put(table, 0, 1) == [4]
    assert table.allocations == {0: (4, 9)}


def test_a_room_lies_next_to_the_cells_that_are_held():
    table = Cells(32, 3, padding=4)
    assert put(table, 0, 8) == [*range(8)]
    assert put(table, 1, 8) == [*range(8, 16)]
    table.forget(0, np.arange(8))
    table.allocate(1, 12)
    assert put(table, 1, 1) == [4]  # before its own cells, not behind
    assert table.allocations == {1: (4, 8)}


def test_a_full_cache_has_no_allocations():
    table = Cells(4, 2, padding=4)
    assert put(table, 0, 4) == [0, 1, 2, 3]
    table.allocate(1, 3)
    assert table.find(np.ones(2, np.int32)).tolist() == []
    assert table.allocations == {}


def test_cells_are_allocated_where_each_sequence_reads_its_own_cells(
    make_cache: MakeCache, backend: Backend
):
    cache = make_cache(2, 40, [Causal(), Sliding(3)])
    cache.allocate(1, 30)
    apart = [{1: 30}, {1: 3 + 16}]  # a window, and what a batch adds to it
    found = [part.table.expected for part in parts(cache)]
    assert found == (apart if backend.cache_config.ordered else [{}, {}])
    cache.allocate(1, 0)
    assert [part.table.expected for part in parts(cache)] == [{}, {}]
