"""Models whose runners are replicas: Ray Serve chooses the replica that answers a request."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing, asynccontextmanager, suppress
from typing import Any, TypeVar

import msgspec

from ...errors import Busy, ConfigError, DeviceLost, Unsupported
from ..models.catalogue import Catalogue
from ..monitoring import note_model
from ..pool import Condition, ListedModel
from ..requests import (
    Adapt,
    Event,
    Failure,
    Finished,
    Request,
    Runner,
    SlotCall,
    SlotChanged,
    Started,
    State,
    Strengths,
    TokenEvent,
)
from ..runners.protocol import RemoteRunner, answers, error_of, pack
from . import replica

log = logging.getLogger("ggmodel.serve")
T = TypeVar("T")

_TRIES = 5  # replicas that may be lost before the first token of an answer
_PAUSE = 0.25  # seconds before the second try, doubled with each further one


class ReplicaLost(DeviceLost):
    """A replica has ended, with its process or its machine."""


class Replicas(RemoteRunner):
    """A `Runner` whose work is done by replicas.

    A request whose replica is lost before its first token goes to another one. If the model's own
    process ended while it had the request, that may be the request's doing: it is tried once more.

    Args:
        handle: of Ray Serve.
        count: of the replicas that are wanted.
        is_lost: whether an error of the handle means that the replica was lost.
        lack: the reason why no replica can answer now; "" where there is one.
        timeout: seconds without any answer after which it is asked for the lack, again and again.
    """

    def __init__(
        self,
        name: str,
        handle: Any,
        count: int,
        *,
        is_lost: Callable[[BaseException], bool],
        lack: Callable[[], str],
        timeout: float = 60.0,
    ):
        self.name, self._count = name, count
        self._is_lost, self._lack, self._timeout = is_lost, lack, timeout
        self._generate = handle.options(method_name="generate", stream=True)
        self._ask_one = handle.options(method_name="ask")
        self._state_of_one = handle.options(method_name="state")
        self._state: State | None = None
        self._open = 0

    async def start(self) -> None:
        """Asks for the model's state."""

        async def ask() -> bytes:
            return await self._one(self._state_of_one.remote())

        state = replica.state.decode(await self._retried(ask))
        parallel = state.parallel * self._count
        self._state = msgspec.structs.replace(state, parallel=parallel)

    @property
    def started(self) -> bool:
        return self._state is not None

    @property
    def state(self) -> State:
        """As one replica tells it; sequences are those of all."""
        assert self._state is not None
        return self._state.having(self._open)

    async def generate(self, request: Request) -> AsyncGenerator[Event, None]:
        body, begun, spoken = pack(request), False, False
        tries = _Tries()
        self._open += 1
        try:
            while True:
                try:
                    async with aclosing(self._events(body)) as events:
                        async for event in events:
                            if begun and isinstance(event, Started):
                                continue  # of the same prompt
                            begun, spoken = True, spoken or isinstance(event, TokenEvent)
                            yield event
                            if isinstance(event, Finished):
                                return
                        raise ReplicaLost(f"a replica of {self.name} left an answer without end")
                except DeviceLost as error:
                    if spoken:
                        raise
                    await tries.note(error)
        finally:
            self._open -= 1

    async def close(self) -> None:
        """Nothing: replicas end with the deployment."""

    # messages

    async def adapt(self, request: Adapt) -> Strengths:
        if request.strengths is not None:
            raise Unsupported("one replica of several would change; requests choose their adapters")
        return await super().adapt(request)

    async def slot(self, request: SlotCall) -> SlotChanged:
        raise Unsupported("one replica of several would change; --prefix-store is for all")

    async def _ask(self, method: str, request: Any) -> Any:
        body = pack(request)

        async def ask() -> Any:
            result = replica.result.decode(await self._one(self._ask_one.remote(method, body)))
            if result.failure is not None:
                raise error_of(result.failure)
            return answers[method].decode(result.body)

        self._open += 1
        try:
            return await self._retried(ask)
        finally:
            self._open -= 1

    async def _one(self, reply: Any) -> bytes:
        """An answer that is one message."""
        over = False
        try:
            data = await self._first(_whole(reply))
            over = True
            return data
        except Exception as error:
            raise self._own_error(error) from None
        finally:
            if not over:
                _cancel(reply)

    async def _retried(self, work: Callable[[], Awaitable[T]]) -> T:
        tries = _Tries()
        while True:
            try:
                return await work()
            except DeviceLost as error:
                await tries.note(error)

    async def _events(self, body: bytes) -> AsyncGenerator[Event, None]:
        """The events of one replica's answer; closing it cancels the request there."""
        reply = self._generate.remote(body)
        over = False
        try:
            part = await self._first(_next(reply))
            while not over and part is not None:
                for event in replica.events.decode(part):
                    over = isinstance(event, (Finished, Failure))
                    if isinstance(event, Failure):
                        raise error_of(event)
                    yield event
                part = None if over else await _next(reply)
            over = True
        except Exception as error:
            raise self._own_error(error) from None
        finally:
            if not over:
                _cancel(reply)

    async def _first(self, answer: Awaitable[T]) -> T:
        """The first sign of a replica. While there is none, looks whether there can be one.

        Raises:
            DeviceLost: no replica is left, and none can be started now.
        """
        waiting = asyncio.ensure_future(answer)
        try:
            while not (await asyncio.wait([waiting], timeout=self._timeout))[0]:
                if lack := await asyncio.to_thread(self._lack):
                    raise DeviceLost(f"no replica of {self.name} can answer: {lack}")
            return waiting.result()
        finally:
            waiting.cancel()
            waiting.add_done_callback(_look_at)  # nobody else may

    def _own_error(self, error: Exception) -> Exception:
        """An error of Ray's as one of ours."""
        if not self._is_lost(error):
            return error
        log.warning("a replica of %s was lost: %s", self.name, str(error).partition("\n")[0])
        return ReplicaLost(
            f"the replica of {self.name} that computed this was lost; ask again, and another one "
            "answers"
        )


