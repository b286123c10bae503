"""The thread that an engine computes in, and how others ask it for something."""

from __future__ import annotations

import atexit
import threading
import weakref
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any, TypeVar

from ...concurrency import result_of
from ...errors import Busy, Cancelled, GraphError
from ...ml.executable import Turn
from ...platforms.processes import after_fork

T = TypeVar("T")

_EXIT = 5.0  # seconds that the end of the process waits for a step under way


@dataclass(eq=False)
class _Job:
    """A call that its caller waits for.

    Attributes:
        abandoned: its caller waits no longer.
    """

    work: Callable[[], Any]
    result: Future[Any] = field(default_factory=Future)
    abandoned: bool = False

    def run(self) -> None:
        if self.abandoned or not self.result.set_running_or_notify_cancel():
            return
        try:
            value = self.work()
        except BaseException as error:  # it belongs to the caller, whatever it is
            self.result.set_exception(error)
            self = None  # or the error's traceback would keep the job, which keeps the error
        else:
            self.result.set_result(value)


class EngineThread(ABC):
    """Takes steps and runs jobs, one at a time, in one thread and in the turn of its backend: a job
    may read results that the next graph overwrites.

    The thread starts with the first message. It ends with `close`, with the process, or when the
    engine is no longer referred to.

    Ctrl-C reaches the main thread alone. It may end a wait there, never a step or a job.

    Args:
        turn: of the backend that steps and jobs compute on. Waiting methods raise GraphError in
            functions that it calls while it computes: these would wait for ever.

    Attributes:
        forked: this process is a child of the one that has the thread.
    """

    def __init__(self, turn: Turn):
        self._turn = turn
        self.forked = False
        _all.add(self)
        self._inbox: SimpleQueue[_Job | Callable[[], object] | None] = SimpleQueue()
        self._jobs: deque[_Job] = deque()
        self._running: _Job | None = None
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._ident = 0
        self._closed = self._ending = False

    # the work between jobs, in the thread

    @abstractmethod
    def step(self) -> bool:
        """Computes a batch; False if there is nothing to compute."""

    @abstractmethod
    def stalled(self) -> bool:
        """Nothing can be computed until a message comes; True if something can be after all."""

    @abstractmethod
    def end(self) -> None:
        """Ends all requests and frees everything; idempotent."""

    @abstractmethod
    def abandon(self, error: BaseException) -> None:
        """A step raised, which none should: ends all requests with the error."""

    # for other threads

    def post(self, message: Callable[[], object]) -> None:
        """Has the thread call something brief between two steps; never waits. Finalizers may call
        it in any thread."""
        self._inbox.put(message)

    def wake(self) -> None:
        """Has the thread look whether there is something to compute."""
        self._inbox.put(_nothing)

    def _send(self, message: Callable[[], object] | _Job) -> None:
        """`post`, of what needs the thread to run.

        Raises:
            GraphError: the engine is closed, or belongs to another process.
        """
        self.check_process()
        with self._lock:
            if self._closed:
                raise closed()
            if self._thread is None:
                self._start()
            self._inbox.put(message)

    def call(self, work: Callable[[], T]) -> T:
        """Runs `work` in the engine's thread, between two steps, and returns or raises as it does.

        Ctrl-C ends the wait: work that has not begun never does then, and `check_abandoned` ends
        work under way.

        Raises:
            GraphError: the engine is closed, or belongs to another process.
            Busy: the engine's own thread asks, from a callback.
        """
        self.check_caller()
        job = _Job(work)
        try:
            self._send(job)
            return result_of(job.result)
        finally:  # also by Ctrl-C, which may come as soon as the job is submitted
            job.abandoned = True

    def between_steps(self, work: Callable[[], T]) -> T:
        """`call`, or just a call where no step can run at the same time: also in a closed engine,
        or in one of its callbacks."""
        if self.forked or self.here:  # the lock may be held for ever in a child
            return self._in_turn(work)
        self._turn.check()
        if self._thread is None:
            with self._turn.lock, self._lock:  # nobody waits for a turn with the lock
                if self._thread is None:  # nor does it begin meanwhile
                    return work()
        return self._in_turn(work) if self._closed else self.call(work)

    def _in_turn(self, work: Callable[[], T]) -> T:
        with self._turn.lock:
            return work()

    def in_thread(self, work: Callable[[], None]) -> None:
        """`call`, or just a call within a step."""
        return work() if self.here else self.call(work)

    def check_caller(self) -> None:
        """Raises Busy in the engine's own thread, which cannot wait for itself, and GraphError in a
        feed, which the thread may wait for."""
        self._turn.check()
        if self.here:
            raise Busy(
                "a sampler or another callback asks the very model that calls it; ask when it has "
                "returned, or load the model twice"
            )

    @property
    def here(self) -> bool:
        """Whether the calling thread is the engine's."""
        return threading.get_ident() == self._ident

    def check_process(self) -> None:
        """Raises GraphError in a forked child, where the thread does not exist."""
        if self.forked:
            raise GraphError(
                "the process was forked after this model was loaded, and threads do not come "
                "along: load it in the child, or start children by spawn"
            )

    def check_abandoned(self) -> None:
        """Raises Cancelled in a job whose caller waits no longer. For long jobs."""
        if self._running is not None and self._running.abandoned:
            raise Cancelled("the caller no longer waits for this")

    def close(self, timeout: float | None = None) -> bool:
        """Ends the thread after the step under way, and frees everything. Requests that are not
        done fail, and jobs that have not begun. Idempotent. Does nothing in a forked child.

        Args:
            timeout: seconds to wait for that step; None waits for its end.

        Returns:
            Whether the thread has ended.

        Raises:
            Busy, GraphError: see `check_caller`.
        """
        if self.forked:
            return True
        self.check_caller()
        with self._lock:
            self._closed = True
        if self._thread is None:
            self.end()
            return True
        self._inbox.put(None)
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _start(self) -> None:
        weakref.finalize(self, self._inbox.put, None).atexit = False
        thread = threading.Thread(
            target=_serve,
            args=(self._inbox, weakref.ref(self)),
            name="ggmodel-engine",
            daemon=True,
        )
        thread.start()
        self._thread = thread

    # in the thread

    def _work(self) -> bool:
        """Takes in messages and computes until there is nothing to do; False at the end."""
        while not self._ending:
            while not self._inbox.empty():
                self._receive(self._inbox.get_nowait())
            if self._ending:
                break
            computed = False
            try:
                with self._turn.lock:
                    computed = self.step()
            except BaseException as error:  # the thread must live
                self._fail(error)
            idle = not computed and self._inbox.empty()
            if idle and not self._guarded(self.stalled) and not self._jobs:
                return True
            if self._jobs:  # one between two steps: both get on
                self._running = self._jobs.popleft()
                self._in_turn(self._running.run)
                self._running = None
        while self._jobs:
            job = self._jobs.popleft()
            if job.result.set_running_or_notify_cancel():
                job.result.set_exception(closed())
        self._closed = True
        self._guarded(self.end)
        self._ident = 0  # another thread may get the number
        return False

    def _receive(self, message: _Job | Callable[[], object] | None) -> None:
        self._ident = threading.get_ident()
        if message is None:
            self._ending = True
        elif isinstance(message, _Job):
            self._jobs.append(message)
        else:
            self._guarded(message)

    def _guarded(self, call: Callable[[], object]) -> object:
        try:
            return call()
        except BaseException as error:
            self._fail(error)
            return None

    def _fail(self, error: BaseException) -> None:
        with suppress(BaseException):
            self.abandon(error)


def _nothing() -> None:
    pass


def closed() -> GraphError:
    """The error of those who ask a closed model."""
    return GraphError("this model is closed; load it again")


def _serve(inbox: SimpleQueue[Any], owner: weakref.ref[EngineThread]) -> None:
    """The thread. While idle it holds no reference to the engine, which may be collected."""
    while True:
        message = inbox.get()
        thread = owner()
        if thread is None:
            return
        thread._receive(message)
        del message  # a job's result may be large
        if not thread._work():
            return
        del thread


_all: weakref.WeakSet[EngineThread] = weakref.WeakSet()


@atexit.register
def _end_all() -> None:
    """No thread may compute while the process takes its memory apart."""
    for thread in list(_all):
        if thread._thread is not None:
            thread.close(_EXIT)


def _leave_all() -> None:
    """Runs in forks of this process."""
    for thread in list(_all):
        thread.forked = True


after_fork(_leave_all)
