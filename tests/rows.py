"""One of several rows of the tests: a share of each test's cases, and of the slow tests. All rows
together have each case, and each row has each test that is not slow."""

from __future__ import annotations

import subprocess
from collections.abc import Container, Iterable
from datetime import date
from pathlib import Path
from zlib import crc32

import pytest


def in_row(names: Iterable[str], row: int, rows: int, slow: Container[str] = ()) -> set[str]:
    """The tests of a row.

    Args:
        names: of tests, `file::test[case]`. The order of their hashes decides, so that no row has
            the same backend, or the same type, of all tests.
        row: from 0.
        rows: how many there are. A test with fewer cases has one of them in each row.
        slow: names that are shared out like cases of one test: most rows have none of a slow test.
    """
    by_test: dict[str, list[str]] = {}
    for name in names:
        by_test.setdefault("" if name in slow else name.partition("[")[0], []).append(name)
    kept: set[str] = set()
    for test, cases in by_test.items():
        cases.sort(key=lambda name: crc32(name.encode()))
        turn = row + crc32(test.encode())
        kept.update(
            cases[turn % rows :: rows] if len(cases) >= rows else [cases[turn % len(cases)]]
        )
    return kept


def choose(config: pytest.Config) -> None:
    """Sets `--row` where it is not given: the number of commits decides, so that commits after one
    another take rows after one another, and a run that is repeated takes the same row. Outside of
    a repository it is the day. Processes that share the tests get the option.

    Raises:
        pytest.UsageError: there is no such row.
    """
    rows, row = config.option.rows, config.option.row
    if rows < 1 or (row is not None and not 0 <= row < rows):
        raise pytest.UsageError(f"--row {row}: with --rows {rows} there are rows 0 to {rows - 1}")
    if row is None:
        config.option.row = turn_of(config.rootpath) % rows if rows > 1 else 0


def turn_of(folder: Path) -> int:
    """The number of commits of a repository, or of the day where there is none, or a part of it."""

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(folder), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        if git("rev-parse", "--is-shallow-repository") == "false":
            return int(git("rev-list", "--count", "HEAD"))
    except (OSError, ValueError, subprocess.CalledProcessError):
        pass
    return date.today().toordinal()
