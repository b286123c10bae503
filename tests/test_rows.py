from __future__ import annotations

import subprocess
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.rows import choose, in_row, turn_of

NAMES = [
    "a.py::test_alone",
    *(f"a.py::test_of_three[{i}]" for i in range(3)),
    *(f"a.py::test_of_many[{i}-x[y]]" for i in range(47)),
    *(f"b.py::test_of_three[{i}]" for i in range(3)),
]


def config(folder: Path, rows: int, row: int | None) -> Any:
    return SimpleNamespace(option=SimpleNamespace(rows=rows, row=row), rootpath=folder)


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


def test_a_row_has_both_backends():
    names = [f"a.py::test_{i}[{kind}]" for i in range(40) for kind in ("ggml", "reference")]
    names += [f"b.py::test[{i}-{kind}]" for i in range(100) for kind in ("ggml", "reference")]
    for row in range(10):
        kinds = Counter(name.partition("[")[2][-5:] for name in in_row(names, row, 10))
        assert len(kinds) == 2 and min(kinds.values()) > 10


def test_commits_after_one_another_take_rows_after_one_another(tmp_path: Path):
    turns = []
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    for message in "abc":
        command = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q"]
        command += ["--allow-empty", "-m", message]
        subprocess.run(command, cwd=tmp_path, check=True)
        turns.append(turn_of(tmp_path))
    assert turns == [1, 2, 3]
    chosen = config(tmp_path, 2, None)
    choose(chosen)
    assert chosen.option.row == 1


def test_the_day_decides_without_a_repository(tmp_path: Path):
    assert turn_of(tmp_path) > 700_000


@pytest.mark.parametrize(("rows", "row"), [(0, None), (3, 3), (3, -1), (1, 1)])
def test_there_is_no_such_row(tmp_path: Path, rows: int, row: int | None):
    with pytest.raises(pytest.UsageError, match=r"--row .* --rows \d"):
        choose(config(tmp_path, rows, row))
