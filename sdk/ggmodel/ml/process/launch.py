"""The life of the child process: start, end and post-mortem."""

from __future__ import annotations

import logging
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Mapping
from contextlib import suppress

_END = 2.0  # seconds for it to end by itself
_FOLDERS = re.compile(r"^/\S*/(?=[^/\s]+:\d+: )")
_STDERR = 8 << 10  # bytes kept from the end of its standard error


class Child:
    """The process, and this end of the socket to it.

    Args:
        environment: variables beside this process's.

    Attributes:
        home: the process that started it; forks of that must not use this object.
    """

    def __init__(self, environment: Mapping[str, str]):
        self.home = os.getpid()
        self.socket, theirs = socket.socketpair()
        with theirs:
            self.process = _start(theirs, environment)
        self._stderr = _Tail(self.process)
        _children.add(self)

    def end(self, lock: threading.Lock) -> None:
        """Ends it, by force after two seconds, and reaps it.

        Args:
            lock: held by users of the socket.
        """
        if self.home != os.getpid():
            return
        with suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)  # wakes threads that wait for an answer
        self._reap(_END)
        self._stderr.join(1)
        locked = lock.acquire(timeout=1)
        self.socket.close()
        if locked:
            lock.release()

    def post_mortem(self) -> str:
        """The end and the last message: "ended by SIGABRT: file.cpp:1: the reason". A process
        that still runs is ended first."""
        if not self._reap(1):
            return "was ended after an interruption within a message"
        code = self.process.returncode
        how = f"ended with status {code}" if code >= 0 else f"ended by {_signal(-code)}"
        said = self._stderr.last_line()
        return f"{how}: {said}" if said else how

    @property
    def killed(self) -> bool:
        """Whether another program ended it; ggml ends a process with SIGABRT."""
        return self.process.returncode in (-signal.SIGKILL, -signal.SIGTERM)

    def _reap(self, patience: float) -> bool:
        """Waits for the end; False if it had to be forced."""
        try:
            self.process.wait(patience)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            return False
        return True


_children: weakref.WeakSet[Child] = weakref.WeakSet()


def _let_go() -> None:
    """Runs in forks of this process: the child lives while any process has its socket open."""
    for child in list(_children):
        child.socket.close()


os.register_at_fork(after_in_child=_let_go)


class _Tail(threading.Thread):
    """Reads a process's standard error and keeps the end of it."""

    def __init__(self, process: subprocess.Popen[bytes]):
        super().__init__(name="ggmodel-stderr", daemon=True)
        assert process.stderr is not None
        self._pipe = process.stderr
        self._text = b""
        self.start()

    def run(self) -> None:
        with self._pipe:
            while piece := os.read(self._pipe.fileno(), _STDERR):
                self._text = (self._text + piece)[-_STDERR:]

    def last_line(self) -> str:
        """The last line that is not empty, once the process has ended, or "". The source file that
        ggml names loses its folders."""
        self.join(1)
        lines = [line.strip() for line in self._text.decode(errors="replace").splitlines()]
        return _FOLDERS.sub("", next((line for line in reversed(lines) if line), ""))


def _start(end: socket.socket, more: Mapping[str, str]) -> subprocess.Popen[bytes]:
    environment = {
        **os.environ,
        **more,
        # So that it imports the same modules as this process.
        "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path),
        "PYTHONSAFEPATH": "1",
    }
    known = [name for name in logging.root.manager.loggerDict if name.startswith("ggmodel")]
    level = min(logging.getLogger(name).getEffectiveLevel() for name in ("ggmodel", *known))
    return subprocess.Popen(
        [sys.executable, "-m", f"{__package__}.child", str(end.fileno()), str(level)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        pass_fds=(end.fileno(),),
        env=environment,
    )


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
