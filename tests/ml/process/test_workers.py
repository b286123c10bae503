"""Unusable workers; tests/ml/rpc has usable ones."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ggmodel.errors import Busy, ConfigError, DeviceLost, Unsupported
from ggmodel.gguf_file import MemorySource
from ggmodel.ml import BackendParams, new_backend
from ggmodel.ml.process import RunnerProcess
from tests.ml.harness import METADATA, free_port, normal

Listen = Callable[[Callable[[socket.socket], object]], str]


@pytest.fixture
def listen() -> Iterator[Listen]:
    """`listen(serve)` is the endpoint of a server that calls `serve` for each connection."""
    with contextlib.ExitStack() as stack:

        def start(serve: Callable[[socket.socket], object]) -> str:
            server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            kept = stack.enter_context(contextlib.ExitStack())

            def accept() -> None:
                with contextlib.suppress(OSError):
                    while True:
                        serve(kept.enter_context(server.accept()[0]))

            thread = threading.Thread(target=accept, daemon=True)
            thread.start()
            stack.callback(thread.join)
            stack.callback(server.shutdown, socket.SHUT_RDWR)
            return f"127.0.0.1:{server.getsockname()[1]}"

        yield start


@pytest.mark.parametrize(
    "endpoint",
    ["host", "host:", ":1", "host:0", "host:65536", "host:1a", "ho st:1", "[::1]:1", "::1:1", ""],
)
def test_a_malformed_endpoint(endpoint: str):
    with pytest.raises(ConfigError, match="must be 'host:port'"):
        RunnerProcess(rpc=[endpoint])


def test_a_repeated_endpoint():
    with pytest.raises(ConfigError, match="worker host:1 is given twice"):
        RunnerProcess(rpc=["host:1", "other:1", "host:1"])


def test_endpoints_are_a_list():
    with pytest.raises(ConfigError, match="a list"):
        RunnerProcess(rpc="host:1")


def test_nobody_listens():
    endpoint = f"127.0.0.1:{free_port()}"
    port = endpoint.partition(":")[2]
    message = (
        rf"worker {endpoint} cannot be reached: connection refused; "
        rf"start it with `ggmodel worker --port {port}` there"
    )
    with pytest.raises(DeviceLost, match=message):
        RunnerProcess(rpc=[endpoint])
    source = MemorySource(METADATA, {"w": normal(1)})
    with pytest.raises(DeviceLost, match=message):
        new_backend(source, BackendParams(rpc=(endpoint,)))


def test_nobody_has_that_name():
    with pytest.raises(DeviceLost, match=r"worker no-such-host\.invalid:1 cannot be reached"):
        RunnerProcess(rpc=["no-such-host.invalid:1"])


def test_nobody_answers():
    """A full queue, like that of a worker with waiting clients."""
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(socket.socket())
        server.bind(("127.0.0.1", 0))
        server.listen(0)
        endpoint = f"127.0.0.1:{server.getsockname()[1]}"
        for _ in range(4):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(server.getsockname())
        began = time.monotonic()
        with pytest.raises(DeviceLost, match=f"worker {endpoint} .* no answer within 2 s"):
            RunnerProcess(rpc=[endpoint])
        assert time.monotonic() - began < 4


def test_a_ggml_without_rpc(listen: Listen, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("GGMODEL_GGML", raising=False)  # the packaged one has none
    endpoint = listen(lambda connection: None)
    with pytest.raises(Unsupported, match="`ggmodel ggml build` builds one that has it"):
        RunnerProcess(rpc=[endpoint])


def test_a_worker_that_serves_another_client(
    listen: Listen, rpc_ggml: Path, monkeypatch: pytest.MonkeyPatch
):
    """It takes the connection and says nothing."""
    monkeypatch.setenv("GGMODEL_GGML", str(rpc_ggml))
    endpoint = listen(lambda connection: None)
    began = time.monotonic()
    with pytest.raises(Busy, match=f"worker {endpoint} .* in use by another client"):
        RunnerProcess(rpc=[endpoint])
    assert 2 <= time.monotonic() - began < 8


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 400 Bad Request\r\n" * 99])
def test_something_that_is_no_worker(
    listen: Listen, rpc_ggml: Path, monkeypatch: pytest.MonkeyPatch, answer: bytes
):
    monkeypatch.setenv("GGMODEL_GGML", str(rpc_ggml))

    def serve(connection: socket.socket) -> None:
        with contextlib.suppress(OSError), connection:
            connection.sendall(answer)

    endpoint = listen(serve)
    with pytest.raises(DeviceLost, match=f"worker {endpoint} "):
        RunnerProcess(rpc=[endpoint])
