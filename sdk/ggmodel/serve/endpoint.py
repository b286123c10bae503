"""Endpoints: one request, from its body to the end of its answer, whole or streamed."""

from __future__ import annotations

import asyncio
import time
import traceback
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Iterable,
    Mapping,
    Sequence,
)
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import msgspec
from msgspec import Struct
from starlette.datastructures import Headers
from starlette.routing import Route

from ..bounds import limits
from .bodies import ClientGone, decoded, ignored
from .errors import Problem, Refused, logger, problem_of
from .forms import Form, read_form

if TYPE_CHECKING:
    from .bodies import Receive
    from .server import Server

_AT_ONCE = 64  # answers of one request that are under way
PING = b": ping\n\n"
DONE = b"data: [DONE]\n\n"
_encode = msgspec.json.Encoder().encode
_HEADERS = {"cache_control": "no-cache", "x_accel_buffering": "no"}


def event(part: Any) -> bytes:
    """A server-sent event."""
    return b"data: %b\n\n" % _encode(part)


def named_event(part: Struct) -> bytes:
    """A server-sent event that has the name of its type's tag."""
    return b"event: %b\n%b" % (str(part.__struct_config__.tag).encode(), event(part))


def line(part: Any) -> bytes:
    """A line of JSON."""
    return _encode(part) + b"\n"


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


T = TypeVar("T")
Send = Callable[[Mapping[str, Any]], Awaitable[None]]

JSON = "application/json"
EVENTS = "text/event-stream"
LINES = "application/x-ndjson"
TEXT = "text/plain"
WARNINGS = "x-ggmodel-warnings"
_NAMES, _LONGEST = 16, 1000  # fields that a warning names, characters of all warnings


class ErrorFormat(NamedTuple):
    """An API's form of errors.

    Attributes:
        kind: the type of their JSON. of: an error in that type.
        frame: a part of a stream as it is sent.
    """

    kind: type[Struct]
    of: Callable[[Problem], Struct]
    frame: Callable[[Any], bytes]

    def interruption(self, error: Problem) -> bytes:
        """The last part of a stream that cannot go on."""
        return self.frame(self.of(error))


