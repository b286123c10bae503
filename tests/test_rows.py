from __future__ import annotations

from collections import Counter

import pytest

from tests.rows import in_row

NAMES = [
    "a.py::test_alone",
    *(f"a.py::test_of_three[{i}]" for i in range(3)),
    *(f"a.py::test_of_many[{i}-x[y]]" for i in range(47)),
    *(f"b.py::test_of_three[{i}]" for i in range(3)),
]


@pytest.mark.parametrize("rows", [1, 2, 3, 10])
def test_all_rows_have_each_case_and_each_row_each_test(rows: int):
    every = [in_row(NAMES, row, rows) for row in range(rows)]
    assert {name for row in every for name in row} == set(NAMES)
    tests = {name.partition("[")[0] for name in NAMES}
    assert all({name.partition("[")[0] for name in row} == tests for row in every)


def test_a_case_runs_in_one_row_where_there_are_enough():
    count = Counter(name for row in range(10) for name in in_row(NAMES, row, 10))
    assert {n for name, n in count.items() if "test_of_many" in name} == {1}
    assert count["a.py::test_alone"] == 10


def test_slow_tests_are_shared_out():
    slow = {f"c.py::test_slow_{i}" for i in range(7)} | {"d.py::test_slow[0]", "d.py::test_slow[1]"}
    names = [*NAMES, *sorted(slow)]
    every = [in_row(names, row, 3, slow) for row in range(3)]
    assert [len(row & slow) for row in every] == [3, 3, 3]
    assert {name for row in every for name in row} == set(names)
