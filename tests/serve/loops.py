"""An event loop for tests whose objects live longer than one call."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

T = TypeVar("T")
SECONDS = 60.0


class Loop:
    """Runs coroutines, each within a deadline."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()

    def run(self, work: Coroutine[Any, Any, T], seconds: float = SECONDS) -> T:
        return self._loop.run_until_complete(asyncio.wait_for(work, seconds))


@contextmanager
def new_loop() -> Iterator[Loop]:
    """A loop that is closed in the end, with what still runs in it."""
    loop = Loop()
    inner = loop._loop
    try:
        yield loop
    finally:
        tasks = asyncio.all_tasks(inner)
        for task in tasks:
            task.cancel()
        if tasks:
            inner.run_until_complete(asyncio.wait(tasks, timeout=SECONDS))
        inner.run_until_complete(inner.shutdown_asyncgens())
        inner.run_until_complete(inner.shutdown_default_executor())
        inner.close()
