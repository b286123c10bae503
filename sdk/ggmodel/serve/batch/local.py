"""Answers a batch on this machine."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from ..app import make_app
from ..server import Server
from .asking import ask
from .files import Answers, Line, Requests

_AHEAD = 4  # requests that may be answered out of turn, for each that is computed

Progress = Callable[[int], object]


async def answer_here(
    requests: Requests, answers: Answers, server: Server, width: int, progress: Progress
) -> None:
    """Answers the requests that have no answer yet, several at a time, and closes the server.

    Args:
        width: requests that are asked at a time.
        progress: called with the number of answers after each.
    """
    app, free = make_app(server), asyncio.Semaphore(width)
    under_way: deque[tuple[Line, asyncio.Task[tuple[int, bytes]]]] = deque()

    async def answer(line: Line) -> tuple[int, bytes]:
        async with free:
            return await ask(app, line.url, bytes(line.body))

    async def write_first() -> None:
        line, task = under_way[0]
        status, body = await task
        under_way.popleft()
        answers.write(line, status, body)
        progress(answers.done)

    try:
        for line in requests.lines(after=answers.done):
            under_way.append((line, asyncio.ensure_future(answer(line))))
            if len(under_way) >= width * _AHEAD:
                await write_first()
        while under_way:
            await write_first()
    finally:
        for _, task in under_way:
            task.cancel()
        await asyncio.gather(*(task for _, task in under_way), return_exceptions=True)
        await server.close()
