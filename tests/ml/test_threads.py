"""The number of threads: first by affinity, then by the load of the machine."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

import numpy as np
import pytest

from ggmodel.ml import Backend, DType
from ggmodel.ml.ggml import GGMLBackend
from ggmodel.ml.ggml import cpu as module
from ggmodel.ml.ggml.cpu import Policy, Threads
from ggmodel.native import ThreadPool
from tests.ml.harness import backend_of, normal

# The same number of busy processes on each core, so that threads wait on any core.
BUSY = "import os, sys; os.sched_setaffinity(0, {int(sys.argv[1])})\nwhile True: pass"
linux = pytest.mark.skipif(
    not os.path.exists("/proc/self/schedstat"), reason="the system does not tell who waits"
)


class Machine:
    """A clock, and other processes that keep `busy` of `cores` cores busy; threads share the rest
    evenly."""

    def __init__(self, cores: int):
        self.policy = Policy(cores)
        self.cores, self.busy, self.now = cores, 0.0, 100.0

    def run(self, seconds: float) -> list[int]:
        """The numbers of threads in the windows of these seconds."""
        seen, end = [], self.now + seconds
        while self.now < end:
            seen.append(self.policy.n)
            self.now += 0.2
            free = self.cores - self.busy - self.policy.n
            self.policy.judge(self.now, max(0.0, -free), max(0.0, free))
        return seen


@pytest.mark.parametrize("cores", [1, 2, 3, 8, 64])
def test_on_a_quiet_machine_all_cores_compute(cores: int):
    assert set(Machine(cores).run(600)) == {cores}


@pytest.mark.parametrize(
    ("cores", "busy", "n"),
    [(2, 1, 1), (2, 8, 1), (2, 0.4, 2), (3, 1, 2), (8, 1, 7), (8, 3, 5), (8, 0.2, 8), (8, 0.5, 7)],
)
def test_the_cores_that_are_left_compute(cores: int, busy: float, n: int):
    machine = Machine(cores)
    machine.run(5)
    machine.busy = busy
    assert set(machine.run(60)[1:]) == {n}
    machine.busy = 0
    assert machine.run(2)[-1] == cores


def test_what_took_a_core_for_a_moment_costs_less_than_a_second():
    machine = Machine(2)
    machine.busy = 1
    assert machine.run(0.2) == [2]
    machine.busy = 0
    assert machine.run(1)[-1] == 2


def test_trying_again_becomes_rarer():
    """Idle cores, but waiting threads, for instance because of a quota."""
    policy, now, tries = Policy(2), 100.0, []
    while now < 700:
        now += 0.2
        if policy.n == 2:
            tries.append(now)
        policy.judge(now, lost=1.0 if policy.n == 2 else 0.0, idle=1.0)
    pauses = np.diff(tries)
    assert pauses[0] < 2 and pauses[-1] > 29
    assert len(tries) < 30


def test_pauses_begin_anew_after_a_quiet_time():
    machine = Machine(2)
    for _ in range(4):
        machine.busy = 1
        machine.run(0.4)
        machine.busy = 0
        assert machine.run(15)[-1] == 2
    machine.busy = 1
    machine.run(0.4)
    machine.busy = 0
    assert machine.run(1)[-1] == 2


def test_after_a_rest_others_may_be_there():
    policy = Policy(8)
    policy.start(0, 64)
    assert policy.n == 8
    policy.start(0, 5)
    assert policy.n == 5
    policy.start(0, -3)
    assert policy.n == 1


def test_short_requests_get_their_threads_back():
    """They are too short for a window: only the check before them counts."""
    policy = Policy(8)
    policy.start(100.0, 1)
    assert policy.n == 1
    policy.start(100.1, 8)
    assert policy.n == 1  # just fallen
    policy.start(103.0, 6)
    assert policy.n == 6
    policy.start(106.0, 8)
    assert policy.n == 8


@linux
def test_cores_and_what_runs_on_them_are_those_of_one_machine(monkeypatch: pytest.MonkeyPatch):
    """A container may see two of a host's cores, and the load of all of them."""
    cores = "".join(f"cpu{n} 1 2 3 4 5\n" for n in range(64))
    stat = f"cpu 1 2 3 4 5\n{cores}procs_running 30\n"
    monkeypatch.setattr(module, "_read", lambda _: stat)
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    assert module.cores_left() == 64 - 29


# with the threads themselves


@pytest.fixture
def pair(monkeypatch: pytest.MonkeyPatch) -> Iterator[Backend]:
    """A backend of two threads on any number of cores, which sees no other load at its start."""
    hardware = "ggmodel.ml.ggml.hardware.available_cores"
    monkeypatch.setattr(hardware, lambda: 2)
    monkeypatch.setattr(module, "cores_left", lambda: 2)
    monkeypatch.setattr(module, "_WINDOW", 0.05)
    with backend_of({"w": normal(64, 64)}, threads=0) as backend:
        yield backend


