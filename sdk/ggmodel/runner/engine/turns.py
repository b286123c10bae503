"""Whose turn it is to compute.

There is no thread for it: of those that wait for their requests, one takes the steps, each of which
serves all requests; the others sleep until there is something for them, or until that one has what
it wants. For coroutines, which must not wait, a thread is kept as long as there are any.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...errors import Busy, Error

if TYPE_CHECKING:
    from ..requests.generation import Generation

_LOOK = 1.0  # seconds after which a sleeper looks by itself: Ctrl-C may have lost it a wake-up


@dataclass(eq=False)
class _Place:
    """In the queue of those who want to be alone."""

    wanted: bool = True


class Turns:
    """Lets one thread at a time take steps.

    Args:
        step: computes a batch; False if there was nothing to compute.
        refusal: why a request could never get a turn, or None.

    Attributes:
        lock: guards what steps and those who wait share.

    Ctrl-C may come at any call. So that it leaves no turn taken, who ends one notes that before
    anything is called; what others may then not have been told they find out by themselves. (What
    cannot be helped are contextlib's own few instructions around `alone`.)
    """

    def __init__(
        self, step: Callable[[], bool], refusal: Callable[[Generation], Error | None]
    ) -> None:
        self._step, self._refusal = step, refusal
        self.lock = threading.RLock()
        self._stepper = 0  # the thread whose turn it is, or none
        self._changes = 0
        # For those who wait for anything to happen, which are few; sleepers are woken one by one.
        self._anything = threading.Condition(self.lock)
        self._waiting = 0  # how many of them there are
        self._sleepers: dict[Generation, tuple[threading.Condition, Callable[[], bool]]] = {}
        self._queue: deque[_Place] = deque()  # those who want to be alone, in order
        self._step_due = False  # after one was, before the next: so that both get on
        self._attended: dict[Generation, Callable[[], None]] = {}
        self._driver: threading.Thread | None = None

    def changed(self) -> None:
        """Something may be computed now that could not before."""
        with self.lock:
            self._changes += 1
            self._tell_everybody()

    def wait(self, request: Generation, satisfied: Callable[[], bool]) -> None:
        """Returns when the request is satisfied; takes steps if nobody else does.

        Raises:
            Error: it can never be.
        """
        stepped, me = False, threading.get_ident()
        if self._stepper == me:
            raise _asks_itself()
        # Between two tokens ggml's weights have driven this code out of the processor's caches:
        # what mostly need not be called is not.
        while True:
            try:
                with self.lock:
                    if (self._stepper or self._queue) and self._sleep(request, satisfied):
                        stepped = False
                    if satisfied():
                        if not stepped:  # the end of a step passes on by itself
                            self._pass_on()
                        return
                    changes = self._changes
                    self._stepper, self._step_due = me, False
                stepped = self._step()
            finally:
                if self._stepper == me:
                    self._stepper = 0
                    self._end()
            if not stepped:
                with self.lock:
                    refusal = self._refusal(request)
                    if refusal is not None:
                        self._pass_on()
                        raise refusal
                    if not satisfied() and changes == self._changes:
                        self._wait_for_anything()

    def _sleep(self, request: Generation, satisfied: Callable[[], bool]) -> bool:
        """Until the request is satisfied or it is its turn; whether that took any time."""
        slept = False
        while not satisfied() and (self._stepper or self._others_first()):
            woken = threading.Condition(self.lock)
            self._sleepers[request] = (woken, satisfied)
            slept = True
            try:
                woken.wait(_LOOK)
            except BaseException:  # Ctrl-C, maybe just when it was woken to go on
                del self._sleepers[request]
                self._pass_on()
                raise
            del self._sleepers[request]
        return slept

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Waits for a step under way, and keeps others from beginning.

        Whoever is waited for comes first: those who want to be alone in their order, and between
        two of them a step, if anybody wants one.
        """
        place, me = _Place(), threading.get_ident()
        if self._stepper == me:
            raise _asks_itself()
        try:
            with self.lock:
                self._queue.append(place)
                while self._stepper or self._next() is not place or self._owes_a_step():
                    self._wait_for_anything()
                self._stepper = me
            yield
        finally:
            place.wanted = False
            if self._stepper == me:
                self._step_due = True
                self._stepper = 0
            self._end()

    def _next(self) -> _Place | None:
        """Who wants to be alone first."""
        while self._queue and not self._queue[0].wanted:
            self._queue.popleft()
        return self._queue[0] if self._queue else None

    @property
    def stepping(self) -> bool:
        """Whether somebody is at it, and may use cache and graphs."""
        return self._stepper != 0

    @property
    def mine(self) -> bool:
        """Whether this thread is at it."""
        return self._stepper == threading.get_ident()

    def _owes_a_step(self) -> bool:
        if not self._step_due:
            return False
        wants = any(not satisfied() for _, satisfied in self._sleepers.values())
        return wants or (self._driver is not None and self._hungry())

    def _others_first(self) -> bool:
        """Whether someone who wants to be alone goes before a step."""
        return not self._step_due and self._next() is not None

    def attend(self, request: Generation, notify: Callable[[], None]) -> None:
        """Sees to it that steps are taken for a request for which no thread waits.

        Args:
            notify: called, in any thread, when there may be something new of the request.
        """
        with self.lock:
            self._attended[request] = notify
            if self._driver is None or not self._driver.is_alive():  # Ctrl-C came as it began
                self._driver = threading.Thread(
                    target=self._drive, name="ggmodel-engine", daemon=True
                )
                self._driver.start()
            self.changed()

    def leave(self, request: Generation) -> None:
        """Nobody waits for the request any more."""
        with self.lock:
            self._attended.pop(request, None)
            self.changed()

    def _drive(self) -> None:
        while True:
            with self.lock:
                while self._stepper or self._others_first() or not self._hungry():
                    if not self._attended:
                        self._driver = None
                        return
                    self._wait_for_anything()
                changes = self._changes
                self._stepper, self._step_due = threading.get_ident(), False
            try:
                progress = self._step()
            except Exception as error:
                self._abandon(error)
                continue
            finally:
                self._stepper = 0
                self._end()
            if not progress:
                with self.lock:
                    for request in self._attended:
                        refusal = self._refusal(request)
                        if refusal is not None:
                            request.fail(refusal)
                    self._tell()
                    if changes == self._changes and self._hungry():
                        self._wait_for_anything()

    def _abandon(self, error: Exception) -> None:
        """No step should raise; whoever waits for one learns why it did."""
        with self.lock:
            for request in self._attended:
                request.fail(error)
            self._tell()

    def _wait_for_anything(self) -> None:
        self._waiting += 1
        try:
            if not self._anything.wait(_LOOK):
                self._tell()
        finally:
            self._waiting -= 1

    def _tell_everybody(self) -> None:
        if self._waiting:
            self._anything.notify_all()

    def _hungry(self) -> bool:
        return any(request.wants_more for request in self._attended)

    def _end(self) -> None:
        with self.lock:
            if not (self._sleepers or self._attended or self._waiting):
                return
            for woken, satisfied in self._sleepers.values():
                if satisfied():
                    woken.notify()
            self._tell()
            self._pass_on()

    def _tell(self) -> None:
        for request, notify in self._attended.items():
            if request.news:
                notify()

    def _pass_on(self) -> None:
        """Wakes somebody who goes on, if nobody does."""
        if self._stepper:
            return
        self._tell_everybody()
        if not self._others_first():
            for woken, _ in self._sleepers.values():
                woken.notify()
                return


def _asks_itself() -> Busy:
    return Busy(
        "a sampler or another callback asks the very model that calls it; ask when it has "
        "returned, or load the model twice"
    )
