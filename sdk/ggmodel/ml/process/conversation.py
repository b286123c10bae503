"""The requests to the child process, one after the other."""

from __future__ import annotations

import itertools
import logging
import socket
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from ...errors import Error, GraphError
from ...platforms.sockets import arrival
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
        self._asked = False  # the process waits for the answer to an event
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
                if self._asked:
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
        self._pending, self._asked = pending, False
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
                self._asked = True
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
