"""A runner that is known by its port."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

from ggmodel.errors import ComputeError, ConfigError, FormatError, Unsupported
from ggmodel.ml import (
    DeviceID,
    DeviceInfo,
    FilteredRunnerDiscovery,
    RunnerAtPort,
    get_devices_from_runner,
)

FULL = DeviceInfo(
    "1",
    "CUDA",
    name="CUDA1",
    description="a card",
    pci_id="0000:01:00.0",
    total_memory=100,
    free_memory=90,
    compute_major=8,
    compute_minor=6,
    library_path=("/lib", "/lib/cuda"),
)
Says = Callable[[bytes], int]


@pytest.fixture
def says() -> Iterator[Says]:
    """`says(bytes)` is a port that answers each request with them; b"" keeps silent."""
    open_: list[socket.socket] = []
    threads: list[threading.Thread] = []

    def says(data: bytes) -> int:
        listener = socket.create_server(("127.0.0.1", 0))
        open_.append(listener)

        def serve() -> None:
            with suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    open_.append(connection)
                    connection.settimeout(20)
                    if connection.recv(4096) and data:
                        connection.sendall(data)
                        connection.close()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        threads.append(thread)
        return listener.getsockname()[1]

    yield says
    # A connection that is accepted meanwhile is the next one of the list.
    for one in open_:
        with suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    for one in open_:
        one.close()


def http(body: str, status: str = "200 OK") -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()


def test_descriptions_come_back_as_they_were():
    for device in (FULL, DeviceInfo("0", "CPU")):
        assert DeviceInfo.from_json(device.to_json()) == device


def test_devices(says: Says):
    import json

    port = says(http(json.dumps([FULL.to_json()])))
    runner = RunnerAtPort(port)
    assert isinstance(runner, FilteredRunnerDiscovery) and runner.get_port() == port
    assert get_devices_from_runner(port) == get_devices_from_runner(runner) == [FULL]
    assert not runner.has_exited()


def test_active_devices(says: Says):
    runner = RunnerAtPort(says(http('[{"id": "1", "backend": "CUDA"}]')))
    assert runner.get_active_device_ids() == [DeviceID("1", "CUDA")]


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (b"nonsense\r\n\r\n", ComputeError),
        (b"\xff" * 10, ComputeError),
        (b"", ComputeError),
        (http("[]", "500 Internal Server Error"), ComputeError),
        (http("{"), FormatError),
        (http("[" * 100_000), FormatError),
        (http("7"), FormatError),
        (http("[7]"), FormatError),
        (http("[{}]"), FormatError),
        (http('[{"id": "0", "total_memory": "much"}]'), FormatError),
        (http('[{"id": "0", "LibraryPath": 5}]'), FormatError),
    ],
    ids=range(11),
)
def test_nonsense(says: Says, answer: bytes, error: type[Exception]):
    port = says(answer)
    with pytest.raises(error):
        RunnerAtPort(port).get_device_infos(0.2)
    if answer:
        with pytest.raises(error):
            RunnerAtPort(port).get_active_device_ids()


def test_nobody_listens(says: Says):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    assert RunnerAtPort(port).has_exited()
    with pytest.raises(ComputeError, match="ended"):
        get_devices_from_runner(port)


@pytest.mark.parametrize("port", [0, -1, 65536, True, "80", None])
def test_no_port(port: Any):
    with pytest.raises((ConfigError, Unsupported)):
        get_devices_from_runner(port)
    with pytest.raises(ConfigError, match="65535"):
        RunnerAtPort(port)
