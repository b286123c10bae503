"""`Shared`: the life of a backend, which threads use in turns until it is closed."""

from __future__ import annotations

from abc import ABC, abstractmethod

from ..closing import Closing
from ..errors import GraphError
from .turn import Turn


class Shared(Closing, ABC):
    """The life of a backend, which any thread may use: whatever computes, or needs or frees its
    memory, waits for its turn. Functions that it calls meanwhile, such as feeds, may do none of
    this: they get a GraphError.

    Attributes:
        turn: the turn to use it.
        closed: whether `close` was called.
    """

    def __init__(self) -> None:
        self.turn = Turn()
        self.closed = False

    @property
    def forked(self) -> bool:
        """Whether this process is a child of the one that made the backend, and cannot use it."""
        return False

    def check_open(self) -> None:
        """Raises `GraphError` if this backend can compute no more."""
        if self.closed:
            raise GraphError("this backend is closed")

    def close(self) -> None:
        """Frees everything, after a computation under way; idempotent. A forked child leaves that
        to its parent.

        Raises:
            GraphError: called in a feed, or another function that a computation calls.
        """
        if self.closed or self.forked:
            return
        with self.turn.lock:
            self.turn.check()
            self._close()

    def _close(self) -> None:
        """`close`, in this thread's turn, or where nobody can use the backend any more."""
        if not self.closed:
            self.closed = True
            self._free()

    @abstractmethod
    def _free(self) -> None:
        """Frees everything, once."""
