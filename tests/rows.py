"""One of several rows of the tests: a share of each test's cases, so that all rows together have
each case, and each row has each test."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable
from datetime import date

import pytest


def in_row(names: Iterable[str], row: int, rows: int) -> set[str]:
    """The tests of a row.

    Args:
        names: of tests, `file::test[case]`.
        row: from 0.
        rows: how many there are. A test with fewer cases has one of them in each row.
    """
    by_test: dict[str, list[str]] = {}
    for name in names:
        by_test.setdefault(name.partition("[")[0], []).append(name)
    kept: set[str] = set()
    for cases in by_test.values():
        kept.update(cases[row::rows] if len(cases) >= rows else [cases[row % len(cases)]])
    return kept


def row_of(config: pytest.Config) -> int:
    """The row that `--row` names, else one by the commit: a run that is repeated takes the same
    tests. Outside of a repository it is one by the day."""
    given, rows = config.getoption("row"), config.getoption("rows")
    if given is not None:
        return given % rows
    command = ["git", "-C", str(config.rootpath), "rev-parse", "HEAD"]
    try:
        commit = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return date.today().toordinal() % rows
    return int(commit, 16) % rows
