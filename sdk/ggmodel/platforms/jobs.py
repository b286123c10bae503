"""Limits of a process's memory and time on Windows: a job, which the process itself makes and
enters. Structures and numbers are those of winnt.h."""

from __future__ import annotations

import ctypes
import os
from functools import lru_cache
from typing import Any

_EXTENDED = 9  # JobObjectExtendedLimitInformation
_PROCESS_TIME, _PROCESS_MEMORY = 0x2, 0x100
_TICKS = 10_000_000  # a second
_MOST_TICKS = (1 << 63) - 1
_MOST_BYTES = (1 << 64) - 1


class _Basic(ctypes.Structure):
    _fields_ = [
        ("PerProcessUserTimeLimit", ctypes.c_int64),
        ("PerJobUserTimeLimit", ctypes.c_int64),
        ("LimitFlags", ctypes.c_uint32),
        ("MinimumWorkingSetSize", ctypes.c_size_t),
        ("MaximumWorkingSetSize", ctypes.c_size_t),
        ("ActiveProcessLimit", ctypes.c_uint32),
        ("Affinity", ctypes.c_size_t),
        ("PriorityClass", ctypes.c_uint32),
        ("SchedulingClass", ctypes.c_uint32),
    ]


class Limits(ctypes.Structure):
    """JOBOBJECT_EXTENDED_LIMIT_INFORMATION."""

    _fields_ = [
        ("BasicLimitInformation", _Basic),
        ("IoInfo", ctypes.c_uint64 * 6),
        ("ProcessMemoryLimit", ctypes.c_size_t),
        ("JobMemoryLimit", ctypes.c_size_t),
        ("PeakProcessMemoryUsed", ctypes.c_size_t),
        ("PeakJobMemoryUsed", ctypes.c_size_t),
    ]


def bound(memory: int, seconds: float) -> None:
    """Limits what this process may use from now on; a later call sets other limits. It cannot get
    memory beyond the first limit, and is ended beyond the second.

    Args:
        memory: bytes of private memory, those in use among them.
        seconds: of computing, beside those so far.
    """
    kernel, job = _job()
    limits = Limits()
    basic = limits.BasicLimitInformation
    basic.LimitFlags = _PROCESS_TIME | _PROCESS_MEMORY
    basic.PerProcessUserTimeLimit = int(min((os.times().user + seconds) * _TICKS, _MOST_TICKS))
    limits.ProcessMemoryLimit = min(memory, _MOST_BYTES)
    kernel.SetInformationJobObject(job, _EXTENDED, ctypes.byref(limits), ctypes.sizeof(limits))


@lru_cache(maxsize=1)
def _job() -> tuple[Any, Any]:
    """The system's functions, and the job that this process is in."""
    kernel: Any = ctypes.WinDLL("kernel32", use_last_error=True)  # type: ignore[attr-defined]
    kernel.CreateJobObjectW.restype = ctypes.c_void_p
    kernel.GetCurrentProcess.restype = ctypes.c_void_p
    kernel.CreateJobObjectW.argtypes = (ctypes.c_void_p, ctypes.c_wchar_p)
    kernel.AssignProcessToJobObject.argtypes = (ctypes.c_void_p, ctypes.c_void_p)
    kernel.SetInformationJobObject.argtypes = (
        ctypes.c_void_p,
        ctypes.c_int,
        ctypes.c_void_p,
        ctypes.c_uint32,
    )
    job = kernel.CreateJobObjectW(None, None)
    kernel.AssignProcessToJobObject(job, kernel.GetCurrentProcess())
    return kernel, job
