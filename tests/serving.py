"""`ggmodel serve` in a process, for tests of what asks it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from tests.children import import_path


class Running:
    """A server.

    Args:
        arguments: after `ggmodel serve --only --port 0`.
        module: in place of ggmodel's own.
        log: file for its standard error.
        session: it and its children are a process group of their own, which `end` ends.
        variables: of its environment, besides this process's.

    Attributes:
        url: empty if it did not begin to serve.
    """

    def __init__(
        self,
        *arguments: str,
        cwd: Path | None = None,
        module: str = "ggmodel",
        log: IO[bytes] | int = subprocess.DEVNULL,
        session: bool = True,
        **variables: str,
    ):
        self.process = subprocess.Popen(
            [sys.executable, "-m", module, "serve", "--only", "--port", "0", *arguments],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            start_new_session=session,
            cwd=cwd,
            env={**os.environ, "PYTHONPATH": import_path(), **variables},
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        found = re.match(r"serving at (\S+)", line)
        self.url = found[1] if found else ""

    def runners(self) -> list[int]:
        """Its children."""
        listed = subprocess.run(
            ["pgrep", "-P", str(self.process.pid)], capture_output=True, text=True, timeout=10
        )
        return list(map(int, listed.stdout.split()))

    def stop(self) -> None:
        """Ask it to end, and wait until it has."""
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(60) == 128 + signal.SIGTERM

    def end(self) -> None:
        """End it and its children at once."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.kill()
        self.process.wait(10)
        assert self.process.stdout is not None
        self.process.stdout.close()


@contextmanager
def running(*arguments: str, cwd: Path | None = None, **variables: Any) -> Iterator[Running]:
    """A server that runs while the block does."""
    server = Running(*arguments, cwd=cwd, **variables)
    try:
        assert server.url
        yield server
    finally:
        server.end()
