"""A writer may be ended at any point: a sample of `make kills`."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import FrameType
from typing import NoReturn

import pytest
import typer

from ggmodel import storage
from ggmodel.cli import ending
from tests.children import wait

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_nothing_is_lost():
    """Ten times for each writer by kill -9, three times each other way."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.kills", "--count", "10", "--seed", "7"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("nothing was lost\n")
    for way in ("kill -9 ", "SIGTERM ", "Ctrl-C ", "disk full "):
        assert done.stdout.count(way) == 12, done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_at_every_call(tmp_path: Path, number: int):
    """A signal at each point where Python looks for one: where a function begins, and where one in
    C has returned. Points of the way out are among them."""
    target = tmp_path / "a.txt"
    left: dict[int, set[str]] = {}
    for point in itertools.count():
        status, names = _ended_at(target, number, point)
        if status == 0:  # all points lie before
            break
        assert status == 128 + number, point
        if names != {"a.txt"}:
            left[point] = names
    assert point > 100
    assert not left


def _ended_at(target: Path, number: int, point: int) -> tuple[int, set[str]]:
    """The status of a writer that gets a signal at such a call, and the names that it leaves."""
    for path in target.parent.iterdir():
        path.unlink()
    target.write_text("old")
    process = os.fork()
    if process == 0:
        _write_until(target, number, point)
    status = wait(process, 60)
    return status, {path.name for path in target.parent.iterdir()}


def _write_until(target: Path, number: int, point: int) -> NoReturn:
    """The forked process."""
    calls = itertools.count()

    def count(frame: FrameType, event: str, argument: object) -> None:
        if event in ("call", "c_return") and next(calls) == point:
            sys.setprofile(None)
            signal.raise_signal(number)

    command = typer.Typer()

    @command.command()
    def write() -> None:
        with ending.reporting_errors():
            sys.setprofile(count)
            storage.write_text(target, "new")
            sys.setprofile(None)

    status = 99
    try:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115
        signal.signal(signal.SIGINT, signal.default_int_handler)
        sys.argv[1:] = []
        ending.prepare()
        ending.finish(command)
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else 0
    finally:
        os._exit(status)
