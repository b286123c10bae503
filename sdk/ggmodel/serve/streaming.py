"""Answers that come in parts: server-sent events, and lines of JSON."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from typing_extensions import Self

    from .endpoint import Call

_AT_ONCE = 64  # answers of one request that are under way
_PING_SECONDS = 15.0  # of silence, after which a ping keeps clients and proxies waiting
PING = b": ping\n\n"
_HEADERS = {"cache_control": "no-cache", "x_accel_buffering": "no"}


class Stream:
    """An answer in parts. Its status and headers are sent with the first of them, so that an error
    before it has a status of its own.

    Args:
        ping: what is sent while there is nothing else, of server-sent events.
    """

    def __init__(self, call: Call, media_type: str, ping: bytes):
        self._call, self._media_type, self._ping = call, media_type, ping
        self._events = media_type == "text/event-stream"
        self._sent = 0
        self._alive: asyncio.Task[None] | None = None

    async def begin(self) -> None:
        """Sends status and headers."""
        if not self._call.status:
            await self._call.start(200, _HEADERS, self._media_type)
            if self._events:
                self._alive = asyncio.ensure_future(self._keep_alive())

    async def send(self, data: bytes) -> None:
        """Sends a part."""
        if self._alive is None:
            await self.begin()
        self._sent += 1
        await self._call.send(data)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._alive is not None:
            self._alive.cancel()
        if kind is None:
            await self.begin()
            await self._call.send(b"", more=False)

    async def _keep_alive(self) -> None:
        while True:
            before = self._sent
            await asyncio.sleep(_PING_SECONDS)
            if self._sent == before:
                await self._call.send(self._ping)


def event(data: Any, name: str = "") -> bytes:
    """A server-sent event."""
    return written(msgspec.json.encode(data), name)


def written(data: bytes, name: str = "") -> bytes:
    """A server-sent event of JSON that is written already."""
    head = b"event: " + name.encode() + b"\n" if name else b""
    return head + b"data: " + data + b"\n\n"


async def together(work: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Runs coroutines at once. The first error ends all of them.

    Raises:
        Exception: the first error.
    """
    tasks = [asyncio.ensure_future(one) for one in work]
    if len(tasks) == 0:
        return
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def some(work: Callable[[int], Coroutine[Any, Any, None]], count: int) -> None:
    """Runs `work(index)` for so many indices, a limited number at a time.

    Raises:
        Exception: the first error, which ends all of them.
    """
    free = asyncio.Semaphore(_AT_ONCE)

    async def one(index: int) -> None:
        async with free:
            await work(index)

    await together(map(one, range(count)))
