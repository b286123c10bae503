"""Backends whose work happens in a child process, so that what kills a process kills only that.

The recorded graph is plain data. `ProcessBackend` sends it to a `RunnerProcess`, where a backend
runs that is made as it would be here. What ggml ends a process for, such as a worker that goes
away, then is a `DeviceLost`.
"""

from __future__ import annotations

from ..registry import register_backend
from .process_backend import ProcessBackend
from .runner_process import RunnerProcess

__all__ = ["ProcessBackend", "RunnerProcess"]

register_backend("process", ProcessBackend)
