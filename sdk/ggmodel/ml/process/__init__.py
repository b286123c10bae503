"""Backends in a child process, so that a crash ends only that process.

The recorded graph is plain data. `ProcessBackend` sends it to a `RunnerProcess`, which runs an
ordinary backend. Where ggml ends its process, for instance because a worker went away, the caller
gets `DeviceLost`.
"""

from ..registry import register_backend
from .process_backend import ProcessBackend
from .runner_process import LocalDevices, RunnerProcess, local_devices

__all__ = ["LocalDevices", "ProcessBackend", "RunnerProcess", "local_devices"]

register_backend("process", ProcessBackend)
