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
from typing import TYPE_CHECKING

from ..errors import Error

if TYPE_CHECKING:
    from .generation import Generation


class Turns:
    """Lets one thread at a time take steps.

    Args:
        step: computes a batch; False if there was nothing to compute.
        refusal: why a request could never get a turn, or None.

    Attributes:
        lock: guards what steps and those who wait share.
        stepping: somebody is at it, and may use cache and graphs.
    """

    def __init__(
        self, step: Callable[[], bool], refusal: Callable[[Generation], Error | None]
    ) -> None:
        self._step, self._refusal = step, refusal
        self.lock = threading.RLock()
        self.stepping = False
        self._stepper = 0  # the thread that is at it
        self._changes = 0
        # For those who wait for anything to happen, which are few; sleepers are woken one by one.
        self._anything = threading.Condition(self.lock)
        self._waiting = 0  # how many of them there are
        self._sleepers: dict[Generation, tuple[threading.Condition, Callable[[], bool]]] = {}
        self._queue: deque[object] = deque()  # those who want to be alone, in order
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
        stepped = False
        while True:
            with self.lock:
                while not satisfied() and (self.stepping or self._others_first()):
                    woken = threading.Condition(self.lock)
                    self._sleepers[request] = (woken, satisfied)
                    stepped = False
                    try:
                        woken.wait()
                    except BaseException:  # Ctrl-C, maybe just when it was woken to go on
                        del self._sleepers[request]
                        self._pass_on()
                        raise
                    del self._sleepers[request]
                if satisfied():
                    if not stepped:  # the end of a step passes on by itself
                        self._pass_on()
                    return
                changes = self._changes
                self._begin(step=True)
            stepped = self._take_step()
            if not stepped:
                with self.lock:
                    refusal = self._refusal(request)
                    if refusal is not None:
                        self._pass_on()
                        raise refusal
                    if not satisfied() and changes == self._changes:
                        self._wait_for_anything()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Waits for a step under way, and keeps others from beginning.

        Whoever is waited for comes first: those who want to be alone in their order, and between
        two of them a step, if anybody wants one.
        """
        place = object()
        with self.lock:
            self._queue.append(place)
            try:
                while self.stepping or self._queue[0] is not place or self._owes_a_step():
                    self._wait_for_anything()
            except BaseException:
                self._queue.remove(place)
                self._pass_on()
                raise
            self._queue.popleft()
            self._begin(step=False)
        try:
            yield
        finally:
            self._step_due = True
            self._end()

    @property
    def mine(self) -> bool:
        """Whether this thread is at it."""
        return self.stepping and self._stepper == threading.get_ident()

    def _begin(self, step: bool) -> None:
        self.stepping, self._stepper = True, threading.get_ident()
        if step:
            self._step_due = False

    def _owes_a_step(self) -> bool:
        if not self._step_due:
            return False
        wants = any(not satisfied() for _, satisfied in self._sleepers.values())
        return wants or (self._driver is not None and self._hungry())

    def _others_first(self) -> bool:
        """Whether someone who wants to be alone goes before a step."""
        return bool(self._queue) and not self._step_due

    def attend(self, request: Generation, notify: Callable[[], None]) -> None:
        """Sees to it that steps are taken for a request for which no thread waits.

        Args:
            notify: called, in any thread, when there may be something new of the request.
        """
        with self.lock:
            self._attended[request] = notify
            if self._driver is None:
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
                while self.stepping or self._others_first() or not self._hungry():
                    if not self._attended:
                        self._driver = None
                        return
                    self._wait_for_anything()
                changes = self._changes
                self._begin(step=True)
            try:
                progress = self._take_step()
            except Exception as error:
                self._abandon(error)
                continue
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
            self._anything.wait()
        finally:
            self._waiting -= 1

    def _tell_everybody(self) -> None:
        if self._waiting:
            self._anything.notify_all()

    def _hungry(self) -> bool:
        return any(request.wants_more for request in self._attended)

    def _take_step(self) -> bool:
        try:
            return self._step()
        finally:
            self._end()

    def _end(self) -> None:
        with self.lock:
            self.stepping, self._stepper = False, 0
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
        if self.stepping:
            return
        self._tell_everybody()
        if not self._others_first():
            for woken, _ in self._sleepers.values():
                woken.notify()
                return
