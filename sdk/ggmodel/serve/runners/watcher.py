"""The program that ends another one once standard input ends: `watcher.py PID`. It imports nothing
of ggmodel, so that it starts fast."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress


def main(process: int) -> None:
    """Waits for the end of standard input, then kills the process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to all
    while os.read(0, 1):
        pass
    with suppress(OSError):  # it has ended by itself
        os.kill(process, getattr(signal, "SIGKILL", signal.SIGTERM))  # Windows ends it for any


if __name__ == "__main__":
    main(int(sys.argv[1]))
