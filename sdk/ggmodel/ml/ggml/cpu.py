"""The CPU: its compute threads and its scratch memory.

There are fewer threads while others want the cores. ggml's threads wait for each other in a spin
after every op. If one of them waits for a core, all stand still: a single busy process on two cores
makes a graph ten to a hundred times slower. With threads for the remaining cores only, the graph
runs at the speed of those.

Ops convert their operands in scratch memory. ggml allocates it when a graph runs, and anew for each
graph that needs more than those before; the pieces that were too small would stay in the process's
heap. So it is taken when the largest graphs are laid out.
"""

from __future__ import annotations

import math
import os
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any

from ...native import ThreadPool, ffi, lib, proc
from ...resources import need_room
from .memory import Arena, Device

_WINDOW = 0.25  # seconds of computing judged together
_RESTED = 2.0  # seconds of rest after which older observations are void
_FIRST, _LONGEST = 0.5, 30.0  # seconds with fewer threads before more are tried
_RELAPSE = 10.0  # a fall within so many seconds of a rise shows that the rise came too early


class Policy:
    """The number of threads, from observations of the machine; the caller passes the time.

    Attributes:
        most: threads on an otherwise idle machine. n: threads now.
    """

    def __init__(self, most: int):
        self.most = self.n = most
        self._pause, self._again, self._rose = _FIRST, -math.inf, -math.inf

    def start(self, now: float, left: int) -> None:
        """Before the first graph after a rest.

        Args:
            now: seconds.
            left: cores that are free for these threads.
        """
        if left < self.n:
            self._fall(now, left)
        elif left > self.n and now >= self._again:
            self.n, self._rose = min(self.most, left), now

    def judge(self, now: float, lost: float, idle: float) -> None:
        """After a window.

        One waiting thread stops all: if `lost` threads wait on average, n threads do the work of
        n · (1 − lost). Beyond lost = 1 / n that is less than the work of n − 1 threads.

        Args:
            now: seconds.
            lost: average number of threads that waited for a core.
            idle: average number of cores that were free for more threads.
        """
        if self.n > 1 and lost > max(1 / self.n, 0.25):
            self._fall(now, math.floor(self.n - lost))
        elif self.n < self.most and now >= self._again and idle >= 0.75:
            self.n = min(self.most, self.n + math.floor(idle + 0.25))
            self._rose = now

    def _fall(self, now: float, n: int) -> None:
        relapse = now - self._rose < _RELAPSE
        self._pause = min(2 * self._pause, _LONGEST) if relapse else _FIRST
        self._again = now + self._pause
        self.n = max(1, min(n, self.n - 1))


class Threads:
    """The threads of a CPU backend: `begin` before a graph and `end` after it.

    A change starts a new pool, because threads without work would keep looking for some. The
    number stays if the system does not tell how long threads wait for cores. One thread at a time
    computes; another one that takes over is watched from the next window on.

    Args:
        backend: the `ggml_backend_t`, which is closed first.
        most: the most threads, at least 1.
        adapts: allows fewer. ggml splits the attention of a single token over long caches by
            threads, so that rounding depends on their number.

    Attributes:
        seconds: spent computing graphs so far.
    """

    def __init__(self, backend: Any, most: int, adapts: bool = True):
        self._backend = backend
        self._policy = Policy(most)
        self._adapts = adapts and most > 1
        self._pool: ThreadPool | None = None
        self.seconds = 0.0
        self._ended = -math.inf

    @property
    def n(self) -> int:
        """Threads that compute now."""
        return self._policy.n

    def begin(self) -> float:
        """The time, in seconds, for `end`."""
        now = time.perf_counter()
        if now - self._ended > _RESTED:
            if self._adapts:
                self._policy.start(now, cores_left())
            self._apply()
            self._open(now)
        return now

    def end(self, began: float) -> None:
        self._ended = now = time.perf_counter()
        self.seconds += now - began
        self._computed += now - began
        if self._adapts and self._computed >= _WINDOW:
            self._judge(now)

    def _open(self, now: float) -> None:
        """Begins a window, in the thread that computes."""
        self._opened, self._computed = now, 0.0
        tasks = (*self._pool.tasks, threading.get_native_id()) if self._pool else ()
        self._waited = waited(tasks) if self.n > 1 else {}
        self._idle = idle() if self.n < self._policy.most else 0.0

    def _judge(self, now: float) -> None:
        later = waited(self._waited)
        lost = sum(later[task] - self._waited[task] for task in later)
        elapsed = now - self._opened
        # Cores that these threads left idle between graphs are not free for more.
        resting = self.n * (1 - self._computed / elapsed)
        free = (idle() - self._idle) / elapsed - resting if self.n < self._policy.most else 0.0
        self._policy.judge(now, lost / self._computed, free)
        self._apply()
        self._open(now)

    def _apply(self) -> None:
        if self._pool is None or self._pool.n_threads != self.n:
            pool = ThreadPool(self.n)
            pool.attach(self._backend)
            self.close()
            self._pool = pool

    def close(self) -> None:
        """Ends the threads; idempotent."""
        if self._pool is not None:
            self._pool.close()
            self._pool = None


