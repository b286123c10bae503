"""Makes a process on Linux lack what Windows or macOS lack, and refuse what Windows refuses.

Python runs this module at its start where its folder is on PYTHONPATH and SIMULATED names a
`sys.platform`; children of the process get the same. Libraries are imported first, for they are
those of Linux. The functions of Windows alone are those that ggmodel uses.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import importlib
import os
import resource
import select
import shutil
import signal
import socket
import subprocess
import sys
import types
from typing import Any

SYSTEM = os.environ.get("SIMULATED", "")

# By the standard library's documentation: "Availability".
_MISSING: dict[str, dict[types.ModuleType, str]] = {
    "win32": {
        os: "pread pwrite preadv pwritev fchmod fchown chown fork forkpty register_at_fork getuid "
        "geteuid getgid getpgid killpg setsid mkfifo posix_fadvise sched_getaffinity sysconf "
        "statvfs uname getloadavg set_blocking O_NOFOLLOW O_DIRECTORY O_NONBLOCK RTLD_NOW "
        "RTLD_GLOBAL RTLD_LOCAL WNOHANG",
        signal: "SIGHUP SIGKILL SIGPIPE SIGPROF SIGXCPU SIGUSR1 SIGUSR2 SIGALRM setitimer alarm "
        "ITIMER_PROF pthread_sigmask SIG_UNBLOCK SIG_BLOCK siginterrupt",
        socket: "AF_UNIX TCP_INFO send_fds recv_fds",
        select: "poll epoll",
    },
    "darwin": {
        os: "sched_getaffinity posix_fadvise",
        signal: "SIGPWR SIGSTKFLT",
        socket: "TCP_INFO TCP_KEEPIDLE",
        select: "epoll",
    },
}
_NO_MODULES = {"win32": ("fcntl", "resource", "termios", "pwd", "grp", "pty", "tty"), "darwin": ()}
_NO_FILES = {"win32": ("/proc", "/sys", "/dev"), "darwin": ("/proc", "/sys")}
_FIRST = (
    "asyncio multiprocessing.util numpy cffi typer typer.core click rich.console rich.table "
    "rich.progress rich.text gguf safetensors tokenizers jinja2 PIL.Image ctypes.util tempfile "
    "shutil zipfile logging concurrent.futures urllib.request ssl llguidance ggmodel.native"
).split()
_SERVING = {"serve", "batch"}
_FOR_SERVERS = "uvicorn uvicorn.lifespan.on starlette.applications h11 anyio msgspec".split()

_looking = False  # this module itself uses /proc
_real_stat, _real_kill, _real_open, _UNIX = os.stat, os.kill, os.open, socket.AF_UNIX


def become(system: str) -> None:
    """From now on this process is one of that system."""
    mine = any("ggmodel" in word for word in sys.orig_argv)
    for name in (*_FIRST, *(_FOR_SERVERS if _SERVING & {*sys.orig_argv} else ())) if mine else ():
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    for module, names in _MISSING[system].items():
        for name in names.split():
            if hasattr(module, name):
                delattr(module, name)
    for name in _NO_MODULES[system]:
        sys.modules[name] = None  # type: ignore[assignment]
    sys.addaudithook(lambda event, args: _refuse(system, event, args))
    os.stat = _without(os.stat, system)
    if system == "win32":
        _be_windows()
    sys.platform = system
    for name in ("processes", "files", "sockets", "libraries", "machine"):
        if (known := sys.modules.get(f"ggmodel.platforms.{name}")) is not None:
            importlib.reload(known)


def _refuse(system: str, event: str, args: tuple[Any, ...]) -> None:
    if not _looking and event in ("open", "os.listdir", "os.scandir") and args:
        _need_there(system, args[0])


def _need_there(system: str, path: object) -> None:
    text = os.fspath(path) if isinstance(path, (str, os.PathLike)) else ""
    if isinstance(text, str) and text.startswith(_NO_FILES[system]) and text != os.devnull:
        raise FileNotFoundError(errno.ENOENT, "no such file on this system", text)


def _without(function: Any, system: str) -> Any:
    def call(path: Any, *args: Any, **options: Any) -> Any:
        if not _looking:
            _need_there(system, path)
        return function(path, *args, **options)

    return call


def _is_open(path: Any) -> bool:
    """Whether this process has a file open or mapped."""
    global _looking
    _looking = True
    try:
        there = _real_stat(path)
        for number in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):
                if os.path.samestat(there, os.fstat(int(number))):
                    return True
        with open("/proc/self/maps") as lines:
            return any(line.split()[4] == str(there.st_ino) for line in lines)
    except OSError:
        return False
    finally:
        _looking = False


def _violation(path: Any) -> PermissionError:
    error = PermissionError(errno.EACCES, "The process cannot access the file", str(path))
    error.winerror = 32  # type: ignore[attr-defined]
    return error


def _be_windows() -> None:
    def refusing(function: Any) -> Any:
        def call(*paths: Any, **options: Any) -> Any:
            for path in paths:
                if not os.path.isdir(path) and _is_open(path):
                    raise _violation(path)
            return function(*paths, **options)

        return call

    for name in ("replace", "rename", "unlink", "remove"):
        setattr(os, name, refusing(getattr(os, name)))
    os.open, os.fsync, os.kill = _opened, _synced, _killed
    shutil.disk_usage = lambda path: shutil._ntuple_diskusage(1 << 40, 1, 1 << 40)  # type: ignore
    os.O_BINARY, socket.SO_EXCLUSIVEADDRUSE = 0, socket.SO_REUSEADDR  # type: ignore[attr-defined]
    pair, family = socket.socketpair, _UNIX
    socket.socketpair = lambda *_: pair(family)  # type: ignore[assignment]
    signal.SIGBREAK = signal.SIGURG  # type: ignore[attr-defined]
    del sys.abiflags
    sys.modules["msvcrt"] = _msvcrt()
    if (asyncio := sys.modules.get("asyncio")) is not None:
        asyncio.ProactorEventLoop = asyncio.SelectorEventLoop  # type: ignore[attr-defined]
    ctypes.WinDLL = _Kernel  # type: ignore[attr-defined]
    _popen()


def _opened(path: Any, flags: int, *args: Any, **options: Any) -> int:
    if not options and os.path.isdir(path):  # Python's own removal of trees opens folders
        raise PermissionError(errno.EACCES, "a folder cannot be opened", str(path))
    return _real_open(path, flags, *args, **options)


_real_fsync = os.fsync


def _synced(number: int) -> None:
    if fcntl.fcntl(number, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
        raise OSError(errno.EBADF, "a file that cannot be written")
    _real_fsync(number)


def _killed(process: int, number: int) -> None:
    """`TerminateProcess`, whatever the signal."""
    _real_kill(process, 9)


def _msvcrt() -> Any:
    made: Any = types.ModuleType("msvcrt")
    made.LK_NBLCK, made.SEM_FAILCRITICALERRORS, made.SEM_NOGPFAULTERRORBOX = 2, 1, 2
    made.get_osfhandle = lambda number: number
    made.SetErrorMode = lambda mode: 0

    def locking(number: int, mode: int, size: int) -> None:
        try:
            fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise PermissionError(errno.EACCES, "locked") from None

    made.locking = locking
    return made


class _Function:
    """One of the system's, which takes attributes as those of ctypes do."""

    def __init__(self, work: Any):
        self.work = work

    def __call__(self, *args: Any) -> Any:
        return self.work(*args)


