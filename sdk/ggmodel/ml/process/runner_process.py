"""The child process that runs backends for this one, seen from this one."""

from __future__ import annotations

import itertools
import logging
import os
import select
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ...errors import Busy, ComputeError, DeviceLost, Error, GraphError
from ..devices import DeviceID, DeviceInfo
from .endpoints import parse_endpoints, unreachable
from .launch import Child
from .protocol import Answer, Channel, Event, Record, Request, encode, unpack_error

if TYPE_CHECKING:
    from .process_backend import ProcessExecutable

_REACH = 2.0  # seconds until a worker must have accepted a connection
_GREET = 2.0  # seconds until it must have answered; one that serves another client never does
_PROBE = 0.75  # seconds for finding out which worker is gone

Handlers = Mapping[str, Callable[..., Any]]


class NoAnswer(Exception):
    """A request timed out; its answer will be discarded."""


class RunnerProcess:
    """A child process that makes backends, computes with them, and looks for devices.

    If it ends, this process lives on, and further requests raise `DeviceLost`. Several threads may
    use it, one after the other. It is a `FilteredRunnerDiscovery`, and a context manager that
    closes itself.

    Args:
        rpc: workers, "host:port", whose devices its backends may use. It stays connected until it
            is closed; a worker serves one client at a time.

    Attributes:
        rpc: the same.
        pid: of the process.

    Raises:
        ConfigError: an endpoint is malformed or given twice.
        DeviceLost: a worker cannot be reached, or is another version of ggml.
        Busy: a worker serves another client.
        Unsupported: this ggml has no RPC backend.
    """

    def __init__(self, rpc: Sequence[str] = ()):
        self.rpc = parse_endpoints(rpc)
        for endpoint, reason in unreachable(self.rpc, _REACH).items():
            raise DeviceLost(f"worker {endpoint} cannot be reached: {reason}")
        self._child = Child()
        self.pid = self._child.process.pid
        self._channel = Channel(self._child.socket)
        self._poll = select.poll()
        self._poll.register(self._child.socket, select.POLLIN)
        self._lock = threading.Lock()
        self._holder = 0  # the thread that has the lock
        self._ids = itertools.count(1)
        self._pending = 0  # the request that was sent and not yet answered
        self._asked = False  # the process waits for the answer to an event
        self._torn = False  # a message was interrupted
        self._lost = ""
        self._closed = False
        self._records: deque[Record] = deque()
        self._dropped: deque[int] = deque()
        self._graphs: weakref.WeakValueDictionary[int, ProcessExecutable] = (
            weakref.WeakValueDictionary()
        )
        self._active: dict[int, list[DeviceID]] = {}
        self._end = weakref.finalize(self, self._child.end, self._lock)
        try:
            self._connect()
        except BaseException:
            self.close()
            raise

    def _connect(self) -> None:
        if self.rpc:
            self.request("use_workers")
        for endpoint in self.rpc:
            try:
                self.request("connect", endpoint, timeout=_GREET)
            except NoAnswer:
                self._child.process.kill()
                raise Busy(
                    f"worker {endpoint} is in use by another client, and serves one at a time; "
                    "wait until that one has closed its model, or start another worker on "
                    "another port there"
                ) from None

    # requests

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
                    self._reply(True, events[message.name](*message.args))
                elif message.failed:
                    raise unpack_error(message.content)
                else:
                    return message.content
        finally:
            self._holder = 0

    def _reply(self, go_on: bool, value: Any) -> None:
        self._send((go_on, value), pending=self._pending)

    # `_torn` tells the next request that one was interrupted within a message, such as by Ctrl-C:
    # the process is then lost. Between messages an interruption is harmless.

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
            if not self._poll.poll(left):
                raise NoAnswer
            self._torn = True
            try:
                message = self._channel.receive()
            except (EOFError, OSError):
                raise self._lose() from None
            if isinstance(message, Record):
                self._records.append(message)
            elif isinstance(message, Event):
                self._asked = True
            else:
                self._pending = 0
                self._note_ended(message.ended)
            self._torn = False
            if not isinstance(message, Record):
                return message

    def _note_ended(self, numbers: list[int]) -> None:
        for number in numbers:
            graph = self._graphs.pop(number, None)
            if graph is not None:
                graph.ended = True

    def _log(self) -> None:
        while self._records:
            with suppress(IndexError):  # another thread was faster
                record = self._records.popleft()
                logging.getLogger(record.logger).log(record.level, "%s", record.text)

    # what is in the process

    def new_id(self) -> int:
        """A number for a backend or graph."""
        return next(self._ids)

    def watch(self, number: int, graph: ProcessExecutable) -> None:
        """Sets a graph's `ended` once it can run no more."""
        self._graphs[number] = graph

    def drop(self, number: int) -> None:
        """Frees a graph or backend with the next request; may be called from `__del__`."""
        self._dropped.append(number)
        self._active.pop(number, None)

    def occupy(self, number: int, devices: list[DeviceID]) -> None:
        """Records the devices of a backend."""
        self._active[number] = devices

    # life

    def check(self) -> None:
        """Raises the error of every request, if the process is unusable.

        Raises:
            DeviceLost: the process has ended.
            GraphError: it was closed, or belongs to the process that this one was forked from.
        """
        if self._child.home != os.getpid():
            raise GraphError(
                "this model was loaded before the process forked: the process that computes it "
                "belongs to the parent; load it again here, or start processes with 'spawn'"
            )
        if self._closed:
            raise GraphError("the process that computed is closed; start another one")
        if self._lost:
            raise DeviceLost(self._lost)

    @property
    def usable(self) -> bool:
        """Whether it takes requests, as far as is known."""
        return not self._closed and not self._lost and self._child.home == os.getpid()

    def _lose(self) -> Error:
        """The error for a process that has ended or whose messages are torn."""
        if self._closed:  # by another thread
            return GraphError("the process that computed was closed")
        reason = f"the process that computed {self._child.post_mortem()}"
        silent = unreachable(self.rpc, _PROBE)
        if silent:
            gone = "; ".join(f"worker {e} is gone: {why}" for e, why in silent.items())
            reason = f"{gone} ({reason})"
        elif self.rpc and not self._child.killed:
            which = f"worker {self.rpc[0]}"
            if len(self.rpc) > 1:
                which = f"one of the workers {', '.join(self.rpc)}"
            reason = f"the connection to {which} was lost ({reason})"
        self._lost = f"{reason}; load the model again"
        return DeviceLost(self._lost)

    def close(self) -> None:
        """Ends the process, by force after two seconds; idempotent."""
        if self._child.home == os.getpid():
            self._closed = True
            self._end()

    def __enter__(self) -> RunnerProcess:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # discovery

    def devices(self) -> list[DeviceInfo]:
        """The devices of its ggml, workers' included, with their present memory."""
        return self.request("devices")

    def get_device_infos(self, timeout: float) -> list[DeviceInfo]:
        """`devices`.

        Args:
            timeout: seconds.

        Raises:
            ComputeError: it did not answer in time.
        """
        try:
            return self.request("devices", timeout=timeout)
        except NoAnswer:
            raise ComputeError(f"the process did not list its devices in {timeout:g} s") from None

    def get_active_device_ids(self) -> list[DeviceID]:
        """The devices of its backends, each once; returns at once."""
        return list(dict.fromkeys(d for ids in list(self._active.values()) for d in ids))

    def get_port(self) -> int:
        """0: it listens on none."""
        return 0

    def has_exited(self) -> bool:
        """Whether it has ended."""
        return self._child.process.poll() is not None
