"""The parent survives the process, and the process does not survive the parent."""

from __future__ import annotations

import gc
import json
import logging
import os
import signal
import socket
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ggmodel.errors import ComputeError, DeviceLost, GraphError, Unsupported
from ggmodel.gguf_file import MemorySource
from ggmodel.ml import (
    BackendParams,
    DeviceID,
    DType,
    FilteredRunnerDiscovery,
    get_devices_from_runner,
    new_backend,
    refresh_free_memory,
)
from ggmodel.ml.process import RunnerProcess, process_backend
from ggmodel.ml.process.protocol import Channel
from ggmodel.ml.runner_discovery import RunnerAtPort
from tests.ml.conftest import Make
from tests.ml.harness import METADATA, normal
from tests.ml.process.conftest import WIDE, alive, doubling, endless, python, wait_for

FOUR = np.arange(4, dtype=np.float32)
MATRIX = np.ones((512, 1024), np.float32)


@pytest.mark.parametrize("program", [None, "", "/nowhere/python", "a\0b"])
def test_a_host_that_cannot_start_python(program: str | None, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("sys.executable", program)
    with pytest.raises(Unsupported, match=r"need a Python process .* cannot start: .*without rpc"):
        RunnerProcess()


# the process dies


def test_it_is_killed_while_it_computes(runner: RunnerProcess, in_process: Make):
    backend = in_process(runner, WIDE)
    executable, context = endless(backend), backend.new_context()
    threading.Timer(0.3, os.kill, (runner.pid, signal.SIGKILL)).start()
    began = time.monotonic()
    with pytest.raises(DeviceLost, match="the process that computed ended by SIGKILL") as lost:
        executable.run(MATRIX)
    assert time.monotonic() - began < 5
    assert isinstance(lost.value, ComputeError)
    w = backend.get("w")
    assert w is not None
    began = time.monotonic()
    for use in (
        lambda: executable.run(MATRIX),
        lambda: executable.value(w),
        w.numpy,
        lambda: backend.compile(context.graph, ()),
        lambda: context.layer(0).zeros(DType.F32, 4),
        lambda: context.reserve(),
        backend.new_context,
        backend.load,
        backend.allocate,
        backend.backend_memory,
        backend.backend_devices,
        runner.devices,
    ):
        with pytest.raises(DeviceLost, match="SIGKILL; load the model again"):
            use()
    assert not executable.valid
    executable.close()
    context.close()
    backend.close()
    runner.close()
    assert time.monotonic() - began < 1
    with RunnerProcess() as another:
        again, y = doubling(in_process(another))
        again.run(FOUR)
        assert again.value(y).reshape(-1).tolist() == [0, 2, 4, 6]


def test_it_dies_between_two_requests(runner: RunnerProcess, in_process: Make):
    backend = in_process(runner)
    with backend.new_context() as ctx:
        ctx.layer(0).zeros(DType.F32, 4)
        executable, _ = doubling(backend)
        os.kill(runner.pid, signal.SIGTERM)
        wait_for(runner.has_exited)
        with pytest.raises(DeviceLost, match="SIGTERM"):
            executable.run(FOUR)
    backend.close()


CRASHING = """
import sys
from ggmodel.ml.process import child
from ggmodel.native import lib, ffi
child.Service.crash = lambda self: lib.ggml_backend_buffer_get_size(ffi.NULL)
child.main(int(sys.argv[1]), int(sys.argv[2]))
"""


def test_an_assert_of_ggml_is_quoted(monkeypatch: pytest.MonkeyPatch):
    popen = subprocess.Popen

    def patched(command: list[str], **options: Any) -> object:
        return popen([command[0], "-c", CRASHING, *command[-2:]], **options)

    monkeypatch.setattr("ggmodel.ml.process.conversation.subprocess.Popen", patched)
    with RunnerProcess() as runner:
        with pytest.raises(
            DeviceLost, match=r"ended by SIGABRT: ggml-backend\.cpp:\d+: GGML_ASSERT\(buffer\)"
        ):
            runner.request("crash")
        assert runner.has_exited()


# it is ended


def test_closing(in_process: Make):
    backend = in_process()
    runner = backend.runner
    executable, y = doubling(backend)
    executable.run(FOUR)
    assert executable.valid and alive(runner.pid)
    for _ in range(2):
        backend.close()
        runner.close()
    assert not Path(f"/proc/{runner.pid}").exists()  # no zombie either
    assert not executable.valid and runner.has_exited()
    for use in (lambda: executable.run(FOUR), lambda: executable.value(y), backend.load):
        with pytest.raises(GraphError, match="closed"):
            use()
    with pytest.raises(GraphError, match="closed"):
        runner.devices()
    with pytest.raises(ComputeError, match="the runner ended"):
        get_devices_from_runner(runner)


def test_closing_while_another_thread_computes(in_process: Make):
    backend = in_process(None, WIDE)
    executable = endless(backend)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(executable.run, MATRIX)
        time.sleep(0.3)
        began = time.monotonic()
        backend.runner.close()
        assert time.monotonic() - began < 4
        with pytest.raises(GraphError, match="closed"):
            running.result()
    backend.close()


def test_a_runner_outlives_its_backends(shared: RunnerProcess, in_process: Make):
    with in_process(shared) as kept:
        executable, y = doubling(kept)
        with in_process(shared) as closed:
            other, _ = doubling(closed)
        assert not other.valid
        executable.run(FOUR)
        assert executable.value(y).reshape(-1).tolist() == [0, 2, 4, 6]


@pytest.mark.slow
def test_a_dropped_backend_ends_its_process(in_process: Make):
    backend = in_process()
    pid = backend.runner.pid
    graph = doubling(backend)
    del backend, graph
    gc.collect()
    assert not Path(f"/proc/{pid}").exists()


def resident(pid: int) -> int:
    """Bytes of memory in use."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.slow
def test_dropped_backends_and_graphs_are_freed(in_process: Make, monkeypatch: pytest.MonkeyPatch):
    # Otherwise the heap keeps freed memory.
    monkeypatch.setenv("MALLOC_MMAP_THRESHOLD_", str(1 << 20))
    w = np.ones(1 << 22, np.float32)
    sizes = []
    with RunnerProcess() as runner:
        for _ in range(8):
            for _ in range(10):
                doubling(in_process(runner, {"w": w}))
            gc.collect()
            runner.devices()
            sizes.append(resident(runner.pid))
    assert max(sizes[3:]) < max(sizes[:3]) + w.nbytes  # 50 times that if none were freed


@pytest.mark.slow
@pytest.mark.alone
def test_memory_does_not_grow(runner: RunnerProcess, in_process: Make):
    backend = in_process(runner)
    executable, y = doubling(backend)
    sizes = []
    for i in range(1200):
        executable.run(FOUR)
        executable.value(y)
        if i % 10 == 0:
            doubling(backend)
        if i % 1000 == 199:
            sizes.append(np.array([resident(runner.pid), resident(os.getpid())]))
    assert (sizes[1] - sizes[0] < 1 << 20).all()


# its parent ends

PARENT = """
import os, signal, sys
from ggmodel.ml.process import RunnerProcess
runner = RunnerProcess()
runner.devices()
{}
print(runner.pid, flush=True)
{}
"""


@pytest.mark.parametrize(
    ("first", "last"),
    [
        ("", "pass"),
        ("", "os._exit(1)"),
        ("", "os.kill(os.getpid(), signal.SIGKILL)"),
        ("", "os.abort()"),
        # A fork of the parent does not keep it alive.
        ("if not os.fork(): signal.pause()", "os.kill(os.getpid(), signal.SIGKILL)"),
    ],
    ids=["returns", "exits", "is killed", "aborts", "forked"],
)
def test_its_parent_ends(first: str, last: str):
    code = PARENT.format(first, last)
    with python(code, start_new_session=True, preexec_fn=_no_core) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        parent.wait(10)
        try:
            wait_for(lambda: not alive(pid))
        finally:
            if "fork" in first:
                os.killpg(parent.pid, signal.SIGKILL)


def _no_core() -> None:
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


FORK = """
import os, sys
import numpy as np
from ggmodel.errors import GraphError
from tests.ml.harness import METADATA
from tests.ml.process.conftest import doubling
from ggmodel.gguf_file import MemorySource
from ggmodel.ml import BackendParams, new_backend
from ggmodel.ml.process import RunnerProcess
runner = RunnerProcess()
source = MemorySource(METADATA, {"w": np.zeros(4, np.float32)})
backend = new_backend(source, BackendParams(num_threads=1), runner=runner)
backend.load()
executable, y = doubling(backend)
pid = os.fork()
if not pid:
    try:
        executable.run(np.zeros(4))
    except GraphError as error:
        assert "before the process forked" in str(error)
        executable.close()
        backend.close()
        runner.close()
        with RunnerProcess() as own:
            own.devices()
        sys.exit(0)
    sys.exit(1)
assert os.waitpid(pid, 0)[1] == 0
executable.run(np.ones(4))
assert executable.value(y).sum() == 8
backend.close()
"""


@pytest.mark.slow
def test_after_a_fork_it_belongs_to_the_parent():
    with python(FORK) as process:
        assert process.wait(60) == 0


# interrupts

INTERRUPTED = """
import os, signal, threading, time
import numpy as np
from tests.ml.harness import METADATA
from tests.ml.process.conftest import WIDE, doubling, endless
from ggmodel.gguf_file import MemorySource
from ggmodel.ml import BackendParams, new_backend
from ggmodel.ml.process import RunnerProcess
with RunnerProcess() as runner:
    source = MemorySource(METADATA, WIDE)
    with new_backend(source, BackendParams(num_threads=1), runner=runner) as backend:
        backend.load()
        long, (short, y) = endless(backend, 60), doubling(backend)
        for _ in range(2):
            # As from a terminal: the whole group.
            threading.Timer(0.2, os.killpg, (0, signal.SIGINT)).start()
            began = time.monotonic()
            try:
                long.run(np.ones((512, 1024)))
            except KeyboardInterrupt:
                assert time.monotonic() - began < 0.7
            else:
                raise SystemExit("not interrupted")
            short.run(np.ones(4))
            assert short.value(y).reshape(-1).tolist() == [2, 2, 2, 2]
        # An interruption within a message loses the process.
        runner._torn = True
        from ggmodel.errors import DeviceLost
        try:
            short.run(np.ones(4))
        except DeviceLost as error:
            assert "after an interruption" in str(error)
        else:
            raise SystemExit("not noticed")
"""


@pytest.mark.slow
def test_an_interrupted_request_does_not_disturb_the_next():
    with python(INTERRUPTED, start_new_session=True) as process:
        assert process.wait(60) == 0


# several threads


def test_a_message_that_was_sent_in_part_ends_the_process(
    runner: RunnerProcess, in_process: Make, monkeypatch: pytest.MonkeyPatch
):
    executable, _ = doubling(in_process(runner))

    def interrupted(channel: Channel, frame: Any) -> None:
        channel._socket.sendall(bytes(frame[0])[:4])
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Channel, "send", interrupted)
        with pytest.raises(KeyboardInterrupt):
            executable.run(FOUR)
    with pytest.raises(DeviceLost, match="ended after an interruption within a message"):
        runner.get_device_infos(5)
    with pytest.raises(DeviceLost, match="ended after an interruption within a message"):
        executable.run(FOUR)


def test_ten_threads(shared: RunnerProcess, in_process: Make):
    def work(i: int) -> None:
        with in_process(shared, {"w": normal(64, 64, seed=i)}) as backend:
            w = backend.get("w")
            assert w is not None
            with backend.new_context() as ctx, ctx.trace():
                y = w.mulmat(ctx.feed(lambda step: step, DType.F32, 64))
                ctx.forward(y)
                executable = backend.compile(ctx.graph, (y,))
            for step in range(30):
                x = normal(64, seed=step)
                executable.run(x)
                got = executable.value(y).reshape(-1)
                np.testing.assert_allclose(got, normal(64, 64, seed=i) @ x, rtol=1e-3, atol=1e-4)

    with ThreadPoolExecutor(10) as pool:
        list(pool.map(work, range(10)))


# discovery


def test_it_discovers_devices(runner: RunnerProcess, in_process: Make):
    from ggmodel.ml.ggml.hardware import discover

    assert isinstance(runner, FilteredRunnerDiscovery)
    port = runner.get_port()
    assert port == runner.get_port() and port == RunnerAtPort(port).get_port()
    assert not runner.has_exited() and not RunnerAtPort(port).has_exited()
    known = [d.device_id for d in discover()]
    assert [d.device_id for d in get_devices_from_runner(port)] == known
    assert RunnerAtPort(port).get_active_device_ids() == []
    assert [d.device_id for d in get_devices_from_runner(runner)] == known
    assert [d.device_id for d in runner.devices()] == known
    assert runner.get_active_device_ids() == []
    backend = in_process(runner)
    runner.occupy(backend.number, [DeviceID("0", "RPC")])
    assert runner.get_active_device_ids() == [DeviceID("0", "RPC")]
    assert refresh_free_memory([], [runner]) == []
    backend.close()
    assert runner.get_active_device_ids() == []


def test_it_answers_questions_over_http_while_it_computes(runner: RunnerProcess, in_process: Make):
    executable = endless(in_process(runner, WIDE))
    address = "127.0.0.1", runner.get_port()
    answers = {"/info": 200, "/active": 200, "/state": 200, "/nothing": 404, "/": 404}
    with ThreadPoolExecutor(1) as pool, socket.create_connection(address):  # who says nothing
        running = pool.submit(executable.run, MATRIX)
        for path, status in answers.items():
            connection = HTTPConnection(*address, timeout=10)
            connection.request("GET", path)
            answer = connection.getresponse()
            assert answer.status == status
            told = json.loads(answer.read())
            assert told == {"/active": [], "/info": told}.get(path)
            connection.close()
        for stranger in (b"", b"\r\n\r\n", b"GET", b"\0" * 8192):
            with socket.create_connection(address) as end, suppress(OSError):
                end.sendall(stranger)
                end.shutdown(socket.SHUT_WR)
                end.recv(1 << 16)
        assert RunnerAtPort(address[1]).get_active_device_ids() == []
        assert not running.done()
        runner.close()
        with pytest.raises(GraphError, match="closed"):
            running.result()
    assert RunnerAtPort(address[1]).has_exited()


@pytest.mark.slow
def test_it_answers_late(runner: RunnerProcess, in_process: Make):
    backend = in_process(runner, WIDE)
    executable = endless(backend, 50)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(executable.run, MATRIX)
        time.sleep(0.1)
        with pytest.raises(ComputeError, match=r"did not list its devices in 0\.1 s"):
            runner.get_device_infos(0.1)
        running.result()
    assert isinstance(runner.get_device_infos(30), list)
    os.kill(runner.pid, signal.SIGSTOP)
    with pytest.raises(ComputeError, match="did not list"):
        runner.get_device_infos(0.1)
    os.kill(runner.pid, signal.SIGCONT)
    again, y = doubling(backend)
    again.run(FOUR)
    assert again.value(y).reshape(-1).tolist() == [0, 2, 4, 6]


def test_states_are_freed_once_the_process_has_time(
    runner: RunnerProcess, in_process: Make, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(process_backend, "_TIMEOUT", 0.05)
    backend = in_process(runner, WIDE)
    cache = backend.new_context()
    cache.layer(0).zeros(DType.F32, 1000)
    with runner._lock:  # as behind an interrupted call, which the process still computes
        cache.close()
    assert sum(backend.backend_memory().cpu.cache) == 4000
    with backend.new_context() as other:
        other.layer(0).zeros(DType.F32, 1)
    assert sum(backend.backend_memory().cpu.cache) == 0


def test_its_log_is_ours(shared: RunnerProcess, caplog: pytest.LogCaptureFixture):
    source = MemorySource(METADATA, {"w": normal(1)})
    with caplog.at_level(logging.WARNING, "ggmodel"):
        new_backend(source, BackendParams(num_threads=10_000), runner=shared).close()
    assert ("ggmodel.ml", logging.WARNING) in [(r.name, r.levelno) for r in caplog.records]
    assert "10000 wanted" in caplog.text