class _Kernel:
    """kernel32.dll, as far as jobs go: their limits become those of Linux."""

    def __init__(self, name: str, use_last_error: bool = False):
        assert name == "kernel32"
        self.GetCurrentProcess = _Function(lambda: -1)
        self.CreateJobObjectW = _Function(lambda security, name: 7)
        self.AssignProcessToJobObject = _Function(lambda job, process: 1)
        self.SetInformationJobObject = _Function(self._set)

    def _set(self, job: int, kind: int, limits: Any, size: int) -> int:
        basic = limits._obj.BasicLimitInformation
        assert (job, kind, size, basic.LimitFlags) == (7, 9, 144, 0x102)
        seconds = max(1, basic.PerProcessUserTimeLimit // 10_000_000)
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
        resource.setrlimit(resource.RLIMIT_AS, (limits._obj.ProcessMemoryLimit,) * 2)
        return 1


def _popen() -> None:
    begin = subprocess.Popen.__init__

    def init(self: Any, *args: Any, **options: Any) -> None:
        for name in ("preexec_fn", "pass_fds", "start_new_session"):
            if options.get(name):
                raise ValueError(f"{name} is not supported on Windows")
        assert options.pop("creationflags", 0) & 0x200, "it would get this console's Ctrl-C"
        begin(self, *args, **options)

    subprocess.Popen.__init__ = init  # type: ignore[method-assign]
    subprocess.Popen.kill = lambda self: _killed(self.pid, 9)  # type: ignore[method-assign]


if SYSTEM:
    become(SYSTEM)