def waited(tasks: Any) -> dict[int, float]:
    """Seconds that threads of this process waited for a core, by their system ids; without ended
    threads and those that the system tells nothing about."""
    seconds = {}
    for task in tasks:
        fields = _read(f"/proc/self/task/{task}/schedstat").split()
        if len(fields) == 3:
            seconds[task] = int(fields[1]) / 1e9
    return seconds


def idle() -> float:
    """Idle seconds since the machine started, summed over the cores that this process may use."""
    if sys.platform != "linux":  # which tells no waiting times either, so that the number stays
        return 0.0
    mine = {f"cpu{n}" for n in os.sched_getaffinity(0)}
    lines = (line.split() for line in _read("/proc/stat").splitlines())
    ticks = sum(int(x[4]) + int(x[5]) for x in lines if x and x[0] in mine)  # idle, waiting for I/O
    return ticks / os.sysconf("SC_CLK_TCK")


def cores_left() -> int:
    """Cores without a runnable thread other than this one, now; threads that run for less than a
    millisecond do not count. All cores if the system does not tell."""
    left = os.cpu_count() or 1
    for _ in range(3):
        lines = [line.split() for line in _read("/proc/stat").splitlines()]
        running = sum(int(x[1]) for x in lines if x and x[0] == "procs_running")
        if not running:
            break
        # Both out of one file: in a container `os.cpu_count` may speak of another machine.
        cores = sum(len(x) > 1 and x[0].startswith("cpu") and x[0] != "cpu" for x in lines)
        left = cores - max(0, running - 1)
        if left == cores:
            break
        time.sleep(0.0005)
    return left


def _read(path: str) -> str:
    try:
        with open(path, "rb", buffering=0) as file:  # half the time of a text file
            return file.read().decode()
    except OSError:
        return ""


class Scratch:
    """Scratch memory of the CPU's backend, as large as the graphs so far need it.

    Args:
        n_threads: the most that compute.

    Attributes:
        size: bytes.
    """

    def __init__(self, cpu: Device, n_threads: int):
        self._backend, self._taken = cpu.backend, 0
        self._registry = lib.ggml_backend_dev_backend_reg(cpu.handle)
        self.size = 0
        proc(self._registry, "ggml_backend_set_n_threads")(cpu.backend, n_threads)

    def forget_failures(self) -> None:
        """Has `size` count the memory alone that was taken."""
        self.size = self._taken

    def measure(self, ops: Sequence[Any]) -> None:
        """Counts the memory for `ggml_tensor`s that the CPU computes in one graph."""
        with self._graph(ops) as graph:
            self._measure(graph)

    def take(self, ops: Sequence[Any]) -> None:
        """`measure`, and takes the memory."""
        with self._graph(ops) as graph:
            self._measure(graph)
            if self.size > self._taken:
                need_room(self.size, "the CPU's scratch memory")
                self._compute_first(graph)
                self._taken = self.size

    def _compute_first(self, graph: Any) -> None:
        """Has ggml take the memory for a graph, and stop after the first op: the others have no
        inputs yet."""
        interrupts: list[BaseException] = []

        def keep(kind: Any, error: BaseException, trace: Any) -> None:
            interrupts.append(error)  # Ctrl-C, which must not pass through C

        stop = ffi.callback("bool(void *)", lambda _: True, error=True, onerror=keep)
        ask = proc(self._registry, "ggml_backend_set_abort_callback")
        try:
            ask(self._backend, stop, ffi.NULL)
            lib.ggml_backend_graph_compute(self._backend, graph)
        finally:
            ask(self._backend, ffi.NULL, ffi.NULL)
        if interrupts:
            raise interrupts[0]

    @contextmanager
    def _graph(self, ops: Sequence[Any]) -> Iterator[Any]:
        """A graph of these ops behind one of its own, which may be computed."""
        number = ffi.new("float[]", 1)
        with closing(Arena(2, len(ops) + 1)) as arena:
            graph = lib.ggml_new_graph_custom(arena.ctx, len(ops) + 1, False)
            leaf = lib.ggml_new_tensor_1d(arena.ctx, lib.GGML_TYPE_F32, 1)
            first = lib.ggml_scale_inplace(arena.ctx, leaf, 1.0)
            leaf.data = first.data = ffi.cast("void *", number)
            lib.ggml_build_forward_expand(graph, first)  # marks it to be computed
            for op in ops:
                lib.ggml_graph_add_node(graph, op)
            yield graph

    def _measure(self, graph: Any) -> None:
        plan = lib.ggml_backend_graph_plan_create(self._backend, graph)
        # It begins with its `ggml_cplan` (ggml-cpu.cpp, `ggml_backend_plan_cpu`).
        self.size = max(self.size, ffi.cast("struct ggml_cplan *", plan).work_size)
        lib.ggml_backend_graph_plan_free(self._backend, plan)
