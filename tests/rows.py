"""One of several rows of the tests: a share of each test's cases, and of the slow tests. All rows
together have each case, and each row has each test that is not slow."""

from __future__ import annotations

import subprocess
from collections.abc import Container, Iterable
from datetime import date

import pytest


def in_row(names: Iterable[str], row: int, rows: int, slow: Container[str] = ()) -> set[str]:
    """The tests of a row.

    Args:
        names: of tests, `file::test[case]`.
        row: from 0.
        rows: how many there are. A test with fewer cases has one of them in each row.
        slow: names that are shared out like cases of one test: most rows have none of a slow test.
    """
    by_test: dict[str, list[str]] = {}
    for name in names:
        by_test.setdefault("" if name in slow else name.partition("[")[0], []).append(name)
    kept: set[str] = set()
    for cases in by_test.values():
        kept.update(cases[row::rows] if len(cases) >= rows else [cases[row % len(cases)]])
    return kept


def chosen(config: pytest.Config) -> tuple[int, int]:
    """The row, and how many there are, by `--row` and `--rows`. Without `--row` the commit decides:
    a run that is repeated takes the same tests. Outside of a repository it is the day."""
    rows: int = config.getoption("rows", 1) or 1
    row: int | None = config.getoption("row", None)
    if row is None and rows > 1:
        command = ["git", "-C", str(config.rootpath), "rev-parse", "HEAD"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            row = int(done.stdout, 16)
        except (OSError, subprocess.CalledProcessError):
            row = date.today().toordinal()
    return (row or 0) % rows, rows
