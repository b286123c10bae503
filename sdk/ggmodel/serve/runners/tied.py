"""A program that ends with the process that started it, however that ends.

Linux sees to it. Elsewhere a process of Python watches: its standard input ends with the process
that holds the other end.
"""

from __future__ import annotations

import ctypes
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ... import interpreter
from ...platforms.processes import CHILD

_PR_SET_PDEATHSIG = 1
_WATCHER = Path(__file__).with_name("watcher.py")

_watching: list[subprocess.Popen[bytes]] = []  # whose pipes must stay open


def start(command: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
    """Starts a program.

    Args:
        options: of `subprocess.Popen`.

    Raises:
        OSError: it, or its watcher, cannot be started; then it does not run.
    """
    process: Any
    if sys.platform == "linux":
        process = subprocess.Popen(command, preexec_fn=_die_with_parent, **options)
        return process
    process = subprocess.Popen(command, **CHILD, **options)
    nowhere = dict.fromkeys(("stdout", "stderr"), subprocess.DEVNULL)
    try:
        watcher = interpreter.start(
            [str(_WATCHER), str(process.pid)], stdin=subprocess.PIPE, **nowhere
        )
    except BaseException:
        process.kill()
        process.wait()
        raise
    _watching.append(watcher)
    return process


def _die_with_parent() -> None:
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, getattr(signal, "SIGKILL", 9))
