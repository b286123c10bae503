"""`ggmodel worker`: its devices, its refusals, its end."""

from __future__ import annotations

import contextlib
import errno
import re
import select
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer

from ggmodel.cli import app
from ggmodel.errors import ConfigError
from ggmodel.ml import DeviceInfo
from ggmodel.ml.ggml import worker as worker_module
from tests.conftest import ROOT
from tests.ml.harness import free_port
from tests.ml.rpc.conftest import Worker

StartWorker = Callable[..., Worker]
Client = Callable[[str], contextlib.AbstractContextManager[subprocess.Popen[str]]]

# Prints a worker's devices, then stays connected until its standard input closes.
_CLIENT = """
import sys
from ggmodel.native import ffi, lib, proc
registry = lib.ggml_backend_reg_by_name(b"RPC")
server = proc(registry, "ggml_backend_rpc_add_server")(sys.argv[1].encode())
free, total = ffi.new("size_t *"), ffi.new("size_t *")
for i in range(lib.ggml_backend_reg_dev_count(server)):
    device = lib.ggml_backend_reg_dev_get(server, i)
    lib.ggml_backend_dev_memory(device, free, total)
    print(i, free[0], total[0], ffi.string(lib.ggml_backend_dev_description(device)).decode())
    # The connection lasts from one question to the next only with memory on the device.
    assert lib.ggml_backend_buft_alloc_buffer(lib.ggml_backend_dev_buffer_type(device), 1 << 20)
print("done", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def client(rpc_environment: dict[str, str]) -> Client:
    """`with client(endpoint) as process:` is one in a process of its own."""

    @contextlib.contextmanager
    def connect(endpoint: str) -> Iterator[subprocess.Popen[str]]:
        with subprocess.Popen(
            [sys.executable, "-c", _CLIENT, endpoint],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=rpc_environment,
            text=True,
        ) as process:
            try:
                yield process
            finally:
                process.kill()

    return connect


def seen(client: subprocess.Popen[str]) -> list[tuple[int, int]]:
    """The devices as the client sees them: free and total memory."""
    assert client.stdout
    lines = iter(client.stdout.readline, "done\n")
    return [(int(free), int(total)) for _, free, total, *_ in map(str.split, lines)]


@pytest.fixture
def refused(rpc_environment: dict[str, str]) -> Callable[..., str]:
    """`refused("--port", 0)` is the error of a worker that cannot start."""

    def start(*arguments: object, **variables: str) -> str:
        command = [sys.executable, "-m", "ggmodel", "worker", *map(str, arguments)]
        environment = rpc_environment | variables
        ran = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60)
        assert (ran.returncode, ran.stdout) == (1, ""), ran.stderr
        assert re.fullmatch(r"error: [^\n]+\n", ran.stderr)
        return ran.stderr

    return start


def test_it_says_what_it_serves_and_how_to_use_it(worker: StartWorker):
    one = worker("--device", "CPU")
    device, serving, use, tunnel = one.out.splitlines()
    assert re.match(r"CPU +\S.* \d+\.\d\d [GT]iB free of \d+\.\d\d [GT]iB +1 thread *$", device)
    assert serving == f"serving at 127.0.0.1:{one.port} until Ctrl-C"
    assert use == f"use it with  --rpc 127.0.0.1:{one.port}"
    assert f"ssh -N -L {one.port}:127.0.0.1:{one.port} " in tunnel
    assert "WARNING" not in one.err


def test_a_client_sees_its_device(worker: StartWorker, client: Client):
    one = worker("--device", "CPU", "--device", "CPU")
    with client(one.endpoint) as process:
        [(free, total)] = seen(process)
    assert 0 < free <= total
    # Without the output of ggml's server.
    assert len(one.out.splitlines()) == 4


def test_without_a_choice_there_is_something_to_serve(worker: StartWorker, client: Client):
    one = worker()
    devices = one.out.splitlines()[:-3]
    with client(one.endpoint) as process:
        assert len(seen(process)) == len(devices) >= 1


def test_it_outlives_its_clients(worker: StartWorker, client: Client):
    one = worker()
    for _ in range(2):
        with client(one.endpoint) as process:
            assert seen(process)
            process.kill()
    # A client with another protocol does not end it either.
    with socket.create_connection((one.host, one.port)) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
    with client(one.endpoint) as process:
        assert seen(process)
    assert one.process.poll() is None
    assert "HELLO" in one.err


def test_clients_are_served_one_after_the_other(worker: StartWorker, client: Client):
    one = worker()
    with client(one.endpoint) as first:
        assert seen(first)
        with client(one.endpoint) as second:
            assert first.stdin and second.stdout
            assert not select.select([second.stdout], [], [], 1.0)[0]
            first.stdin.close()
            assert seen(second)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_ends_at_once(worker: StartWorker, client: Client, number: signal.Signals):
    assert worker().end(number) == -number
    one = worker()
    with client(one.endpoint) as process:
        assert seen(process)
        assert one.end(number) == -number


@pytest.mark.parametrize("host", ["localhost", "127.1"])
def test_names_of_the_loopback_interface(worker: StartWorker, host: str):
    one = worker("--host", host)
    assert f"serving at 127.0.0.1:{one.port} " in one.out
    assert "WARNING" not in one.err


def test_other_machines_are_warned_about(worker: StartWorker):
    one = worker("--host", "0.0.0.0")
    one.kill()
    assert one.err.startswith("WARNING: ")
    assert "no authentication" in one.err
    assert f"--rpc {socket.gethostname()}:{one.port}\n" in one.out


@pytest.mark.parametrize("port", [0, -1, 65536])
def test_ports_that_are_none(refused: Callable[..., str], port: int):
    assert f"the port is {port}; it must lie between 1 and 65535" in refused("--port", port)


def test_a_port_in_use(worker: StartWorker, refused: Callable[..., str]):
    one = worker()
    message = refused("--port", one.port)
    assert f"cannot listen at {one.endpoint}: the port is in use; choose another" in message


# A label of a name has at most 63 characters; .invalid is reserved for what does not exist.
@pytest.mark.parametrize("host", ["::1", "worker.invalid", "a..b", "x" * 64, ""])
def test_hosts_that_are_none(refused: Callable[..., str], host: str):
    message = refused("--host", host)
    assert repr(host) in message
    assert "IPv4" in message


def test_an_address_of_another_machine(refused: Callable[..., str]):
    # 192.0.2.0/24 is reserved for documentation.
    message = refused("--host", "192.0.2.1", "--port", free_port())
    assert "this machine has no such address; 0.0.0.0 " in message


def test_a_device_that_is_not_there(refused: Callable[..., str]):
    message = refused("--device", "CPU", "--device", "CUDA77")
    assert re.search(r"no device 'CUDA77' here; there is .*\bCPU\b", message)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """`machine("CUDA0", …)` simulates these devices, and RPC."""

    def have(*names: str) -> None:
        types = {"CPU": 0, "BLAS": 3}
        library = SimpleNamespace(
            GGML_BACKEND_DEVICE_TYPE_ACCEL=types["BLAS"],
            GGML_MAX_N_THREADS=4,
            ggml_backend_reg_by_name=lambda name: name,
            ggml_backend_dev_type=lambda handle: types.get(handle, 1),
        )
        found = [DeviceInfo("0", name.rstrip("0123456789"), name=name) for name in names]
        monkeypatch.setattr(worker_module, "lib", library)
        monkeypatch.setattr(worker_module, "by_name", lambda device: device.name)
        monkeypatch.setattr(worker_module, "discover", lambda cpu: found)

    return have


@pytest.mark.parametrize(
    ("there", "wanted", "served"),
    [
        (("CUDA0", "CUDA1", "BLAS", "CPU"), (), ("CUDA0", "CUDA1")),
        (("BLAS", "CPU"), (), ("CPU",)),
        (("CUDA0", "CUDA1", "CPU"), ("CPU", "CUDA1", "CPU"), ("CPU", "CUDA1")),
    ],
)
def test_the_choice_of_devices(machine: Callable[..., None], there: Any, wanted: Any, served: Any):
    machine(*there)
    prepared = worker_module.prepare(port=free_port(), devices=wanted)
    assert tuple(device.name for device in prepared.devices) == served


def test_accelerators_are_no_devices_of_their_own(machine: Callable[..., None]):
    machine("BLAS", "CPU")
    with pytest.raises(ConfigError, match="no device 'BLAS' here; there is CPU"):
        worker_module.prepare(port=free_port(), devices=["BLAS"])


def test_threads_are_at_most_the_cores(
    machine: Callable[..., None], monkeypatch: pytest.MonkeyPatch
):
    machine("CPU")
    for cores, wanted, used in ((2, 1, 1), (2, 2, 2), (2, 3, 2), (64, 5, 4)):
        monkeypatch.setattr(worker_module, "available_cores", lambda cores=cores: cores)
        prepared = worker_module.prepare(port=free_port(), threads=wanted)
        assert prepared.n_threads == used


@pytest.mark.parametrize(
    ("host", "cores", "used"),
    [
        ("127.0.0.1", 1, 1),
        ("127.0.0.1", 2, 1),
        ("localhost", 4, 3),
        ("127.0.0.1", 64, 3),
        ("0.0.0.0", 1, 1),
        ("0.0.0.0", 2, 2),
        ("0.0.0.0", 64, 4),
    ],
)
def test_a_client_on_the_same_machine_is_left_a_core(
    machine: Callable[..., None], monkeypatch: pytest.MonkeyPatch, host: str, cores: int, used: int
):
    machine("CPU")
    monkeypatch.setattr(worker_module, "available_cores", lambda: cores)
    assert worker_module.prepare(host, free_port()).n_threads == used


def test_a_port_of_the_administrator(machine: Callable[..., None], monkeypatch: pytest.MonkeyPatch):
    def bind(*_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    machine("CPU")
    monkeypatch.setattr(socket.socket, "bind", bind)
    with pytest.raises(ConfigError, match=r"127\.0\.0\.1:1: .* choose one above 1023"):
        worker_module.prepare(port=1)


def test_a_ggml_without_rpc(refused: Callable[..., str]):
    # An empty choice selects the pinned wheel.
    message = refused(GGMODEL_GGML="")
    assert "has no RPC backend; `ggmodel ggml build` builds one" in message


def test_wrong_usage(rpc_environment: dict[str, str]):
    for arguments in (("--port", "many"), ("--threads", "0"), ("CPU",)):
        command = [sys.executable, "-m", "ggmodel", "worker", *arguments]
        ran = subprocess.run(command, capture_output=True, text=True, env=rpc_environment)
        assert ran.returncode == 2
        assert "Traceback" not in ran.stderr


def test_the_guide_starts_workers_as_they_can_be_started():
    guide = (ROOT / "docs" / "distributed.md").read_text()
    lines = re.findall(r"^ggmodel worker.*$", guide, re.MULTILINE)
    assert len(lines) >= 2
    known: Any = typer.main.get_command(app)
    command = known.get_command(known.make_context("ggmodel", [], resilient_parsing=True), "worker")
    for line in lines:
        command.make_context("worker", shlex.split(line, comments=True)[2:])


def test_the_system_watches_over_its_clients(worker: Callable[..., Worker]):
    """Otherwise a client whose machine vanished would block the others for ever."""
    one = worker()
    with socket.create_connection((one.host, one.port)) as client:
        ends = {f"{one.port:04X}", f"{client.getsockname()[1]:04X}"}
        end = time.monotonic() + 5
        timer = ""
        # A line a socket; "02:…" in the sixth field is a keep-alive timer (Linux' proc_net_tcp).
        while not timer.startswith("02") and time.monotonic() < end:
            rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
            for row in rows:
                mine, theirs = row[1].rpartition(":")[2], row[2].rpartition(":")[2]
                if {mine, theirs} == ends and mine == f"{one.port:04X}":
                    timer = row[5]
        assert timer.startswith("02")
