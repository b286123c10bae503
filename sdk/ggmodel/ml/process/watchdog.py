"""The watchdog of RPC workers: the timeout of one that is connected and silent.

ggml's server answers nothing while it computes, and the system of a stopped worker goes on to
acknowledge packets. So the silence itself has to decide: a thread of this process is in `recv` or
`send` on the connection, and no byte travels: one that comes wakes the thread, one that goes leaves
the queue of the system. Neither this machine's own computing counts nor a slow network, nor the
time that this process is stopped.

ggml sends a worker the next step before the last one is computed, unless it wants results. So the
workers may have several to compute before they answer anything.
"""

from __future__ import annotations

import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from ...platforms.sockets import connections, limit
from .protocol import Silence

_FACTOR = 4.0  # a step may take so many times as long as the longest so far
_UNKNOWN = 0.25  # seconds for each token before any step was measured
_TELL = 0.5  # the share of the time after which the parent is told
_TICK = 0.5  # seconds
_QUEUE = 32  # steps that are sent at most before their end is waited for
_LONGEST = 1e7  # seconds; the system knows no infinity
Wait = tuple[int, str, str, bytes]
_SLEEPS = "\nvoluntary_ctxt_switches:"  # of proc_pid_status(5), the last but one line


class StepTimes:
    """The longest steps so far, by their number of tokens, rounded up to a power of two."""

    def __init__(self) -> None:
        self._longest: dict[int, float] = {}

    def took(self, tokens: int, seconds: float) -> None:
        """Notes a step."""
        size = _rounded(tokens)
        self._longest[size] = max(seconds, self._longest.get(size, 0.0))

    def knows(self, tokens: int) -> bool:
        """Whether a step of this size was noted."""
        return _rounded(tokens) in self._longest

    def seconds(self, tokens: int) -> float:
        """The longest step of this size; if there was none, the least that one of another size lets
        expect, at the same time for each token."""
        size = _rounded(tokens)
        if size in self._longest:
            return self._longest[size]
        scaled = [seconds * max(1.0, size / n) for n, seconds in self._longest.items()]
        return min(scaled, default=_UNKNOWN * tokens)


def _rounded(tokens: int) -> int:
    return 1 << max(0, tokens - 1).bit_length()


class Watchdog:
    """Limits the silence of this process's workers.

    Args:
        seconds: how long a worker may be silent, besides the time of the steps it has to compute.
        tell: sends a message to the parent.
        wait: waits until all workers have computed what they were sent.

    Attributes:
        allowed: seconds that the workers may be silent in the request under way.
    """

    def __init__(self, seconds: float, tell: Callable[[Silence], None], wait: Callable[[], None]):
        self._seconds, self._tell, self._wait = float(seconds), tell, wait
        self._times = StepTimes()
        self._ends: dict[int, tuple[str, socket.socket]] = {}  # by ggml's number for it
        self._queue: list[int] = []  # tokens of the steps that may not be computed yet
        self._spent = 0.0  # seconds of requests since the first of them, without this one
        self.allowed = 0.0
        self._began: float | None = None  # of the request under way
        self._reported = False  # of a silence in it
        self._turn = threading.Lock()  # of requests
        self._watches = _tells_waits()
        if self._watches:
            threading.Thread(target=self._watch, name="ggmodel-watchdog", daemon=True).start()

    def add(self, endpoint: str, connect: Callable[[], object]) -> None:
        """Watches the connections that `connect` opens."""
        before = {number for number, end in _tcp() if end.close() is None}
        connect()
        for number, end in _tcp():
            if number in before:
                end.close()
            else:
                self._ends[number] = endpoint, end
        self._bound()

    def begin(self, tokens: int = 0, timeout: float = -1) -> bool:
        """A request begins that may compute a step of so many tokens. It waits for that of another
        thread to end; False if that takes longer than so many seconds, if any are given."""
        if not self._turn.acquire(timeout=timeout):
            return False
        try:
            steps = [*self._queue, tokens] if tokens else self._queue
            allowed = self._seconds + _FACTOR * sum(map(self._times.seconds, steps))
            if allowed != self.allowed:
                self.allowed = allowed
                self._bound()
        except BaseException:
            self._turn.release()
            raise
        self._reported = False
        self._began = time.monotonic()
        return True

    def ran(self, tokens: int, answered: bool) -> None:
        """A step of the request under way has been sent.

        Args:
            answered: it has results, and they have come. A step without any may still be in the
                queue. It stays there, so that workers compute at the same time, unless nothing
                tells how long it takes.
        """
        self._queue.append(tokens)
        if not answered and len(self._queue) < _QUEUE and self._times.knows(tokens):
            return
        if not answered or len(self._queue) > 1:
            self._wait()
        spent = self._spent + time.monotonic() - (self._began or 0.0)
        whole = sum(self._queue)
        for n in self._queue:
            self._times.took(n, spent * n / whole)
        self._queue.clear()

    def end(self) -> None:
        """The request has ended."""
        began, self._began = self._began, None
        if not self._queue or began is None:
            self._spent = 0.0
        else:
            self._spent += time.monotonic() - began
        self._turn.release()

    def _bound(self) -> None:
        if not self._watches:
            for _, end in self._ends.values():
                # Linux would also end them when this process was stopped and goes on.
                limit(end, min(self.allowed, _LONGEST))

    def _watch(self) -> None:
        tick = min(_TICK, self._seconds / 8)
        clock, before = 0.0, time.monotonic()
        since: dict[Wait, float] = {}  # when each was first seen
        while True:
            time.sleep(tick)
            now = time.monotonic()
            clock += min(now - before, 2 * tick)  # not what passes while this process is stopped
            before = now
            waits = _waits(self._ends) if self._began is not None else ()
            since = {wait: since.get(wait, clock) for wait in waits}
            for (connection, *_), first in since.items():
                self._judge(connection, clock - first)

    def _judge(self, connection: int, seconds: float) -> None:
        """Tells the parent of a silence, and ends the connection when it is too long."""
        endpoint, end = self._ends[connection]
        silence = Silence(endpoint, seconds, self.allowed)
        if silence.given_up or (seconds >= _TELL * silence.allowed and not self._reported):
            self._reported = True
            with suppress(OSError):  # the parent is gone
                self._tell(silence)
        if silence.given_up:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)  # then ggml ends this process


def _tcp() -> Iterator[tuple[int, socket.socket]]:
    """The TCP connections of this process; the caller closes them."""
    for number, end in connections():
        if end.family == socket.AF_INET and end.type == socket.SOCK_STREAM:
            yield number, end
        else:
            end.close()


def _waits(ends: Mapping[int, tuple[str, socket.socket]]) -> Iterator[Wait]:
    """The waits of this process's threads: the number of the connection, which a thread gave first
    to the system call that it is in, the thread, how often it has slept so far, and the bytes that
    the system has not delivered yet. Once a byte has travelled, it is another wait."""
    if sys.platform == "win32":
        return
    from fcntl import ioctl
    from termios import TIOCOUTQ

    for task in Path("/proc/self/task").iterdir():
        with suppress(OSError, ValueError, IndexError):  # has ended; "running"
            number = int((task / "syscall").read_text().split()[1], 16)
            if number in ends:
                sleeps = (task / "status").read_text().partition(_SLEEPS)[2]
                yield number, task.name, sleeps, ioctl(ends[number][1], TIOCOUTQ, bytes(4))


def _tells_waits() -> bool:
    """Whether the system tells for which connections this process waits."""
    with suppress(OSError):
        return sys.platform == "linux" and bool(Path("/proc/self/syscall").read_text())
    return False
