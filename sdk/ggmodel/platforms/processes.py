"""Processes: signals, children, how they end, and limits of their memory and time.

On Windows the limits are a job, which the process itself makes and enters; structures and numbers
are those of winnt.h.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from typing import Any

TICK: float | None = 0.1 if sys.platform == "win32" else None
"""Seconds after which a thread that waits for another one looks around: on Windows a wait without
an end, for a lock, a queue or an event, lets no Ctrl-C through. None: it does."""

ENDING: tuple[signal.Signals, ...] = tuple(
    getattr(signal, name) for name in ("SIGTERM", "SIGHUP", "SIGBREAK") if hasattr(signal, name)
)
"""Signals that ask a process to end, besides Ctrl-C's. Windows sends SIGBREAK for Ctrl-Break, and
when a console is closed."""

# Options of glibc (malloc.h), and the size in bytes from which a block has pages of its own.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_LARGE_BLOCK = 4 << 20

NO_READER = 128 + 13
"""The exit status, as shells report SIGPIPE, of a program that nobody reads from any more."""

NAMED_STREAMS = sys.platform != "win32"
"""Standard streams have the encoding that the environment names. On Windows those that are files or
pipes have the code page of the country, in which most of a model's characters do not exist."""

INHERITS = sys.platform != "win32"
"""Children can be given sockets by their descriptors."""

# A child neither gets the Ctrl-C of this process's console, nor a window of its own.
_CHILD = {
    "creationflags": getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0x200)
    | getattr(subprocess, "CREATE_NO_WINDOW", 0x8000000)
}
CHILD: dict[str, Any] = _CHILD if sys.platform == "win32" else {}
"""Options of `subprocess.Popen` for a process that serves this one."""

_TERMINATED = 1  # `TerminateProcess` as Python and the task manager call it
OUT_OF_TIME = (
    *(-getattr(signal, name) for name in ("SIGXCPU", "SIGPROF") if hasattr(signal, name)),
    1816,  # ERROR_NOT_ENOUGH_QUOTA of Windows
)
"""Statuses of a process that has used up its time."""

# Statuses of Windows: 3 and 0xC0000409 come of `abort`.
_STATUSES = {
    3: "an abort",
    1816: "a limit of its time",
    0xC0000005: "an access violation",
    0xC0000017: "a lack of memory",
    0xC000001D: "an illegal instruction",
    0xC00000FD: "a stack overflow",
    0xC0000135: "a missing DLL",
    0xC000013A: "Ctrl-C",
    0xC0000409: "an abort",
}


def after_fork(function: Callable[[], object]) -> None:
    """Has a function called in forks of this process, where the system has forks."""
    if sys.platform != "win32":
        os.register_at_fork(after_in_child=function)


def send_myself(number: int) -> None:
    """Sends this process a signal, whose handler runs in the main thread. `os.kill` of Windows
    would end the process instead."""
    if sys.platform == "win32":
        signal.raise_signal(number)
    else:
        os.kill(os.getpid(), number)


def leave_no_core() -> None:
    """Keeps an abort of this process from writing its memory to the disk, or from showing a window
    that waits for somebody to close it."""
    if sys.platform == "win32":
        import msvcrt

        windows: Any = msvcrt
        windows.SetErrorMode(windows.SEM_FAILCRITICALERRORS | windows.SEM_NOGPFAULTERRORBOX)
    else:
        import resource

        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def prepare_to_serve() -> None:
    """Sets up a process that many requests reach at once.

    Each thread that computes in Python lets others go on every 0.5 ms, not 5 ms: an engine gives
    the interpreter away at each call of ggml, hundreds of times a step, and beside threads that
    read long texts waits as often. And glibc gives memory of 4 MiB or more back when it is free;
    with each such block it would keep larger ones, up to 32 MiB, in the heap of the thread.
    """
    sys.setswitchinterval(0.0005)
    if set_option := _of_glibc("mallopt"):
        set_option(_M_MMAP_THRESHOLD, _LARGE_BLOCK)
        set_option(_M_TRIM_THRESHOLD, 2 * _LARGE_BLOCK)


def give_memory_back() -> None:
    """Gives free memory between small blocks that are in use back to the system, where glibc keeps
    it; in tens of milliseconds for hundreds of megabytes."""
    if trim := _of_glibc("malloc_trim"):
        trim(0)


def _of_glibc(name: str) -> Any:
    """A function of the C library; None without it."""
    return getattr(ctypes.CDLL(None), name, None) if sys.platform == "linux" else None


def was_killed(status: int) -> bool:
    """Whether another program ended a process, by its `returncode`; ggml ends one by an abort."""
    if sys.platform == "win32":
        return status == _TERMINATED
    return status in (-signal.SIGKILL, -signal.SIGTERM)


def how_it_ended(status: int) -> str:
    """A process's `returncode` in words: "ended by SIGABRT", "ended with status 2"."""
    if status < 0:
        try:
            return f"ended by {signal.Signals(-status).name}"
        except ValueError:
            return f"ended by signal {-status}"
    if sys.platform == "win32" and status in _STATUSES:
        return f"ended by {_STATUSES[status]} (status {status:#x})"
    return f"ended with status {status}"


def has_no_reader(error: BaseException) -> bool:
    """Whether an error of writing to standard output says that nobody reads it. Windows calls it an
    invalid argument."""
    if isinstance(error, BrokenPipeError):
        return True
    return (
        sys.platform == "win32"
        and isinstance(error, OSError)
        and (error.errno, error.filename) == (22, None)
    )


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


class _JobLimits(ctypes.Structure):
    """JOBOBJECT_EXTENDED_LIMIT_INFORMATION."""

    _fields_ = [
        ("BasicLimitInformation", _Basic),
        ("IoInfo", ctypes.c_uint64 * 6),
        ("ProcessMemoryLimit", ctypes.c_size_t),
        ("JobMemoryLimit", ctypes.c_size_t),
        ("PeakProcessMemoryUsed", ctypes.c_size_t),
        ("PeakJobMemoryUsed", ctypes.c_size_t),
    ]


def enter_job(memory: int, seconds: float) -> None:
    """Limits what this process may use from now on; a later call sets other limits. It cannot get
    memory beyond the first limit, and is ended beyond the second.

    Args:
        memory: bytes of private memory, those in use among them.
        seconds: of computing, beside those so far.
    """
    kernel, job = _job()
    limits = _JobLimits()
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