class _Tries:
    """The failed attempts of a request."""

    def __init__(self) -> None:
        self._lost = self._crashed = 0

    async def note(self, error: DeviceLost) -> None:
        """Waits until it may be tried again; raises the error where it was tried enough."""
        if isinstance(error, ReplicaLost):
            self._lost += 1
        else:
            self._crashed += 1
        if self._lost >= _TRIES or self._crashed > 1:
            raise error
        await asyncio.sleep(_PAUSE * 2 ** (self._lost + self._crashed - 1))


def _look_at(task: asyncio.Future[Any]) -> None:
    if not task.cancelled():
        task.exception()


def _cancel(reply: Any) -> None:
    with suppress(Exception):  # it raises what kept the request from being sent
        reply.cancel()


async def _whole(reply: Any) -> Any:
    return await reply


async def _next(reply: Any) -> Any:
    """The next part of an answer; None at its end."""
    return await anext(reply, None)


_STAYS = "models on Ray stay loaded as long as the server runs"


class ReplicatedModels:
    """`Models` of a server.

    Args:
        replicas: of each name of the catalogue.
        options: of loading, with which all were started.
        queue: requests to one model at a time.
    """

    def __init__(
        self,
        catalogue: Catalogue,
        replicas: Mapping[str, Replicas],
        options: Mapping[str, Any],
        queue: int,
    ):
        self._catalogue, self._replicas = catalogue, replicas
        self._options, self._queue = options, queue
        self._users = dict.fromkeys(replicas, 0)
        self._starting = {name: asyncio.Lock() for name in replicas}

    @asynccontextmanager
    async def use(
        self, name: str | None, *, keep_alive: float | None = None, **options: Any
    ) -> AsyncIterator[Runner]:
        """See `Models.use`. Nobody has to load a model, and `keep_alive` is of no account.

        Raises:
            ConfigError: the request wants more context than the model was loaded with.
        """
        note_model(name)
        key = (await self._catalogue.target(name)).key
        if self._users[key] >= self._queue:
            raise Busy(f"{self._queue} requests wait for {key}; try again in a moment")
        self._users[key] += 1
        try:
            replicas = await self._started(key)
            _check(options, self._options, replicas, key)
            yield replicas
        finally:
            self._users[key] -= 1

    async def loaded(self, name: str | None) -> Runner:
        """See `Models.loaded`."""
        return await self._started((await self._catalogue.target(name)).key)

    async def _started(self, key: str) -> Replicas:
        replicas = self._replicas[key]
        if not replicas.started:
            async with self._starting[key]:
                if not replicas.started:
                    await replicas.start()
        return replicas

    def start(self) -> None:
        """Nothing: they are there."""

    async def listed(self) -> list[ListedModel]:
        """See `Models.listed`."""
        models = await asyncio.to_thread(self._catalogue.listed)
        states = {one.name: (await self._started(one.name)).state for one in models}
        return [msgspec.structs.replace(one, state=states[one.name]) for one in models]

    def conditions(self) -> dict[str, Condition]:
        """See `Models.conditions`."""
        started = self._replicas.items()
        return {name: "ready" if one.started else "loading" for name, one in started}

    async def unload(self, name: str) -> None:
        """Raises Unsupported."""
        raise Unsupported(f"{name} cannot be unloaded: {_STAYS}")

    async def changed(self, name: str) -> None:
        """Raises Unsupported."""
        raise Unsupported(f"{name} cannot be changed: {_STAYS}")

    async def close(self) -> None:
        """Nothing: replicas end with the deployment."""


def _check(options: Mapping[str, Any], own: Mapping[str, Any], runner: Replicas, key: str) -> None:
    """Whether replicas with their own options can do what others are wanted for."""
    for name, value in options.items():
        if name == "context_length" and value is not None:
            most = runner.state.context_length
            if value > most:
                raise ConfigError(
                    f"the context_length (num_ctx) of {value:,} is more than the {most:,} that the "
                    f"replicas of {key} were started with; ask for less"
                )
        elif value != own.get(name):
            raise ConfigError(f"{name} cannot be changed: {_STAYS}")
