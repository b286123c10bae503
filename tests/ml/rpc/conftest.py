"""A ggml with the RPC backend, and workers that run on it."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.ml.harness import free_port

_PATIENCE = 60.0  # seconds for a worker to start


class Worker:
    """A `ggmodel worker` in a process of its own.

    Attributes:
        host: where clients reach it.
        port: the TCP port.
        process: the process.
    """

    def __init__(self, arguments: list[str], environment: dict[str, str], folder: Path):
        self.host = "127.0.0.1"
        self.port = free_port()
        self._files = (folder / f"{self.port}.out", folder / f"{self.port}.err")
        command = [sys.executable, "-m", "ggmodel", "worker", "--port", str(self.port)]
        with self._files[0].open("w") as out, self._files[1].open("w") as err:
            self.process = subprocess.Popen(
                [*command, *arguments], stdout=out, stderr=err, env=environment
            )

    @property
    def endpoint(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def out(self) -> str:
        """Its standard output so far."""
        return self._files[0].read_text()

    @property
    def err(self) -> str:
        """Its standard error so far."""
        return self._files[1].read_text()

    def wait_until_it_listens(self) -> None:
        end = time.monotonic() + _PATIENCE
        while not (self.out.endswith("\n") and self._answers()):
            if self.process.poll() is not None or time.monotonic() > end:
                self.kill()
                pytest.fail(f"the worker does not listen:\n{self.out}{self.err}", pytrace=False)
            time.sleep(0.02)

    def end(self, number: signal.Signals) -> int:
        """Send a signal; returns the exit status."""
        self.process.send_signal(number)
        return self.process.wait(timeout=5)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def _answers(self) -> bool:
        # A client that leaves at once.
        try:
            socket.create_connection((self.host, self.port), timeout=5).close()
        except ConnectionRefusedError:
            return False
        return True


Start = Callable[..., Worker]


@pytest.fixture
def worker(rpc_environment: dict[str, str], tmp_path: Path) -> Iterator[Start]:
    """`worker("--host", "0.0.0.0", …)` starts a worker of one thread on a free port and returns it
    when it listens."""
    with _workers(rpc_environment, tmp_path) as start:
        yield start


@pytest.fixture(scope="session")
def pair(
    rpc_environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[list[Worker]]:
    """Two workers for tests that leave them as they were."""
    with _workers(rpc_environment, tmp_path_factory.mktemp("workers")) as start:
        yield [start(), start()]


@contextmanager
def _workers(environment: dict[str, str], folder: Path) -> Iterator[Start]:
    workers: list[Worker] = []

    def start(*arguments: Any) -> Worker:
        one = Worker(["--threads", "1", *map(str, arguments)], environment, folder)
        workers.append(one)
        one.wait_until_it_listens()
        return one

    try:
        yield start
    finally:
        for one in workers:
            one.kill()
