"""The child process from this side: its start, the requests to it, its end and post-mortem."""

from __future__ import annotations

import hmac
import itertools
import logging
import os
import secrets
import socket
import subprocess
import threading
import time
import weakref
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from ... import concurrency
from ...errors import Error, GraphError
from ...platforms.processes import INHERITS, after_fork, was_killed
from ...platforms.sockets import arrival
from ...resources import closed_on_error
from .protocol import (
    FROM_CHILD,
    Answer,
    Channel,
    Event,
    Record,
    Request,
    Silence,
    encode,
    unpack_error,
)

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
        self._stderr = concurrency.Tail(self.process)
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
        return concurrency.ending(self.process.returncode, self._stderr.last_line())

    @property
    def killed(self) -> bool:
        """Whether another program ended it; ggml ends a process with SIGABRT."""
        return was_killed(self.process.returncode)

    def _reap(self, timeout: float) -> bool:
        """Waits for the end; False if it had to be forced."""
        try:
            self.process.wait(timeout)
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
            with process.stdin as stdin:
                stdin.write(b"%d %s\n" % (listening.getsockname()[1], secret))
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
    loggers = [name for name in logging.root.manager.loggerDict if name.startswith("ggmodel")]
    level = min(logging.getLogger(name).getEffectiveLevel() for name in ("ggmodel", *loggers))
    return concurrency.start_python(
        ["-m", f"{__package__}.child", place, str(level)],
        environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        **options,
    )


Handlers = Mapping[str, Callable[..., Any]]


class NoAnswer(Exception):
    """A request timed out; its answer will be discarded."""


class Conversation(ABC):
    """Requests over a socket, and their answers. Several threads may use it, one after the other.

    Between two messages an interruption, such as Ctrl-C, is harmless: the next request reads what
    is left of the one before. Within a message it tears the conversation: the process is lost.
    """

    def __init__(self, end: socket.socket):
        self._channel = Channel(end)
        self._arrives = arrival(end)
        self._lock = threading.Lock()
        self._holder = 0  # the thread that has the lock
        self._ids = itertools.count(1)
        self._pending = 0  # the request that was sent and not yet answered
        self._event_open = False  # the process waits for the answer to an event
        self._torn = False  # a message was interrupted
        self._records: deque[Record] = deque()
        self._dropped: deque[int] = deque()

    @abstractmethod
    def check(self) -> None:
        """Raises the error of every request, if the process is unusable."""

    @abstractmethod
    def _lose(self) -> Error:
        """The error for a process that has ended or whose messages are torn."""

    @abstractmethod
    def _note_ended(self, numbers: list[int]) -> None:
        """Takes the numbers of graphs that can run no more."""

    @abstractmethod
    def _note_silence(self, silence: Silence | None) -> None:
        """A worker is silent; None when it, or whoever was waited for, has answered."""

    def new_id(self) -> int:
        """A number for a backend or graph."""
        return next(self._ids)

    def drop(self, number: int) -> None:
        """Frees a graph or backend with the next request; may be called from `__del__`."""
        self._dropped.append(number)

    def request(
        self,
        kind: str,
        *args: Any,
        timeout: float | None = None,
        events: Handlers | None = None,
        meanwhile: Callable[[], None] | None = None,
    ) -> Any:
        """The result of a method of `child.Service`.

        Args:
            timeout: seconds.
            events: handlers of the questions during the request, by name.
            meanwhile: called once the request has been sent.

        Raises:
            NoAnswer: the time is up.
            Exception: raised by the method, or by `check`.
        """
        self.check()
        if self._holder == threading.get_ident():
            raise GraphError("a callback of a request cannot ask the same process for something")
        try:
            if timeout is None:
                with self._lock:  # unlike after acquire(), Ctrl-C never comes before what follows
                    return self._exchange(kind, args, events or {}, None, meanwhile)
            deadline = time.monotonic() + timeout
            if not self._lock.acquire(timeout=timeout):
                raise NoAnswer
            try:
                return self._exchange(kind, args, events or {}, deadline, meanwhile)
            finally:
                self._lock.release()
        finally:
            self._log()

    def _exchange(
        self,
        kind: str,
        args: tuple[Any, ...],
        events: Handlers,
        deadline: float | None,
        meanwhile: Callable[[], None] | None,
    ) -> Any:
        try:
            self._holder = threading.get_ident()
            self.check()  # it may have ended while this thread waited
            if self._torn:
                raise self._lose()
            while self._pending:  # a request that was interrupted or timed out
                if self._event_open:
                    self._reply(False, None)
                self._receive(deadline)
            dropped = [self._dropped.popleft() for _ in range(len(self._dropped))]
            number = self.new_id()
            self._send(Request(number, kind, args, dropped), pending=number)
            if meanwhile is not None:
                meanwhile()
            while True:
                message = self._receive(deadline)
                if isinstance(message, Event):
                    if message.name not in events:
                        self._torn = True
                        raise self._lose()
                    self._reply(True, events[message.name](*message.args))
                elif message.failed:
                    raise unpack_error(message.content)
                else:
                    return message.content
        finally:
            self._holder = 0

    def _reply(self, go_on: bool, value: Any) -> None:
        self._send((go_on, value), pending=self._pending)

    def _send(self, message: Any, pending: int) -> None:
        frame = encode(message)
        self._torn = True
        self._pending, self._event_open = pending, False
        try:
            self._channel.send(frame)
        except OSError:
            raise self._lose() from None
        self._torn = False

    def _receive(self, deadline: float | None) -> Answer | Event:
        while True:
            left = None if deadline is None else max(deadline - time.monotonic(), 0) * 1000
            if not self._arrives(left):
                raise NoAnswer
            self._torn = True
            try:
                message = self._channel.receive(*FROM_CHILD)
            except (EOFError, OSError):
                raise self._lose() from None
            if isinstance(message, Record):
                self._records.append(message)
            elif isinstance(message, Silence):
                self._torn = False  # what notes it may take its time, and be interrupted
                self._note_silence(message)
            elif isinstance(message, Event):
                self._event_open = True
            else:
                self._pending = 0
                self._note_silence(None)
                self._note_ended(message.ended)
            self._torn = False
            if not isinstance(message, Record | Silence):
                return message

    def _log(self) -> None:
        while self._records:
            with suppress(IndexError):  # another thread was faster
                record = self._records.popleft()
                logging.getLogger(record.logger).log(record.level, "%s", record.text)
