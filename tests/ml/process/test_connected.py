"""Processes that cannot be given sockets by their descriptors connect to this one."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ggmodel import concurrency
from ggmodel.ml.process import RunnerProcess, conversation
from tests.ml.conftest import Make
from tests.ml.harness import normal
from tests.ml.process.conftest import doubling


@pytest.fixture
def connected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversation, "INHERITS", False)


def test_it_connects(connected: None, in_process: Make):
    with RunnerProcess() as runner:
        assert runner._child.socket.family == socket.AF_INET
        with in_process(runner, {"w": normal(300, 300)}) as backend:
            executable, y = doubling(backend)
            executable.run(np.arange(4, dtype=np.float32))
            assert executable.value(y).ravel().tolist() == [0, 2, 4, 6]
            w = backend.get("w")
            assert w is not None
        pid = runner.pid
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_strangers_are_not_listened_to(connected: None, monkeypatch: pytest.MonkeyPatch):
    """They come before the process, and do not know the secret."""
    real, strangers = conversation._start, list[socket.socket]()

    def start(place: str, environment: Any, **options: Any) -> Any:
        process: Any = real(place, environment, **options)
        write = process.stdin.write

        def told(line: bytes) -> int:
            for said in (b"x" * 64, b""):
                strangers.append(socket.create_connection(("127.0.0.1", int(line.split()[0]))))
                strangers[-1].send(said)
            return write(line)

        process.stdin = Told(process.stdin, told)
        return process

    monkeypatch.setattr(conversation, "_start", start)
    try:
        with RunnerProcess() as runner:
            assert runner.pid
    finally:
        for stranger in strangers:
            stranger.close()


class Told:
    def __init__(self, file: Any, write: Callable[[bytes], int]):
        self.file, self.write = file, write

    def __enter__(self) -> Told:
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()


def test_a_process_that_does_not_begin(connected: None, monkeypatch: pytest.MonkeyPatch):
    begun: list[Any] = []
    start_python = concurrency.start_python

    def start(arguments: Any, environment: Any, **options: Any) -> Any:
        begun.append(start_python(["-c", "pass"], environment, **options))
        return begun[-1]

    monkeypatch.setattr(conversation.concurrency, "start_python", start)
    with pytest.raises(OSError, match="does not begin"):
        conversation._connecting({})
    assert begun[0].returncode is not None
