"""Processes, sockets, limits and the machine, where they are not Linux's."""

from __future__ import annotations

import ctypes
import importlib
import os
import platform
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ggmodel import concurrency
from ggmodel.ml import system
from ggmodel.platforms import machine, processes, sockets
from ggmodel.serve.runners import llama_process
from tests.children import import_path
from tests.platforms.other import psutil

MODULES = (processes, sockets, machine)


@pytest.fixture
def windows(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The modules as Windows would have them."""
    with monkeypatch.context() as patch:
        patch.setattr(sys, "platform", "win32")
        for module, names in (
            (os, "register_at_fork sched_getaffinity"),
            (signal, "SIGHUP SIGKILL SIGXCPU SIGPROF"),
            (select_of(sockets), "poll"),
        ):
            for name in names.split():
                patch.delattr(module, name)
        patch.setattr(signal, "SIGBREAK", signal.SIGURG, raising=False)
        patch.setitem(sys.modules, "resource", None)
        patch.setitem(sys.modules, "psutil", psutil)
        for module in MODULES:
            importlib.reload(module)
        yield patch
    for module in MODULES:
        importlib.reload(module)


def select_of(module: Any) -> Any:
    return module.select


def test_signals(windows: Any):
    assert processes.ENDING == (signal.SIGTERM, signal.SIGURG)
    raised: list[int] = []
    windows.setattr(signal, "raise_signal", raised.append)
    windows.setattr(os, "kill", lambda *_: pytest.fail("it would end the process"))
    processes.send_myself(signal.SIGINT)
    assert raised == [signal.SIGINT]


def test_children_get_no_ctrl_c(windows: Any):
    assert processes.CHILD == {"creationflags": 0x8000200}
    windows.setattr(concurrency, "CHILD", processes.CHILD)
    with pytest.raises(OSError, match="creationflags"):  # Linux has none
        concurrency.start_python(["-c", ""])


def test_forks_are_no_matter(windows: Any):
    processes.after_fork(lambda: pytest.fail("there are none"))


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (0xC0000005, "ended by an access violation (status 0xc0000005)"),
        (3, "ended by an abort (status 0x3)"),
        (2, "ended with status 2"),
    ],
)
def test_statuses(windows: Any, status: int, words: str):
    assert processes.how_it_ended(status) == words
    assert processes.was_killed(1)
    assert not processes.was_killed(status)
    assert processes.OUT_OF_TIME == (1816,)


def test_statuses_of_linux():
    assert processes.how_it_ended(3) == "ended with status 3"
    assert not processes.was_killed(1)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc's allocator")
def test_memory_of_large_blocks_goes_back():
    """Blocks of 20 MB are free, small ones between them are not; then all but a few small ones."""
    code = """
import ctypes, resource
from ggmodel.platforms import processes

libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.free.argtypes = (ctypes.c_void_p,)

def megabytes():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize() >> 20

def take(size):
    block = libc.malloc(ctypes.c_size_t(size))
    ctypes.memset(block, 1, size)
    return block

processes.prepare_to_serve()
before = megabytes()
libc.free(take(30 << 20))
blocks = [(take(20 << 20), take(100)) for _ in range(8)]
print(megabytes() - before)
for large, _ in blocks:
    libc.free(large)
print(megabytes() - before)
blocks = [take(100_000) for _ in range(1000)]
for i, block in enumerate(blocks):
    if i % 50 != 49:
        libc.free(block)
print(megabytes() - before)
processes.give_memory_back()
print(megabytes() - before)
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": import_path()},
        capture_output=True,
        text=True,
        timeout=60,
    )
    taken, large, small, trimmed = map(int, done.stdout.split())
    assert taken >= 160 and small > 80
    assert large < 10 and trimmed < 20


def test_crashes_show_no_window(windows: Any):
    modes: list[int] = []
    fake = SimpleNamespace(
        SEM_FAILCRITICALERRORS=1, SEM_NOGPFAULTERRORBOX=2, SetErrorMode=modes.append
    )
    windows.setitem(sys.modules, "msvcrt", fake)
    processes.leave_no_core()
    assert modes == [3]


def test_a_pipe_without_a_reader(windows: Any):
    assert processes.has_no_reader(OSError(22, "Invalid argument"))
    assert not processes.has_no_reader(OSError(22, "Invalid argument", "a file"))
    assert not processes.has_no_reader(OSError(28, "No space"))


@pytest.mark.parametrize("wait", ["next_of", "until_set", "result_of"])
def test_waits_let_ctrl_c_in(monkeypatch: pytest.MonkeyPatch, wait: str):
    """Each ends, now and then, to let handlers run."""
    from concurrent.futures import Future
    from queue import SimpleQueue
    from threading import Event

    monkeypatch.setattr(concurrency, "TICK", 0.01)
    queue, event, future = SimpleQueue[int](), Event(), Future[int]()
    ends = {"next_of": queue, "until_set": event, "result_of": future}
    patient = getattr(Event, "wait") if wait != "next_of" else None  # noqa: B009
    looks: list[float | None] = []

    def look(timeout: float | None) -> None:
        looks.append(timeout)
        if len(looks) == 3:
            event.set()
            future.set_result(7)

    if patient is not None:

        def waiting(self: Event, timeout: float | None = None) -> bool:
            look(timeout)
            return patient(self, timeout)

        monkeypatch.setattr(Event, "wait", waiting)
    else:

        def get(timeout: float) -> int:
            from queue import Empty

            look(timeout)
            if len(looks) < 3:
                raise Empty
            return 7

        ends["next_of"] = SimpleNamespace(get=get)  # type: ignore[assignment]
    assert getattr(concurrency, wait)(ends[wait]) in (7, None)
    assert looks == [0.01] * 3