class Call:
    """One request under way.

    Attributes:
        key: of the client, hashed; "" where the server wants none.
        scope: of ASGI. body: of the request. path: the parameters of its path.
        finished: the answer is complete. warnings: see `warn`.
        media_nbytes: of the files that were fetched or read. documents: read so far,
            in `document_seconds` of other processes.
        interruption: the last part of a stream that cannot go on; None for the API's usual one.
        errors: the form of errors; None for the endpoint's.
        remedy: what the request might have asked for, with a prompt that is too long.
    """

    def __init__(self, server: Server, scope: Mapping[str, Any], send: Send):
        self.server, self.scope, self._send = server, scope, send
        self.headers = Headers(scope=scope)  # type: ignore[arg-type]
        self.path: Mapping[str, Any] = scope.get("path_params", {})
        self.key: str = scope.get("ggmodel.key", "")
        self.body = b""
        self.receive: Receive | None = None
        self.status, self.finished = 0, False
        self.media_nbytes = self.documents = self._sent = 0
        self.document_seconds = 0.0
        self._alive: asyncio.Task[None] | None = None
        self.warnings: list[str] = []
        self.interruption: Callable[[Problem], bytes] | None = None
        self.errors: ErrorFormat | None = None
        self.remedy = ""

    @property
    def routes(self) -> Sequence[Any]:
        """All routes of the application."""
        return self.scope["app"].routes

    @property
    def base_url(self) -> str:
        """The URL of this server as the client calls it, perhaps through a proxy."""
        scheme = self.headers.get("x-forwarded-proto", self.scope["scheme"])
        return f"{'https' if scheme == 'https' else 'http'}://{self.headers.get('host', '')}"

    @property
    def query(self) -> str:
        return self.scope["query_string"].decode("latin-1")

    async def decode(self, kind: type[T]) -> T:
        """The body as JSON of this type.

        Raises:
            Refused: it is no such JSON, or has fields without effect where they are errors.
        """
        value = await decoded(self.body, kind)
        fields = await ignored(self.body, kind)
        self._ignore([*fields, *getattr(value, "ignored", ())])
        return value

    async def form(self) -> Form:
        """The body as a form.

        Raises:
            Refused: it is no such form.
        """
        return await asyncio.to_thread(read_form, self.body, self.headers.get("content-type", ""))

    async def fetch(self, url: str, param: str) -> bytes:
        """See `Media.fetch` and `note_media`."""
        data = await self.server.media.fetch(url, param)
        self.note_media(len(data), param)
        return data

    def note_media(self, nbytes: int, param: str) -> None:
        """Counts a file of the request; refuses those that exceed `serve_items_bytes` together."""
        self.media_nbytes += nbytes
        if self.media_nbytes > limits.serve_items_bytes:
            raise Refused(
                f"{param} makes {self.media_nbytes:,} bytes with those before it, more than the "
                "limit serve_items_bytes",
                param=param,
            )

    def warn(self, text: str) -> None:
        """Notes what the answer lacks, for the log and for a header of the answer."""
        self.warnings.append(text.encode("ascii", "backslashreplace").decode())

    def _ignore(self, names: Sequence[str]) -> None:
        """Notes the fields of the request that are ignored, or refuses them."""
        if not names:
            return
        listed = ", ".join(f"{name!a:.60}" for name in names[:_NAMES])
        more = f" and {len(names) - _NAMES} more" if len(names) > _NAMES else ""
        text = f"fields without effect: {listed}{more}"
        if self.server.settings.strict_fields:
            fields = [f"{name:.60}" for name in names[:_NAMES]]
            raise Refused(text, param=fields[0], fields=fields)
        self.warn(text)

    async def chunks(self) -> AsyncIterator[bytes]:
        """The body of an upload, piece by piece.

        Raises:
            ClientGone: it ends in the middle.
            Refused: no piece comes for a while.
        """
        assert self.receive is not None
        more = True
        while more:
            try:
                message = await asyncio.wait_for(self.receive(), limits.serve_body_seconds)
            except asyncio.TimeoutError:
                raise Refused("the body of the request comes too slowly", 408) from None
            if message["type"] == "http.disconnect":
                raise ClientGone
            yield message.get("body", b"")
            more = message.get("more_body", False)

    async def json(self, value: Any, status: int = 200, **headers: str) -> None:
        """Answers with JSON."""
        await self.reply(_encode(value), JSON, status, **headers)

    async def reply(self, body: bytes, media_type: str, status: int = 200, **headers: str) -> None:
        """Answers with these bytes.

        Args:
            headers: their names with _ for -.
        """
        await self.start(status, {"content_length": str(len(body)), **headers}, media_type)
        if self.scope["method"] == "HEAD":
            body = b""
        await self.send(body, more=False)

    @asynccontextmanager
    async def stream(self, media_type: str = EVENTS, ping: bytes = PING) -> AsyncIterator[None]:
        """Answers with the parts that the block sends. Status and headers go with the first of
        them, so that an error before it has a status of its own.

        Args:
            ping: sent while there is nothing else, of server-sent events.
        """
        self._media_type, self._ping = media_type, ping
        try:
            yield
            await self.begin()
        finally:
            if self._alive is not None:
                self._alive.cancel()
        await self.send(b"", more=False)

    async def begin(self) -> None:
        """Sends status and headers of a stream, unless they were sent."""
        if not self.status:
            await self.start(200, _HEADERS, self._media_type)
            if self._media_type == EVENTS and self.server.settings.ping_seconds > 0:
                self._alive = asyncio.ensure_future(self._keep_alive())

    async def send_all(self, parts: Iterable[bytes]) -> None:
        """Sends parts of a stream at once, if there are any."""
        if data := b"".join(parts):
            await self.begin()
            await self.send(data)

    async def _keep_alive(self) -> None:
        while True:
            before = self._sent
            await asyncio.sleep(self.server.settings.ping_seconds)
            if self._sent == before:
                await self.send(self._ping)

    async def start(self, status: int, headers: Mapping[str, str], media_type: str) -> None:
        """Sends status and headers."""
        self.status = status
        listed = [(b"content-type", media_type.encode())]
        if self.warnings:
            text = "; ".join(self.warnings)[:_LONGEST]
            logger.warning("%s: %s", ascii(self.scope["path"])[:_LONGEST], text)
            listed.append((WARNINGS.encode(), text.encode()))
        listed += [(k.replace("_", "-").encode(), v.encode("latin-1")) for k, v in headers.items()]
        message = {"type": "http.response.start", "status": status, "headers": listed}
        await self._send(message)

    async def send(self, data: bytes, more: bool = True) -> None:
        """Sends a part of the body."""
        self.finished = not more
        self._sent += 1
        await self._send({"type": "http.response.body", "body": data, "more_body": more})


