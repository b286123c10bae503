"""A pool of compute threads that outlives a graph."""

from __future__ import annotations

import os
from typing import Any

from ..errors import NativeError
from ..resources import Closing, need_room

_STACK = 8 << 20  # bytes of a thread, by default


class ThreadPool(Closing):
    """Threads that wait for graphs to compute.

    Without a pool the CPU backend starts and ends its threads with every graph, which costs
    milliseconds. Close the pool after the backends that use it.

    Attributes:
        handle: the `ggml_threadpool_t`; NULL when closed.
        n_threads: the number of threads, including the caller's.
        tasks: the system's ids of the others; empty without /proc. Threads that the process started
            at the same moment may be among them.
    """

    def __init__(self, n_threads: int, poll: int = 50):
        """Start the threads.

        Args:
            n_threads: number of compute threads, at least 1.
            poll: eagerness of idle threads, 0 (sleep) to 100 (spin).
        """
        from . import ffi, lib, proc  # the package imports this module

        limit: int = lib.GGML_MAX_N_THREADS
        if not 1 <= n_threads <= limit:
            raise NativeError(f"a thread pool has 1 to {limit} threads, not {n_threads}")
        self.n_threads = n_threads
        self._null: Any = ffi.NULL
        self._cpu: Any = lib.ggml_backend_dev_backend_reg(
            lib.ggml_backend_dev_by_type(lib.GGML_BACKEND_DEVICE_TYPE_CPU)
        )
        self._free: Any = proc(self._cpu, "ggml_threadpool_free")
        self._set: Any = proc(self._cpu, "ggml_backend_cpu_set_threadpool")
        self._set_n: Any = proc(self._cpu, "ggml_backend_set_n_threads")
        parameters = ffi.new("struct ggml_threadpool_params *")
        lib.ggml_threadpool_params_init(parameters, n_threads)
        parameters.poll = poll
        need_room((n_threads - 1) * _STACK, "the stacks of compute threads")
        before = _tasks()
        self.handle: Any = proc(self._cpu, "ggml_threadpool_new")(parameters)
        self.tasks = tuple(_tasks() - before)
        if not self.handle:
            raise NativeError(f"ggml could not start {n_threads} threads")

    def attach(self, backend: Any) -> None:
        """Let a CPU backend (`ggml_backend_t`) compute on all of these threads."""
        if not self.handle:
            raise NativeError("the thread pool is closed")
        self._set(backend, self.handle)
        self._set_n(backend, self.n_threads)

    def close(self) -> None:
        """End the threads; closing twice is fine."""
        handle, self.handle = self.handle, self._null
        if handle:
            self._free(handle)


def _tasks() -> set[int]:
    """The threads of this process."""
    try:
        return {int(name) for name in os.listdir("/proc/self/task")}
    except OSError:
        return set()