def test_a_port_of_ones_own(windows: Any):
    """SO_REUSEADDR of Windows would take it from another program."""
    windows.setattr(socket, "SO_EXCLUSIVEADDRUSE", -5, raising=False)
    options: list[Any] = []
    sockets.own_port(SimpleNamespace(setsockopt=lambda *given: options.append(given)))  # type: ignore[arg-type]
    assert options == [(socket.SOL_SOCKET, -5, 1)]


def test_arrivals(windows: Any):
    here, there = socket.socketpair()
    with here, there:
        arrives = sockets.arrival(here)
        began = time.monotonic()
        assert not arrives(250)
        assert time.monotonic() - began >= 0.25
        there.send(b"1")
        assert arrives(None)
        assert arrives(0)


def test_connections_are_found(windows: Any):
    """By trying handles; a duplicate is given, and the original stays open."""
    here, there = socket.socketpair()
    with here, there:
        number = 4 * 20
        os.dup2(here.fileno(), number)
        try:
            found = dict(sockets.connections())
            there.send(b"hello")
            assert found[number].recv(5) == b"hello"
            os.fstat(number)
        finally:
            os.close(number)
            for end in found.values():
                end.close()


def test_limits_of_silence(windows: Any):
    given: list[Any] = []
    sockets.limit(SimpleNamespace(setsockopt=lambda *a: given.append(a)), 2.5)  # type: ignore[arg-type]
    assert [option for _, option, _ in given] == [socket.SO_RCVTIMEO, socket.SO_SNDTIMEO]
    assert all(value == struct.pack("@L", 2500) for _, _, value in given)


def test_memory_and_cores(windows: Any, tmp_path: Path):
    """Nothing lies below the folder that stands for the root."""
    assert machine.cores() == len(psutil.Process().cpu_affinity())
    assert machine.peak_memory() == psutil.PEAK
    windows.setattr(system, "machine", machine)
    found = system.system_info(tmp_path)
    assert (found.total_memory, found.free_memory, found.free_swap) == (
        psutil.TOTAL, psutil.FREE, psutil.SWAP,
    )  # fmt: skip
    assert system.total_memory(tmp_path) == psutil.TOTAL


class Kernel:
    """kernel32.dll; notes the calls."""

    def __init__(self) -> None:
        self.limits: list[tuple[Any, ...]] = []
        self.entered: list[tuple[Any, ...]] = []
        self.CreateJobObjectW = self.function(lambda *_: 7)
        self.GetCurrentProcess = self.function(lambda: -1)
        self.AssignProcessToJobObject = self.function(lambda *given: self.entered.append(given))
        self.SetInformationJobObject = self.function(self._set)

    @staticmethod
    def function(work: Callable[..., Any]) -> Any:
        def call(*given: Any) -> Any:
            return work(*given)

        return call

    def _set(self, job: int, kind: int, limits: Any, size: int) -> None:
        found = limits._obj
        basic = found.BasicLimitInformation
        self.limits.append(
            (job, kind, size, basic.LimitFlags, basic.PerProcessUserTimeLimit / 1e7,
             found.ProcessMemoryLimit)
        )  # fmt: skip


def test_limits_of_a_process(monkeypatch: pytest.MonkeyPatch):
    kernel = Kernel()
    monkeypatch.setattr(ctypes, "WinDLL", lambda *_, **__: kernel, raising=False)
    monkeypatch.setattr(os, "times", lambda: SimpleNamespace(user=3.0))
    processes._job.cache_clear()
    try:
        processes.enter_job(1 << 30, 2.5)
        processes.enter_job(1 << 99, 1e30)
    finally:
        processes._job.cache_clear()
    assert kernel.entered == [(7, -1)]
    # 144 bytes are `sizeof(JOBOBJECT_EXTENDED_LIMIT_INFORMATION)` on 64 bits.
    assert kernel.limits[0] == (7, 9, 144, 0x102, 5.5, 1 << 30)
    assert kernel.limits[1][4:] == ((1 << 63) / 1e7, (1 << 64) - 1)


def test_a_program_that_ends_with_its_parent(tmp_path: Path):
    """The parent is killed; somebody watches."""
    code = (
        "import sys; from ggmodel.serve.runners import llama_process; sys.platform = 'darwin'\n"
        "child = llama_process.start_tied([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        "print(child.pid, flush=True); child.wait()"
    )
    environment = {**os.environ, "PYTHONPATH": import_path()}
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, env=environment)
    assert parent.stdout is not None
    with parent.stdout as said:
        child = int(said.readline())
        parent.kill()
        parent.wait(10)
    end = time.monotonic() + 20
    while Path(f"/proc/{child}").exists() and _state(child) != "Z":
        assert time.monotonic() < end
        time.sleep(0.02)


def _state(process: int) -> str:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"


def test_a_program_without_its_watcher(monkeypatch: pytest.MonkeyPatch):
    """It does not run on its own."""
    monkeypatch.setattr(sys, "platform", "darwin")
    begun: list[Any] = []

    class Popen(subprocess.Popen):  # type: ignore[type-arg]
        def __init__(self, *given: Any, **options: Any):
            super().__init__(*given, **options)
            begun.append(self)

    def none(*_: Any, **__: Any) -> Any:
        raise OSError("no process")

    monkeypatch.setattr(subprocess, "Popen", Popen)
    monkeypatch.setattr(concurrency, "start_python", none)
    with pytest.raises(OSError, match="no process"):
        llama_process.start_tied([sys.executable, "-c", "import time; time.sleep(60)"])
    assert begun[0].returncode == -9