Handler = Callable[[Call], Coroutine[Any, Any, None]]


@dataclass(frozen=True)
class Answers:
    """How an endpoint answers when all goes well, for /openapi.json.

    Attributes:
        kind: the type of the JSON; None for none.
        others: media type → the types of other answers, or of the events or lines of a stream.
        form: the fields of the form that it takes; None for no form.
    """

    kind: Any = None
    others: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    status: int = 200
    form: type | None = None


@dataclass(frozen=True)
class Endpoint:
    """An endpoint of an API, as an ASGI application.

    Attributes:
        path: of the route, without values of its parameters.
        body: the type of the JSON that it takes; None for other bodies or none.
        summary: a line for /openapi.json.
        uploads: the handler reads the body itself, by `call.chunks`, and may answer before its end.
        answers: for /openapi.json.
    """

    server: Server
    handler: Handler
    errors: ErrorFormat
    path: str
    body: type | None = None
    summary: str = ""
    uploads: bool = False
    answers: Answers = Answers()

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        call, bodies = Call(self.server, scope, send), self.server.bodies
        began = time.monotonic()
        try:
            if self.uploads:
                call.receive = receive
                await self._answer(call)
            else:
                call.body = await bodies.read(receive, call.headers.get("content-length"))
                try:
                    await _unless_gone(call, self._answer(call), receive)
                finally:
                    bodies.release(call.body)
        except ClientGone:
            call.status = 499
        except Exception as error:
            await self._refuse(call, error)
            # Tasks and their errors hold each other, and so would hold the body for a while.
            traceback.clear_frames(error.__traceback__)
        self.server.metrics.answered(self.path, call.status, time.monotonic() - began)

    async def _answer(self, call: Call) -> None:
        seconds = self.server.settings.timeout
        await asyncio.wait_for(self.handler(call), seconds or None)

    async def _refuse(self, call: Call, error: Exception) -> None:
        problem = problem_of(error, call.remedy)
        try:
            if not call.status:
                await refuse(call, call.errors or self.errors, problem)
            elif not call.finished:
                interruption = call.interruption or self.errors.interruption
                await call.send(interruption(problem), more=False)
                call.status = problem.status  # for the metrics
        except OSError:
            pass  # it has gone meanwhile


async def refuse(call: Call, errors: ErrorFormat, problem: Problem) -> None:
    """Answers with an error."""
    headers = {} if problem.retry_after is None else {"retry_after": str(problem.retry_after)}
    if problem.status == 401:
        headers["www_authenticate"] = "Bearer"
    if problem.allowed:
        headers["allow"] = ", ".join(problem.allowed)
    await call.json(errors.of(problem), problem.status, **headers)


def route(
    method: str,
    path: str,
    handler: Handler,
    server: Server,
    errors: ErrorFormat,
    body: type | None = None,
    uploads: bool = False,
    *,
    answers: Answers,
) -> Route:
    """A route to a handler, whose docstring begins with a line for /openapi.json."""
    summary = (handler.__doc__ or "").strip().partition("\n")[0]
    endpoint = Endpoint(server, handler, errors, path, body, summary, uploads, answers)
    return Route(path, endpoint, methods=[method], name=f"{method} {path}")


async def _unless_gone(call: Call, work: Coroutine[Any, Any, None], receive: Receive) -> None:
    """Does the work, and cancels it as soon as the client goes away.

    Raises:
        ClientGone: it went away before the end.
    """
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_gone(receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done() and not call.finished:
            raise ClientGone
        await task
    finally:
        gone.cancel()
        if not task.done():
            task.cancel()
            # Its error, such as a refusal meanwhile, is nobody's any more.
            await asyncio.gather(task, return_exceptions=True)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
