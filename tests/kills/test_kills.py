"""A writer may be ended at any point: a sample of `make kills`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

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
