"""Processes that tests start: they import the ggmodel that is tested, and end in time."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def import_path() -> str:
    """PYTHONPATH for a process: that of this one, and then the repository's own code, so that a
    changed copy of it comes first (tests/mutants.py)."""
    paths = (os.environ.get("PYTHONPATH"), str(ROOT / "sdk"), str(ROOT))
    return os.pathsep.join(filter(None, paths))


def wait(process: int, seconds: float) -> int:
    """The status of a child; 124 if it took longer, and was killed."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        done, status = os.waitpid(process, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.0005)
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)
    return 124
