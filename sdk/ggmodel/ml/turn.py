"""Turns: one thread at a time computes on a backend, and nothing uses it from within."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

from ..errors import GraphError
from ..platforms.processes import after_fork

T = TypeVar("T")


class Turn:
    """The turn to use a backend. Threads that want it wait; a thread that has it may take it again.

    Finalizers run in any thread, at any time: none may wait for a turn.

    Attributes:
        lock: held while a thread has the turn. `with turn.lock:` is safe from Ctrl-C, which a
            method of Python that acquires it would not be.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._running = 0  # the thread that runs a graph or loads weights
        _turns.add(self)

    def alone(self, work: Callable[..., T], *args: Any) -> T:
        """Calls `work`, which may call functions of users, such as feeds: they cannot do anything
        to the backend meanwhile that `check` stands before.

        Raises:
            GraphError: such a function asks for this.
        """
        with self.lock:
            self.check()
            try:
                self._running = threading.get_ident()
                return work(*args)
            finally:
                self._running = 0

    def check(self) -> None:
        """Raises GraphError in a function that this thread calls while it computes or loads."""
        if self._running == threading.get_ident():
            raise GraphError(
                "a feed, or another function that a backend calls while it computes or loads, "
                "uses that very backend: compute what it needs before, and close things after"
            )

    def _renew(self) -> None:
        self.lock, self._running = threading.RLock(), 0


_turns: weakref.WeakSet[Turn] = weakref.WeakSet()


def _renew_all() -> None:
    """Runs in forks of this process: the threads that had a turn did not come along."""
    for turn in list(_turns):
        turn._renew()


after_fork(_renew_all)
