"""The memory and the cores of the machine, as psutil tells them where /proc does not."""

from __future__ import annotations

import importlib
import os
import sys
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Memory:
    """Bytes.

    Attributes:
        total: of the machine.
        free: available without swapping, caches of files included.
        swap: free swap space.
    """

    total: int
    free: int
    swap: int


def memory() -> Memory:
    """The memory of a machine without /proc/meminfo. A Linux without it, as in some sandboxes,
    tells the total only, and all of it counts as free."""
    if sys.platform == "linux":
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        return Memory(total, total, 0)
    psutil: Any = importlib.import_module("psutil")
    found = psutil.virtual_memory()
    return Memory(found.total, found.available, psutil.swap_memory().free)


def peak_memory() -> int:
    """Peak resident bytes of this process, mapped files included."""
    if sys.platform == "win32":
        psutil: Any = importlib.import_module("psutil")
        return psutil.Process().memory_info().peak_wset
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def private_memory() -> int:
    """Bytes that this process has promised itself, in memory or in the page file; on Windows."""
    psutil: Any = importlib.import_module("psutil")
    return psutil.Process().memory_info().private


def cores() -> int:
    """Cores that this process may run on."""
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    if sys.platform == "win32":
        psutil: Any = importlib.import_module("psutil")
        return len(psutil.Process().cpu_affinity())
    return os.cpu_count() or 1