def computing(backend: Backend, seconds: float, until: int = 0) -> list[int]:
    """Computes for some seconds, or until a number of threads; returns the numbers seen."""
    w = backend.get("w")
    assert w is not None
    seen: list[int] = []
    with backend.new_context() as ctx, ctx.trace():
        y = ctx.feed(lambda step: step, DType.F32, 64)
        for _ in range(10):
            y = w.mulmat(y).rms_norm()
        ctx.forward(y)
        executable = backend.compile(ctx.graph, (y,))
        end = time.monotonic() + seconds
        while time.monotonic() < end and until not in seen[-1:]:
            executable.run(normal(64))
            seen.append(_threads(backend).n)
        executable.close()
    return seen


def _threads(backend: Backend) -> Threads:
    assert isinstance(backend, GGMLBackend)
    return backend.hardware.threads


@contextmanager
def busy_cores() -> Iterator[None]:
    """Starts two busy processes on every core of this process."""
    cores = [n for n in os.sched_getaffinity(0) for _ in range(2)]
    started = [subprocess.Popen([sys.executable, "-c", BUSY, str(n)]) for n in cores]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


@linux
def test_busy_processes_take_threads_away(pair: Backend):
    with busy_cores():
        time.sleep(0.5)
        assert computing(pair, 60, until=1)[-1] == 1
        assert set(computing(pair, 1)) == {1}  # nothing idle: none tried again
    pool = _threads(pair)._pool
    assert pool is not None and pool.n_threads == 1


@linux
def test_they_come_back(pair: Backend, monkeypatch: pytest.MonkeyPatch):
    """A test's machine is rarely quiet, so the observations are simulated."""
    monkeypatch.setattr(module, "waited", lambda tasks: {1: time.perf_counter()})
    assert computing(pair, 60, until=1)[-1] == 1
    monkeypatch.setattr(module, "waited", lambda tasks: {})
    monkeypatch.setattr(module, "idle", lambda: 0.0)
    assert set(computing(pair, 1)) == {1}
    monkeypatch.setattr(module, "idle", lambda: 3 * time.perf_counter())
    assert computing(pair, 60, until=2)[-1] == 2


# A thread computes, and others take over.


