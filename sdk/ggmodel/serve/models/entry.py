"""One model of the pool: its runner, who uses it, and until when it stays."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any, Protocol

from ...errors import DeviceLost, Error
from ..pool import Condition
from ..runner import Runner
from ..runners.needs import Needs
from .catalogue import Target

_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 30.0  # seconds between starts that fail one after the other


class Held(Runner, Protocol):
    """A runner as the pool holds it.

    Attributes:
        needs: the memory of its model.
    """

    needs: Needs

    @property
    def silent(self) -> bool:
        """Whether its process leaves pings unanswered."""
        ...

    @property
    def ended(self) -> bool:
        """Whether its process has ended."""
        ...


class Entry:
    """A model and its runner.

    Attributes:
        lock: held while the runner is started, changed or ended.
        users: requests that have or want the runner. active: those that have it.
        used: when the last one was done, by `time.monotonic`.
        keep_alive: seconds to stay after the last use; negative for ever.
        starting: the runner is being started.
        loading: the memory of the model while it is being loaded.
        longest: context that a request may want; None before it was loaded.
    """

    def __init__(self, target: Target, keep_alive: float, pinned: bool):
        self.target, self.keep_alive, self.pinned = target, keep_alive, pinned
        self.lock = asyncio.Lock()
        self.runner: Held | None = None
        self.options: Mapping[str, Any] = {}
        self.users = self.active = 0
        self.used = time.monotonic()
        self.starting, self.loading = False, Needs(0)
        self.longest: int | None = None
        self._idle = asyncio.Event()
        self._idle.set()
        self._timer: asyncio.TimerHandle | None = None
        self._failures, self._again, self._error = 0, 0.0, Error("")

    @property
    def expires(self) -> float | None:
        """Seconds since 1970 when it is unloaded; None for never, and while it is in use."""
        if self.runner is None or self.pinned or self.keep_alive < 0 or self.users:
            return None
        return time.time() + self.used + self.keep_alive - time.monotonic()

    @property
    def condition(self) -> Condition:
        """See `Models.conditions`."""
        if self.starting:
            return "loading"
        if self.runner is None:
            return "failed" if self._failures else "unloaded"
        if self.runner.ended:
            return "failed"
        return "silent" if self.runner.silent else "ready"

    def became(self, target: Target) -> None:
        """Its name stands for something else, of which nothing is known."""
        self.target, self.longest = target, None
        self.note_success()

    # uses

    def suits(self, options: Mapping[str, Any]) -> bool:
        """Whether the runner was started with these options, and no others."""
        return self.options == options

    def has(self, options: Mapping[str, Any]) -> bool:
        """Whether the runner can be had now, with these options."""
        runs = self.runner is not None and not self.runner.ended
        return runs and not self.lock.locked() and self.suits(options)

    def take(self) -> Held:
        """A request has the runner."""
        assert self.runner is not None
        self.active += 1
        self._idle.clear()
        return self.runner

    def give_back(self) -> None:
        """The request is done with it."""
        self.active -= 1
        if not self.active:
            self._idle.set()

    async def idle(self) -> None:
        """Waits until no request has the runner."""
        await self._idle.wait()

    def expire_in(self, seconds: float | None, unload: Any) -> None:
        """Calls `unload` in so many seconds, and not as it was told before."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if seconds is not None:
            self._timer = asyncio.get_running_loop().call_later(seconds, unload)

    # failures

    def check_pause(self) -> None:
        """Raises the latest error while it is too early to start the model again."""
        if time.monotonic() < self._again:
            raise type(self._error)(str(self._error))

    def note_failure(self, error: Error) -> None:
        """The runner ended by itself, or could not be started. The first end is followed by a new
        start at once, further ones without a use between them by pauses."""
        pauses = self._failures if isinstance(error, DeviceLost) else self._failures + 1
        self._failures += 1
        pause = min(_FIRST_PAUSE * 2 ** (pauses - 1), _LONGEST_PAUSE) if pauses else 0.0
        self._error, self._again = error, time.monotonic() + pause

    def note_success(self) -> None:
        self._failures, self._again = 0, 0.0
