"""The watchdog of a process that tells again and again that it lives."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ...bounds import limits
from ...errors import DeviceLost

LOOKS = 10  # within `limits.runner_silence_seconds`


class Watchdog:
    """Ends the silence of a process, in an event loop.

    Looks are counted, not seconds: there are none while this process stands still itself.

    Args:
        look: called at each look, to ask the process.
        lost: called when it was silent for `limits.runner_silence_seconds`.
    """

    def __init__(self, look: Callable[[], None], lost: Callable[[], None]):
        self._look, self._lost = look, lost
        self._unheard, self._over = 0, False

    def begin(self) -> None:
        """Looks now, and from now on."""
        if self._over:
            return
        if self._unheard == LOOKS:
            self._over = True
            return self._lost()
        self._unheard += 1
        self._look()
        asyncio.get_running_loop().call_later(pause(), self.begin)

    def heard(self) -> None:
        """The process lives."""
        self._unheard = 0

    def end(self) -> None:
        """The process may be silent from now on."""
        self._over = True

    @property
    def long(self) -> bool:
        """Whether looks were in vain."""
        return self._unheard > 1


def silent(process: str) -> DeviceLost:
    """The error of a process that was silent for too long.

    Args:
        process: what it does, for the message.
    """
    return DeviceLost(
        f"the process that {process} was silent for {limits.runner_silence_seconds:g} s "
        "(limits.runner_silence_seconds) and is ended; the model is loaded again with the next "
        "request"
    )


def pause() -> float:
    """Seconds between looks."""
    return limits.runner_silence_seconds / LOOKS