class Clock:
    """Replaces the module `time`; stands still unless it is moved."""

    now = 100.0

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture
def clock(pair: Backend, monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    return clock


@pytest.fixture
def judged(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The number of threads that waited for a core, by window."""
    lost: list[float] = []
    judge = Policy.judge

    def spy(policy: Policy, now: float, waiting: float, idle: float) -> None:
        lost.append(waiting)
        judge(policy, now, waiting, idle)

    monkeypatch.setattr(Policy, "judge", spy)
    return lost


@pytest.fixture
def callers() -> Iterator[list[ThreadPoolExecutor]]:
    with ExitStack() as ended:
        yield [ended.enter_context(ThreadPoolExecutor(1)) for _ in range(2)]


def one_graph(threads: Threads, clock: Clock) -> None:
    """Graphs of which ten and a half fill a window."""
    began = threads.begin()
    clock.now += 0.05 / 10.5
    threads.end(began)


@linux
def test_a_caller_that_waits_gives_threads_up(
    pair: Backend,
    clock: Clock,
    judged: list[float],
    callers: list[ThreadPoolExecutor],
    monkeypatch: pytest.MonkeyPatch,
):
    """The thread that opens a window is watched, whichever computed before."""
    monkeypatch.setattr(module, "_WINDOW", 0.025)
    waits = callers[1].submit(threading.get_native_id).result()
    monkeypatch.setattr(
        module, "waited", lambda tasks: {t: (t == waits) * clock.now for t in tasks}
    )
    for caller in callers:
        for _ in range(12):
            assert _threads(pair).n == 2
            caller.submit(one_graph, _threads(pair), clock).result()
    assert _threads(pair).n == 1
    # The first caller's two windows; its third ends with the other caller, and is not that one's.
    assert judged == [0.0, 0.0, 0.0, pytest.approx(1)]


@linux
def test_what_callers_waited_before_does_not_count(
    pair: Backend,
    clock: Clock,
    judged: list[float],
    callers: list[ThreadPoolExecutor],
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(module, "waited", lambda tasks: dict.fromkeys(tasks, 1e6))
    for i in range(44):
        callers[i % 2].submit(one_graph, _threads(pair), clock).result()
    assert judged == [0.0] * 4 and _threads(pair).n == 2


@linux
def test_callers_that_ended_break_nothing(
    pair: Backend, clock: Clock, judged: list[float], monkeypatch: pytest.MonkeyPatch
):
    """Waits of ended threads are unknown; those of the others count."""
    known = module.waited
    monkeypatch.setattr(module, "waited", lambda tasks: dict.fromkeys(known(tasks), clock.now))
    (task,) = _pool_tasks(pair)
    for _ in range(11):
        with ThreadPoolExecutor(1) as caller:
            assert task in _threads(pair)._waited
            caller.submit(one_graph, _threads(pair), clock).result()
    assert len(judged) == 1 and judged[0] >= 0.99 and _threads(pair).n == 1


@linux
def test_a_known_caller_costs_no_call_of_the_system(
    pair: Backend,
    clock: Clock,
    callers: list[ThreadPoolExecutor],
    monkeypatch: pytest.MonkeyPatch,
):
    for caller in callers:
        caller.submit(one_graph, _threads(pair), clock).result()
    for name in ("waited", "idle"):
        monkeypatch.setattr(module, name, lambda *_: pytest.fail("the system is asked again"))
    for caller in 2 * callers:
        caller.submit(one_graph, _threads(pair), clock).result()


@linux
def test_a_number_that_was_asked_for_stays(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("ggmodel.ml.ggml.hardware.available_cores", lambda: 2)
    monkeypatch.setattr(module, "_WINDOW", 0.001)
    monkeypatch.setattr(module, "cores_left", lambda: 0)
    monkeypatch.setattr(module, "waited", lambda tasks: {1: time.perf_counter()})
    with backend_of({"w": normal(64, 64)}, threads=2) as backend:
        assert set(computing(backend, 0.2)) == {2}


@linux
def test_after_a_rest_the_first_graph_is_spared(pair: Backend, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.undo()
    with busy_cores():
        time.sleep(0.5)
        assert computing(pair, 0.01)[0] == 1


@linux
def test_waiting_is_seen():
    """Beside a busy process on the same core."""
    before, me = os.sched_getaffinity(0), threading.get_native_id()
    core = min(before)
    process = subprocess.Popen([sys.executable, "-c", BUSY, str(core)])
    try:
        os.sched_setaffinity(0, {core})
        began, already = time.perf_counter(), module.waited([me])[me]
        while module.waited([me])[me] - already < 0.2:
            assert time.perf_counter() < began + 60
        assert time.perf_counter() - began >= 0.2
    finally:
        os.sched_setaffinity(0, before)
        process.kill()
        process.wait()


@linux
def test_the_threads_of_a_pool_are_known():
    with ThreadPool(3) as pool:
        assert len(pool.tasks) >= 2
        assert module.waited(pool.tasks).keys() == set(pool.tasks)
    assert module.waited([-1]) == {}


@linux
def test_idle_cores_are_counted():
    began, before = time.perf_counter(), module.idle()
    time.sleep(0.3)
    elapsed = time.perf_counter() - began
    cores = len(os.sched_getaffinity(0))
    assert 0 <= module.idle() - before <= cores * (elapsed + 0.05)


def test_a_system_that_tells_nothing_keeps_its_threads(
    pair: Backend, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.undo()
    monkeypatch.setattr(module, "_read", lambda _: "")
    monkeypatch.setattr(module, "_WINDOW", 0.001)
    assert set(computing(pair, 1)) == {2}
    assert module.cores_left() == os.cpu_count()


@linux
def test_threads_stay_within_the_affinity():
    script = (
        "import os, numpy\n"
        "from ggmodel.gguf_file import MemorySource\n"
        "from ggmodel.ml import BackendParams, new_backend\n"
        "os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
        "metadata = {'general.architecture': 'test', 'test.block_count': 1}\n"
        "source = MemorySource(metadata, {'w': numpy.zeros(32, numpy.float32)})\n"
        "with new_backend(source, BackendParams(num_threads=8)) as backend:\n"
        "    hardware = backend.hardware\n"
        "    hardware.threads.begin()\n"
        "    assert hardware.n_threads == hardware.threads.n == 1\n"
        "    assert hardware.threads._pool.n_threads == 1\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@linux
def test_an_affinity_that_shrinks_later_takes_threads_away(pair: Backend):
    """Two threads are left with one core, where each waits for the other."""
    before = os.sched_getaffinity(0)
    tasks = (0, *_pool_tasks(pair))
    try:
        for task in tasks:
            os.sched_setaffinity(task, {min(before)})
        assert computing(pair, 60, until=1)[-1] == 1
        assert set(computing(pair, 1)) == {1}
    finally:
        os.sched_setaffinity(0, before)


def _pool_tasks(backend: Backend) -> tuple[int, ...]:
    _threads(backend).begin()
    pool = _threads(backend)._pool
    assert pool is not None
    return pool.tasks


def test_results_do_not_depend_on_the_number_of_threads(
    pair: Backend, monkeypatch: pytest.MonkeyPatch
):
    """Bit for bit; only fused attention of one query over 512 cells or more sums in another
    order."""
    monkeypatch.setattr(module, "_WINDOW", math.inf)
    w = pair.get("w")
    assert w is not None
    threads, got = _threads(pair), []
    with pair.new_context() as ctx, ctx.trace():
        x = ctx.feed(lambda step: step, DType.F32, 64, 7)
        y = w.mulmat(x).rms_norm().softmax()
        ctx.forward(y)
        executable = pair.compile(ctx.graph, (y,))
        for n in (2, 1):
            threads._policy.most = threads._policy.n = n
            threads._ended = -math.inf
            executable.run(normal(7, 64))
            assert threads._pool is not None and threads._pool.n_threads == n
            got.append(executable.value(y).tobytes())
        executable.close()
    assert got[0] == got[1]
