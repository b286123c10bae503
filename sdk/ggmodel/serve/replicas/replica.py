"""Replicas: each a runner in a process of Ray's, asked and answering in bytes."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import msgspec

from ...errors import Error
from ..models.catalogue import Catalogue
from ..requests import Event, Failure, Request, State
from ..runners.engines import Engines
from ..runners.protocol import METHODS, Result, failure_of, pack, requests
from .cluster import need_ray

if TYPE_CHECKING:
    from ..models.catalogue import PooledRunner

encode = msgspec.msgpack.Encoder().encode
events = msgspec.msgpack.Decoder(list[Event | Failure])
"""Reads a part of an answer: all events that came together."""
result = msgspec.msgpack.Decoder(Result)
state = msgspec.msgpack.Decoder(State)

log = logging.getLogger("ggmodel.serve")

_LAST_SECONDS = 0.2  # for the last messages before the process ends
_FINER = 0.05  # the least share of progress that is told


class Replica:
    """A deployment of Ray Serve. It ends with its runner, and another takes its place.

    Args:
        board: the actor `Board` of the server.
    """

    _runner: PooledRunner

    def __init__(self, board: Any):
        context = need_ray().serve.get_replica_context()
        self._board, self._application, self._id = board, context.app_name, context.replica_tag
        self._reported = 0.0

    async def reconfigure(self, model: Mapping[str, Any]) -> None:
        """Loads the model; Ray Serve calls it once, before there are requests.

        Args:
            model: `name`, `source`, `options` and `engine`, as `Plan` has them.

        Raises:
            Error: it cannot be loaded. The board knows, too.
        """
        self._report(0.0)
        try:
            catalogue = Catalogue({model["name"]: model["source"]}, stores=False)
            target = await asyncio.to_thread(catalogue.look, model["name"])
            engines, options = Engines(model["engine"]), model["options"]
            self._runner = await engines.start(target, options, progress=self._progress)
        except Error as error:
            failure = failure_of(error)
            await self._board.fail.remote(failure.error, failure.message)
            raise
        self._report(1.0)

    def _progress(self, share: float) -> None:
        if share - self._reported >= _FINER:
            self._report(share)

    def _report(self, share: float) -> None:
        self._reported = share
        self._board.report.remote(self._id, share)

    async def check_health(self) -> None:
        """Ray Serve calls it all the time. Where the server has gone without a farewell, its
        replicas are taken away."""
        ray = need_ray()
        if self._runner.ended:
            self._leave()
        try:
            await self._board.ping.remote()
        except ray.exceptions.ActorDiedError:
            log.warning("the server is gone")
            await asyncio.to_thread(ray.serve.delete, self._application, _blocking=False)
        except ray.exceptions.RayError as error:
            log.warning("the server cannot be reached: %s", error)

    async def state(self) -> bytes:
        """The model's `State`."""
        return encode(self._runner.state)

    async def generate(self, body: bytes) -> AsyncIterator[bytes]:
        """Lists of events of an answer, which a `Failure` may end.

        Args:
            body: a `Request`.
        """
        await self._present()
        async with aclosing(self._gathered(requests["generate"].decode(body))) as parts:
            async for part in parts:
                yield encode(part)
                if isinstance(part[-1], Failure) and self._runner.ended:
                    self._leave()

    async def ask(self, method: str, body: bytes) -> bytes:
        """The `Result` of one of `METHODS` but `generate`."""
        await self._present()
        assert METHODS[method][1] is not None
        try:
            answer = await getattr(self._runner, method)(requests[method].decode(body))
        except Error as error:
            if self._runner.ended:
                self._leave()
            return encode(Result(0, failure=failure_of(error)))
        return encode(Result(0, pack(answer)))

    async def _gathered(self, request: Request) -> AsyncGenerator[list[Event | Failure], None]:
        """The events of an answer: each time all that have come, since Ray's work for a message is
        much more than its bytes."""
        held: list[Event | Failure] = []
        come = asyncio.Event()

        async def collect() -> None:
            try:
                async with aclosing(self._runner.generate(request)) as events:
                    async for event in events:
                        held.append(event)
                        come.set()
            except Error as error:
                held.append(failure_of(error))
            finally:
                come.set()

        collecting = asyncio.ensure_future(collect())
        try:
            while held or not collecting.done():
                await come.wait()
                come.clear()
                part, held[:] = [*held], []
                if part:
                    yield part
            collecting.result()
        finally:
            collecting.cancel()
            await asyncio.wait([collecting])

    async def _present(self) -> None:
        """Without a runner a request waits for the end of the process, and goes to another."""
        if self._runner.ended:
            self._leave()
            await asyncio.Event().wait()

    def _leave(self) -> None:
        asyncio.get_running_loop().call_later(_LAST_SECONDS, os._exit, 1)
