"""Workers that stay connected and say nothing are given up after a while; slow ones are not."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import ggmodel
from ggmodel.errors import Busy, DeviceLost
from ggmodel.ml.process.watchdog import StepTimes
from tests.conftest import ROOT

STORIES = ROOT / "examples" / "assets" / "stories.gguf"
DEADLINE = 30.0  # seconds, against a hang
SILENCE = 1.5
CLOSING = 1.0  # seconds that closing waits for the process at most


@pytest.fixture(autouse=True)
def _children_use_rpc(monkeypatch: pytest.MonkeyPatch, rpc_ggml: Path) -> None:
    monkeypatch.setenv("GGMODEL_GGML", str(rpc_ggml))
    monkeypatch.delenv("GGMODEL_RPC", raising=False)
    monkeypatch.setattr(ggmodel.limits, "worker_silence_seconds", SILENCE)


class Proxy:
    """Forwards a connection to a worker.

    Args:
        rate: bytes a second at most, each way; 0 is without a bound.
        after: so many bytes to the worker are forwarded, then nothing more, either way.

    Attributes:
        endpoint: of the proxy.
    """

    def __init__(self, endpoint: str, rate: float = 0, after: float = float("inf")):
        host, _, port = endpoint.partition(":")
        self._worker = (host, int(port))
        self._rate, self._left, self._stopped = rate, after, threading.Event()
        self._server = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"127.0.0.1:{self._server.getsockname()[1]}"
        self._ends: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._closed = threading.Event()
        self._start(self._serve)

    def _start(self, work: Callable[..., None], *args: object) -> None:
        thread = threading.Thread(target=work, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _serve(self) -> None:
        with suppress(OSError):  # closed
            while True:
                client, _ = self._server.accept()
                self._ends.append(client)
                worker = socket.create_connection(self._worker)
                self._ends.append(worker)
                self._start(self._forward, client, worker, True)
                self._start(self._forward, worker, client, False)

    def _forward(self, source: socket.socket, target: socket.socket, up: bool) -> None:
        with suppress(OSError):
            while piece := source.recv(16384):
                if self._stopped.is_set():
                    self._closed.wait(DEADLINE)
                if self._rate:
                    self._closed.wait(len(piece) / self._rate)
                target.sendall(piece)
                self._left -= len(piece) * up
                if self._left < 0:
                    self._stopped.set()
        with suppress(OSError):
            target.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Waits for the threads: none holds a socket while a later test runs."""
        self._closed.set()
        with suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._threads[0].join(DEADLINE)  # it opens no more
        for end in self._ends:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(DEADLINE)
            assert not thread.is_alive()
        for end in (self._server, *self._ends):
            end.close()


@pytest.fixture
def proxy() -> Iterator[Callable[..., Proxy]]:
    opened: list[Proxy] = []

    def open_proxy(*args: object, **options: float) -> Proxy:
        opened.append(Proxy(*args, **options))  # type: ignore[arg-type]
        return opened[-1]

    yield open_proxy
    for one in opened:
        one.close()


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds for which processes are waited for, as long as they do not end."""
    found: list[float] = []
    wait = subprocess.Popen.wait

    def noted(process: subprocess.Popen, timeout: float | None = None) -> int:
        if timeout is not None:
            found.append(timeout)
        return wait(process, DEADLINE if timeout is None else timeout)

    monkeypatch.setattr(subprocess.Popen, "wait", noted)
    return found


def stop(process: subprocess.Popen) -> None:
    process.send_signal(signal.SIGSTOP)


@pytest.mark.parametrize("which", [0, 1])
def test_a_worker_that_stops_in_a_generation_is_named(
    worker: Callable, which: int, waits: list[float]
):
    workers = [worker(), worker()]
    names = [w.endpoint for w in workers]
    layers = {"RPC0": [0, 1], "RPC1": [2, 3]}
    with ggmodel.load(STORIES, rpc=names, gpu_layers=layers, threads=1) as model:
        pieces = model.stream("Once upon a time", temperature=0)
        next(pieces)
        stop(workers[which].process)
        began = time.monotonic()
        with pytest.raises(DeviceLost, match="worker_silence_seconds") as caught:
            for _ in pieces:
                pass
        assert time.monotonic() - began < DEADLINE
        assert names[which] in str(caught.value) and names[1 - which] not in str(caught.value)
        with pytest.raises(DeviceLost):
            model.generate("Once", max_tokens=1)
        waits.clear()
    assert sum(waits) <= CLOSING


def test_one_that_goes_on_in_time_is_waited_for(worker: Callable):
    one = worker()
    with ggmodel.load(STORIES, rpc=[one.endpoint], gpu_layers=2, threads=1) as model:
        wanted = model.generate("Once upon a time", max_tokens=20, temperature=0)
        pieces = model.stream("Once upon a time", max_tokens=20, temperature=0)
        text = next(pieces)
        stop(one.process)
        threading.Timer(SILENCE / 3, one.process.send_signal, [signal.SIGCONT]).start()
        assert text + "".join(pieces) == wanted


@pytest.mark.slow
def test_a_first_prompt_of_several_chunks_has_the_time_of_its_tokens(
    worker: Callable, monkeypatch: pytest.MonkeyPatch
):
    """The worker answers none of the chunks but the last."""
    monkeypatch.setattr(ggmodel.limits, "worker_silence_seconds", 0.5)
    one = worker()
    options: dict[str, Any] = {"gpu_layers": 2, "threads": 1, "batch_size": 32}
    with ggmodel.load(STORIES, rpc=[one.endpoint], **options) as model:
        prompt = [1, *range(300, 460)]
        stop(one.process)
        threading.Timer(2.0, one.process.send_signal, [signal.SIGCONT]).start()
        generation = model.generate(prompt, max_tokens=3, temperature=0)
    with ggmodel.load(STORIES, gpu_layers=0, threads=1) as model:
        assert generation.tokens == model.generate(prompt, max_tokens=3, temperature=0).tokens


@pytest.mark.slow
def test_a_process_that_is_stopped_itself_goes_on(worker: Callable):
    """As by Ctrl-Z and `fg`. Its own time does not count as the worker's silence."""
    one = worker()
    with ggmodel.load(STORIES, rpc=[one.endpoint], gpu_layers=2, threads=1) as model:
        wanted = model.generate("Once upon a time", max_tokens=20, temperature=0)
        pieces = model.stream("Once upon a time", max_tokens=20, temperature=0)
        text = next(pieces)
        assert model.devices.runner is not None
        child = model.devices.runner.pid

        def stop_both() -> None:
            stop(one.process)
            time.sleep(0.2)  # now the process waits for the worker
            os.kill(child, signal.SIGSTOP)
            time.sleep(1.5 * SILENCE)
            os.kill(child, signal.SIGCONT)
            time.sleep(0.2)
            one.process.send_signal(signal.SIGCONT)

        thread = threading.Thread(target=stop_both, daemon=True)
        thread.start()
        thread.join(0.1)
        assert text + "".join(pieces) == wanted
        thread.join(DEADLINE)


