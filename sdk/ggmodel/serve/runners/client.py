"""Client of a runner process: its start and end, its memory, requests over one connection."""

from __future__ import annotations

import asyncio
import json
import logging
import subprocess
import threading
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, cast

import msgspec

from ... import concurrency
from ...bounds import limits
from ...errors import DeviceLost, Error, FormatError, Unsupported
from ..requests import Event, Failure, Finished, Request, State, TokenEvent
from .protocol import (
    WINDOW,
    Cancel,
    Events,
    Hello,
    MethodCall,
    Ping,
    RemoteRunner,
    Result,
    Splitter,
    Taken,
    Watchdog,
    Welcome,
    answers,
    error_of,
    frame,
    from_runner,
    pack,
    silent,
)


@dataclass(frozen=True)
class Needs:
    """The memory that a model will take, in bytes.

    Attributes:
        cpu: of the CPU's. free: what the CPU has. mapped: the part that stays in the file, which
            the system counts as free even while it is in use.
        missing: device → bytes that are lacking there.
    """

    cpu: int
    free: int = 0
    mapped: int = 0
    missing: Mapping[str, int] = field(default_factory=dict)


Admit = Callable[[Needs], Awaitable[bool]]
"""Whether a model may be loaded; False has its process look at the memory again."""

_END_SECONDS = 2.0  # for it to end by itself


class Child:
    """A process of Python that writes lines of JSON, seen from an event loop.

    Args:
        first: the first line that it reads.
        on_message: called in the loop with each message.

    Attributes:
        ended: set when it has ended; `post_mortem` says how.

    Raises:
        Unsupported: it cannot be started.
    """

    def __init__(
        self, module: str, first: Mapping[str, Any], on_message: Callable[[dict[str, Any]], None]
    ):
        self._loop, self._on_message = asyncio.get_running_loop(), on_message
        self.ended = asyncio.Event()
        self.post_mortem = ""
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        try:
            # numpy's BLAS would start a thread a core.
            self._process = concurrency.start_python(
                ["-m", module], {"OPENBLAS_NUM_THREADS": "1"}, **pipes
            )
        except OSError as error:
            raise Unsupported(
                f"a model needs a process of its own, which cannot start: {error}"
            ) from error
        self.pid = self._process.pid
        self._tail = concurrency.Tail(self._process)
        threading.Thread(target=self._listen, name="ggmodel-child", daemon=True).start()
        self.send(first)

    def send(self, message: Any) -> None:
        """Sends a line of JSON."""
        assert self._process.stdin is not None
        with suppress(OSError, ValueError):  # it has ended, and says why
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
            self._process.stdin.flush()

    def _listen(self) -> None:
        """Runs in a thread until the process has ended."""
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                with suppress(ValueError):
                    self._call(self._on_message, json.loads(line))
        status = self._process.wait()
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.close()
        how = concurrency.ending(status, self._tail.last_line())
        self._call(self._note_end, how)

    def _call(self, function: Callable[..., None], *arguments: Any) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody listens any more
            self._loop.call_soon_threadsafe(function, *arguments)

    def _note_end(self, how: str) -> None:
        self.post_mortem = how
        self.ended.set()

    async def end(self) -> None:
        """Ends it, by force if it takes long; idempotent."""
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.close()
        try:
            await asyncio.wait_for(self.ended.wait(), _END_SECONDS)
        except asyncio.TimeoutError:
            self._process.kill()
            await self.ended.wait()

    def kill(self) -> None:
        """Ends it at once."""
        self._process.kill()


log = logging.getLogger("ggmodel.serve")

_HELLO_SECONDS = 30.0


