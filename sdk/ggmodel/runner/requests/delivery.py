"""Pieces on their way from the engine's thread to one consumer."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

from ...interrupts import next_of
from .completion import Piece

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, Event

# Pieces computed ahead of the consumer, and how few of them are left when the engine is woken.
_AHEAD, _LOW = 8, 4


class Delivery:
    """A queue of pieces; None ends it.

    Args:
        wake: has the engine look whether it can go on.

    Attributes:
        whole: nothing limits the queue: the consumer waits for the end, or must not hold up others.
        ended: set when `end` was called.
        at_end: called by `end`, or None.
    """

    def __init__(self, wake: Callable[[], object]):
        self._wake = wake
        self._queue: SimpleQueue[Piece | None] = SimpleQueue()
        self._notify: Callable[[], object] | None = None
        self.at_end: Callable[[], object] | None = None
        self.ended, self.whole = threading.Event(), False

    # in the engine's thread

    @property
    def has_room(self) -> bool:
        """Whether another piece is welcome now."""
        return self.whole or self._queue.qsize() < _AHEAD

    def put(self, piece: Piece | None) -> None:
        """Adds a piece."""
        self._queue.put(piece)
        if self._notify is not None:
            self._notify()

    def end(self) -> None:
        """Nothing more comes; idempotent."""
        if not self.ended.is_set():
            self.ended.set()
            self.put(None)
            if self.at_end is not None:
                self.at_end()

    # by the consumer

    @property
    def empty(self) -> bool:
        """Whether `get` would wait."""
        return self._queue.empty()

    def get(self) -> Piece | None:
        """The next piece, as soon as there is one; None at the end."""
        return self._taken(next_of(self._queue))

    async def aget(self) -> Piece | None:
        """`get` for coroutines, all in one event loop."""
        import asyncio  # takes longer to import than all of the runner

        while True:
            with suppress(Empty):
                return self._taken(self._queue.get_nowait())
            if self._notify is None:
                self._notify = self._notifier(asyncio.get_running_loop(), asyncio.Event())
                continue  # a piece may have come before
            await self._arrived.wait()
            self._arrived.clear()

    def _notifier(self, loop: AbstractEventLoop, arrived: Event) -> Callable[[], None]:
        self._arrived = arrived

        def notify() -> None:
            if not arrived.is_set():
                with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                    loop.call_soon_threadsafe(arrived.set)

        return notify

    def watched(self, came: Callable[[], object]) -> None:
        """Has `came` called, in the engine's thread, with each piece and at the end. Before the
        first piece only."""
        self._notify = came

    def waiting(self, most: int) -> tuple[list[Piece], bool]:
        """The pieces that have come, at most so many, and whether the end has."""
        pieces: list[Piece] = []
        with suppress(Empty):
            while len(pieces) < most:
                piece = self._taken(self._queue.get_nowait())
                if piece is None:
                    return pieces, True
                pieces.append(piece)
        return pieces, False

    def _taken(self, piece: Piece | None) -> Piece | None:
        if self._queue.qsize() == _LOW:
            self._wake()  # the engine may have stopped at _AHEAD
        return piece