@pytest.mark.slow
def test_closing_does_not_wait_for_it(
    worker: Callable, monkeypatch: pytest.MonkeyPatch, waits: list[float]
):
    monkeypatch.setattr(ggmodel.limits, "worker_silence_seconds", 600.0)
    one = worker()
    for idle in (True, False):
        model = ggmodel.load(STORIES, rpc=[one.endpoint], gpu_layers=2, threads=1)
        pieces = model.stream("Once upon a time", temperature=0)
        next(pieces)
        if idle:
            pieces.close()
        stop(one.process)
        if not idle:
            threading.Timer(0.5, os.kill, [os.getpid(), signal.SIGINT]).start()
            with pytest.raises(KeyboardInterrupt):
                for _ in pieces:
                    pass
        waits.clear()
        model.close()
        assert waits and sum(waits) <= CLOSING
        one.process.send_signal(signal.SIGCONT)


def test_one_that_is_stopped_from_the_beginning(worker: Callable):
    one = worker()
    stop(one.process)
    began = time.monotonic()
    with pytest.raises(Busy, match=rf"{one.endpoint} does not answer.*hangs"):
        ggmodel.load(STORIES, rpc=[one.endpoint], gpu_layers=2, threads=1)
    assert time.monotonic() - began < DEADLINE


@pytest.mark.slow
@pytest.mark.parametrize("after", [2_000, 1_000_000])
def test_a_connection_that_stops_while_the_model_is_loaded(
    worker: Callable, proxy: Callable, after: int
):
    """The rest of a small model fits the buffers of the systems between: then its first step is
    the first that waits for an answer."""
    one = proxy(worker().endpoint, after=after)
    began = time.monotonic()
    with (
        pytest.raises(DeviceLost, match=rf"{one.endpoint}.*worker_silence_seconds"),
        ggmodel.load(STORIES, rpc=[one.endpoint], gpu_layers=-1, threads=1) as model,
    ):
        model.generate("Once", max_tokens=1)
    assert time.monotonic() - began < DEADLINE


def test_a_slow_network_is_no_silence(worker: Callable, proxy: Callable):
    """Loading and a first step take longer than a worker may be silent."""
    one = proxy(worker().endpoint, rate=250_000)
    began = time.monotonic()
    with ggmodel.load(STORIES, rpc=[one.endpoint], gpu_layers={"RPC0": [0]}, threads=1) as model:
        assert model.generate("Once upon a time", max_tokens=3).tokens
        assert time.monotonic() - began > SILENCE


def test_steps_are_expected_to_take_as_long_as_the_longest_of_their_size():
    times = StepTimes()
    assert times.seconds(512) == 128  # nothing is known
    times.took(500, 20.0)
    times.took(500, 10.0)
    assert times.seconds(512) == 20
    assert times.seconds(400) == 20
    assert times.seconds(1) == 20
    assert times.seconds(1024) == 40
    times.took(1, 0.1)
    assert times.seconds(1) == 0.1
    assert times.seconds(64) == pytest.approx(6.4)
    assert times.seconds(512) == 20