class RunnerConnection(RemoteRunner, asyncio.Protocol):
    """The requests to a runner, and their answers.

    Attributes:
        name: the model's, for messages.
    """

    def __init__(self, name: str):
        self.name = name
        self._state: State | None = None
        self._open: dict[int, _OpenRequest] = {}
        self._last = 0
        self._watchdog = Watchdog(lambda: self._write(Ping()), self._fell_silent)
        self._lost: Error | None = None
        self._splitter = Splitter(limits.frame_bytes)
        self._transport: asyncio.Transport | None = None
        self._greeted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._writable = asyncio.Event()
        self._writable.set()

    async def connect(self, port: int, token: str) -> None:
        """Connects, and says the secret.

        Raises:
            DeviceLost: the runner does not answer. FormatError: it refuses.
        """
        try:
            loop = asyncio.get_running_loop()
            await loop.create_connection(lambda: self, "127.0.0.1", port)
            self._write(Hello(token))
            await asyncio.wait_for(self._greeted, _HELLO_SECONDS)
        except (OSError, asyncio.TimeoutError) as error:
            raise DeviceLost(f"the runner of {self.name} does not answer: {error!r}") from error
        self._watchdog.begin()

    def _fell_silent(self) -> None:
        error = silent(f"computed {self.name}")
        log.error("%s", error)
        self.lose(error)

    @property
    def silent(self) -> bool:
        """Whether pings are left unanswered."""
        return self._watchdog.long

    @property
    def ended(self) -> bool:
        """Whether it answers no more: another one has to be started."""
        return self._lost is not None

    @property
    def state(self) -> State:
        assert self._state is not None
        return self._state.having(len(self._open))

    def fail(self, error: Error) -> None:
        """Ends all requests, now and from now on."""
        self._lost = self._lost or error
        self._watchdog.end()
        for one in list(self._open.values()):
            one.put(self._lost_again())
        self._open.clear()
        self._writable.set()

    def lose(self, error: Error) -> None:
        """Ends all requests and the connection to a runner that is of no use any more."""
        self.fail(error)
        self.disconnect()

    def _lost_again(self) -> Error:
        """The error for one more request."""
        assert self._lost is not None
        return type(self._lost)(str(self._lost))

    def broke(self) -> None:
        """The connection has ended; called once."""
        self.fail(DeviceLost(f"the connection to the runner of {self.name} broke"))

    # requests

    async def generate(self, request: Request) -> AsyncGenerator[Event, None]:
        waiting = _OpenRequest()
        id = await self._send("generate", request, waiting)
        try:
            while True:
                event = await waiting.next()
                if waiting.taken * 2 >= WINDOW:
                    self._write(Taken(id, waiting.taken))
                    waiting.taken = 0
                yield event
                if isinstance(event, Finished):
                    return
        finally:
            self._forget(id)

    # messages

    async def _ask(self, method: str, request: Any) -> Any:
        waiting = _OpenRequest()
        id = await self._send(method, request, waiting)
        try:
            return answers[method].decode(await waiting.next())
        finally:
            self._forget(id)

    async def _send(self, method: str, request: Any, waiting: _OpenRequest) -> int:
        if self._lost is not None:
            raise self._lost_again()
        self._last += 1
        id = self._last
        data = frame(MethodCall(id, method, pack(request)))
        await self._writable.wait()
        if self._lost is not None:
            raise self._lost_again()
        self._open[id] = waiting
        self._write_bytes(data)
        return id

    def _forget(self, id: int) -> None:
        """The caller wants no more; the runner is told if the answer is not complete."""
        if self._open.pop(id, None) is not None:
            self._write(Cancel(id))

    def _write(self, message: Hello | Cancel | Taken | Ping) -> None:
        self._write_bytes(frame(message))

    def _write_bytes(self, data: bytearray) -> None:
        if self._lost is None and self._transport is not None:
            self._transport.write(memoryview(data))  # what is left of bytes would be copied twice

    def _take(self, message: Result | Events) -> None:
        """Delivers an answer to its request."""
        if isinstance(message, Events):
            for id, event in message.events:
                over = isinstance(event, (Finished, Failure))
                one = self._open.pop(id, None) if over else self._open.get(id)
                if isinstance(event, Failure):
                    self._fail_one(one, event)
                elif one is not None:
                    one.put(event)
        else:
            one = self._open.pop(message.id, None)
            if message.failure is not None:
                self._fail_one(one, message.failure)
            elif one is not None:
                one.put(message.body)

    def _fail_one(self, one: _OpenRequest | None, failure: Failure) -> None:
        error = error_of(failure)
        if one is not None:
            one.put(error)
        if isinstance(error, DeviceLost):  # the process lives, but its model is of no use
            self.lose(error)

    # called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._watchdog.heard()
        try:
            for encoded in self._splitter.feed(data):
                message = from_runner.decode(encoded)
                if isinstance(message, Ping):
                    continue
                if isinstance(message, Welcome):
                    self._state = message.state
                    self._greet(None)
                elif isinstance(message, Result) and message.id == 0:
                    reason = message.failure or Failure("FormatError", "no reason given")
                    self._greet(error_of(reason))
                else:
                    self._take(message)
        except (msgspec.MsgspecError, FormatError) as error:
            log.error("the runner process of %s sent an invalid message: %s", self.name, error)
            self.disconnect()

    def _greet(self, error: Error | None) -> None:
        if self._greeted.done():
            return
        if error is None:
            self._greeted.set_result(None)
        else:
            self._greeted.set_exception(error)

    def connection_lost(self, exc: Exception | None) -> None:
        self._greet(DeviceLost(f"the runner of {self.name} has closed its connection"))
        self.broke()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def disconnect(self) -> None:
        """Ends the connection."""
        if self._transport is not None:
            self._transport.abort()  # to a process that stands still nothing can be flushed


class _OpenRequest:
    """A request that is not complete. The runner sends no more than `WINDOW` events ahead.

    Attributes:
        taken: token events that were taken, without a word to the runner.
    """

    def __init__(self) -> None:
        self._answers: deque[Any] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self.taken = 0

    def put(self, answer: Event | bytes | Error) -> None:
        """Adds an event, the one answer, or the error that ends it."""
        self._answers.append(answer)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def next(self) -> Any:
        """The next event, or the answer, as soon as it is there; raises the error that ends it."""
        while not self._answers:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        answer = self._answers.popleft()
        if isinstance(answer, Error):
            raise answer
        self.taken += isinstance(answer, TokenEvent)
        return answer
