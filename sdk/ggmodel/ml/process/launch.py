"""The life of the child process: start, end and post-mortem."""

from __future__ import annotations

import hmac
import logging
import os
import secrets
import socket
import subprocess
import threading
import time
import weakref
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from ... import interpreter
from ...closing import closed_on_error
from ...platforms.processes import INHERITS, after_fork, was_killed

_BEGIN, _LOOK = 60.0, 0.2  # seconds for it to connect, on a busy machine; between two looks at it
_SECRET = 64  # bytes, hexadecimal
_END = 0.3  # seconds for it to end by itself; it does not while a worker hangs


class Child:
    """The process, and this end of the socket to it.

    Args:
        environment: variables beside this process's.

    Raises:
        OSError: it cannot be started.

    Attributes:
        home: the process that started it; forks of that must not use this object.
    """

    def __init__(self, environment: Mapping[str, str]):
        self.home = os.getpid()
        self.process, self.socket = (_inheriting if INHERITS else _connecting)(environment)
        self._stderr = interpreter.Tail(self.process)
        _children.add(self)

    def end(self, lock: threading.Lock) -> None:
        """Ends it, by force if it takes a moment, and reaps it.

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
        return interpreter.ending(self.process.returncode, self._stderr.last_line())

    @property
    def killed(self) -> bool:
        """Whether another program ended it; ggml ends a process with SIGABRT."""
        return was_killed(self.process.returncode)

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


after_fork(_let_go)


def _inheriting(environment: Mapping[str, str]) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """A process that has got one end of a pair of sockets, and the other end."""
    ours, theirs = socket.socketpair()
    with theirs, closed_on_error(ours):
        number = theirs.fileno()
        options = {"stdin": subprocess.DEVNULL, "pass_fds": (number,)}
        return _start(str(number), environment, **options), ours


def _connecting(environment: Mapping[str, str]) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """A process that connects to this one, and the connection. Its standard input has the port, and
    a secret that it sends first: nobody else is listened to."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        secret = secrets.token_hex(_SECRET // 2).encode()
        process = _start("-", environment, stdin=subprocess.PIPE)
        try:
            assert process.stdin is not None
            with process.stdin as told:
                told.write(b"%d %s\n" % (listening.getsockname()[1], secret))
            return process, _accepted(process, listening, secret)
        except BaseException as error:
            process.kill()
            process.wait()
            if process.stderr is not None:
                process.stderr.close()
            if isinstance(error, TimeoutError | BrokenPipeError):
                raise OSError("the process that computes does not begin") from None
            raise


def _accepted(
    process: subprocess.Popen[bytes], listening: socket.socket, secret: bytes
) -> socket.socket:
    """The connection of the process that knows the secret."""
    deadline = time.monotonic() + _BEGIN
    listening.settimeout(_LOOK)
    while time.monotonic() < deadline:
        try:
            end, _ = listening.accept()
        except TimeoutError:
            if process.poll() is not None:
                break
            continue
        with closed_on_error(end):
            end.settimeout(_LOOK)
            with suppress(OSError):
                if hmac.compare_digest(end.recv(_SECRET, socket.MSG_WAITALL), secret):
                    end.settimeout(None)
                    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    return end
        end.close()
    raise TimeoutError


def _start(place: str, environment: Mapping[str, str], **options: Any) -> subprocess.Popen[bytes]:
    known = [name for name in logging.root.manager.loggerDict if name.startswith("ggmodel")]
    level = min(logging.getLogger(name).getEffectiveLevel() for name in ("ggmodel", *known))
    return interpreter.start(
        ["-m", f"{__package__}.child", place, str(level)],
        environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        **options,
    )
