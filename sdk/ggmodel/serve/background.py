"""Answers that are computed while nobody waits for them."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from typing import Any, Literal, TypeVar

from .answers import Answer
from .chat import ChatProtocol, parts_of
from .chat_requests import check_logprobs
from .errors import Refused, problem_of
from .monitoring import recorded

T = TypeVar("T")
_MOST = 256  # answers; each holds a request


class EventLog:
    """The events of an answer, which clients follow from any of them on.

    Attributes:
        nbytes: of the events so far.
    """

    def __init__(self) -> None:
        self._frames: list[bytes] = []
        self._ended, self.nbytes = False, 0
        self._news = asyncio.Event()

    def add(self, frames: Iterable[bytes]) -> None:
        """Keeps events, numbered as they come."""
        for frame in frames:
            self._frames.append(frame)
            self.nbytes += len(frame)
        self._tell()

    def end(self) -> None:
        """Ends it, and the streams of those that follow it."""
        self._ended = True
        self._tell()

    async def follow(self, start: int) -> AsyncGenerator[list[bytes], None]:
        """The events from number `start` on, as they come, to the last one."""
        while True:
            news = self._news
            if frames := self._frames[start:]:
                start += len(frames)
                yield frames
            elif self._ended:
                return
            else:
                await news.wait()

    def _tell(self) -> None:
        self._news.set()
        self._news = asyncio.Event()


class BackgroundChat(ChatProtocol[T]):
    """A request whose answer is kept, as far as it is.

    Attributes:
        id: of the answer. events: those of its stream; None where nobody may follow it.
    """

    id: str
    events: EventLog | None = None

    @abstractmethod
    def keep_begun(self) -> None:
        """Keeps that the answer has begun.

        Raises:
            Refused: it has no room.
        """

    @abstractmethod
    def keep_ended(self, status: Literal["failed", "cancelled"], message: str) -> None:
        """Keeps that there will be no answer."""


class Background:
    """The answers under way, by their id. Each holds the body of its request."""

    def __init__(self) -> None:
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def begin(self, chat: BackgroundChat[Any]) -> None:
        """Returns when the model is there, and its answer has begun.

        Raises:
            Refused: too many are under way, or the request is wrong.
            Error: the model cannot be loaded.
        """
        if len(self._tasks) >= _MOST:
            raise Refused("too many answers are computed in the background; try again", 429)
        begun: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        bodies, body = chat.call.server.bodies, chat.call.body
        task = self._tasks[chat.id] = asyncio.ensure_future(self._compute(chat, begun))
        bodies.held += len(body)

        def end(_: object) -> None:
            if chat.events is not None:
                chat.events.end()
            del self._tasks[chat.id]
            bodies.release(body)

        task.add_done_callback(end)
        try:
            await asyncio.wait({task, begun}, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:  # the client has gone, and knows no id
            task.cancel()
            raise
        if not begun.done():
            await task

    async def cancel(self, id: str) -> None:
        """Ends an answer, if it is under way."""
        if task := self._tasks.get(id):
            task.cancel()
            await asyncio.wait({task})

    def close(self) -> None:
        """Ends all."""
        for task in self._tasks.values():
            task.cancel()

    async def _compute(self, chat: BackgroundChat[Any], begun: asyncio.Future[None]) -> None:
        server = chat.call.server
        requests = await chat.read()
        async with server.models.use(chat.params.model, **chat.loading()) as chat.runner:
            requests = await chat.prepared(requests)
            check_logprobs(requests, chat.runner)
            (request,) = requests
            answer = Answer(chat.runner, request, server.metrics, chat.form)
            chat.keep_begun()
            begun.set_result(None)
            with recorded(chat.call.scope, server.log, chat.params.model) as record:
                try:
                    await asyncio.wait_for(_keep(chat, answer), server.settings.timeout or None)
                    record.status = 200
                except asyncio.CancelledError:
                    chat.keep_ended("cancelled", "it was cancelled")
                    raise
                except Exception as error:
                    problem = problem_of(error)
                    record.status = problem.status
                    chat.keep_ended("failed", problem.message)


async def _keep(chat: BackgroundChat[Any], answer: Answer) -> None:
    """Computes an answer, and keeps its events."""
    async with aclosing(parts_of(chat, 0, answer)) as steps:
        async for parts in steps:
            if chat.events is not None:
                chat.events.add(map(chat.frame, parts))
