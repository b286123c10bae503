"""Batches: files of requests in OpenAI's format, answered here or by replicas on Ray.

Each line of requests is {"custom_id", "method", "url", "body"}; each line of answers
{"id", "custom_id", "response": {"status_code", "request_id", "body"}, "error"}, in the same order.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import msgspec
from msgspec import Raw, Struct

from ...bounds import limits
from ...errors import ConfigError, FormatError, WriteError
from ...platforms.files import NO_LINKS, lock
from ...reading import too_large
from ...storage import check_target, is_at, naming, replace

if TYPE_CHECKING:
    from typing_extensions import Self

    from ..server import Server

__all__ = ["AnswerFile", "RequestFile", "answer_here"]

URLS = frozenset(
    {"/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses", "/v1/messages"}
)
_PARTIAL = ".part"
_DIGEST = 12  # bytes


class RequestLine(Struct):
    """A request. `method` is always POST."""

    custom_id: str
    url: str
    body: Raw
    method: str = "POST"

    @property
    def id(self) -> str:
        """The same for the same request only; its answer has it, so that a later run knows what was
        asked."""
        digest = hashlib.blake2b(digest_size=_DIGEST)
        for part in (self.custom_id.encode(), self.url.encode(), bytes(self.body)):
            digest.update(len(part).to_bytes(8, "big") + part)
        return f"batch_req_{digest.hexdigest()}"


class _Modes(Struct):
    stream: bool | None = None
    background: Any = None


class _Answered(Struct):
    id: str
    custom_id: str


class Response(Struct):
    """An answer: its status, and its body as it was written."""

    status_code: int
    body: Raw
    request_id: str


class AnswerLine(Struct):
    """A line of answers."""

    id: str
    custom_id: str
    response: Response
    error: None = None


_line = msgspec.json.Decoder(RequestLine)
_modes = msgspec.json.Decoder(_Modes)
_answered = msgspec.json.Decoder(_Answered)


class RequestFile:
    """The requests of a file, all of them checked before the first is answered.

    Attributes:
        count: how many there are.
    """

    def __init__(self, path: str | Path):
        """Reads the file.

        Raises:
            FormatError: a line is no request; names it.
            ConfigError: the file cannot be read, or holds no requests.
        """
        self.path = Path(path)
        numbers: dict[bytes, int] = {}
        for number, line in self._numbered():
            key = hashlib.blake2b(self._checked(line, number).custom_id.encode(), digest_size=16)
            first = numbers.setdefault(key.digest(), number)
            if first != number:
                raise self._wrong(number, f"has the custom_id of line {first}")
        self.count = len(numbers)
        if not self.count:
            raise ConfigError(f"{path} holds no requests")

    def lines(self, after: int = 0) -> Iterator[RequestLine]:
        """The requests in order, without the first ones."""
        for place, (number, line) in enumerate(self._numbered()):
            if place >= after:
                yield self._checked(line, number)

    def _numbered(self) -> Iterator[tuple[int, bytes]]:
        try:
            with open(self.path, "rb") as file:
                number = 0
                while line := file.readline(limits.serve_body_bytes + 1):
                    number += 1
                    if len(line) > limits.serve_body_bytes:
                        where = f"line {number} of {self.path}"
                        raise FormatError(too_large(where, "more bytes", "serve_body_bytes"))
                    if line.strip():
                        yield number, line
        except OSError as error:
            if isinstance(error, FormatError):
                raise
            raise ConfigError(f"cannot read {self.path}: {error.strerror}") from None

    def _checked(self, line: bytes, number: int) -> RequestLine:
        try:
            request = _line.decode(line)
            modes = _modes.decode(request.body)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
            raise self._wrong(number, f"is no request: {error}") from None
        if request.method != "POST" or request.url not in URLS:
            urls = ", ".join(sorted(URLS))
            raise self._wrong(number, f"asks {request.url[:100]!r}; POST one of {urls}")
        if modes.stream or (modes.background and request.url == "/v1/responses"):
            what = "a stream" if modes.stream else "an answer in the background"
            raise self._wrong(number, f"asks for {what}; a batch has whole answers")
        return request

    def _wrong(self, number: int, what: str) -> FormatError:
        return FormatError(f"line {number} of {self.path} {what}")


def _open_no_link(path: str, flags: int) -> int:
    return os.open(path, flags | NO_LINKS, 0o666)


class AnswerFile:
    """A file of answers that grows beside its own name, and gets it when it is complete. A context
    manager.

    Attributes:
        done: answers that are there; those that an earlier run has left are not asked for again.
        bad: errors among those that this run has written.
    """

    def __init__(self, path: str | Path, requests: RequestFile, *, force: bool = False):
        """Opens the file, and cuts off a line that was not written whole.

        Raises:
            WriteError: it exists, cannot be written, another run writes it, or a link has the name
                under which it grows.
            FormatError: what an earlier run left are answers to other requests.
        """
        self.path = check_target(path, force=force, device=False)
        self._partial = self.path.with_name(self.path.name + _PARTIAL)
        self._count, self.bad = requests.count, 0
        if self._partial.is_symlink():
            raise WriteError(f"cannot write {self._partial}: it is a link; remove it")
        with naming(self.path):
            self._file: IO[bytes] = open(self._partial, "a+b", opener=_open_no_link)  # noqa: SIM115
        try:
            number = self._file.fileno()
            if lock(number) is False or not is_at(self._partial, number):
                raise WriteError(f"another run writes {self._partial}; wait for its end")
            self.done = self._left(requests)
        except BaseException:
            self._file.close()
            raise

    def _left(self, requests: RequestFile) -> int:
        done, end = 0, 0
        expected = requests.lines()
        self._file.seek(0)
        for line in self._file:
            if not line.endswith(b"\n"):
                break
            with suppress(msgspec.DecodeError, StopIteration):
                answered, request = _answered.decode(line), next(expected)
                if (answered.id, answered.custom_id) == (request.id, request.custom_id):
                    done, end = done + 1, end + len(line)
                    continue
            raise FormatError(
                f"{self._partial} holds answers to other requests; remove it, or give another "
                "file for the answers"
            )
        with naming(self._partial):
            self._file.truncate(end)
        return done

    def write(self, request: RequestLine, status: int, body: bytes) -> None:
        """Adds the answer to the next request."""
        response = Response(status, Raw(body), f"req_{os.urandom(12).hex()}")
        line = AnswerLine(request.id, request.custom_id, response)
        with naming(self._partial):
            self._file.write(msgspec.json.encode(line) + b"\n")
            self._file.flush()
        self.done, self.bad = self.done + 1, self.bad + (status >= 400)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with self._file:
            pass
        if kind is None and self.done == self._count:
            with naming(self.path):
                replace(self._partial, self.path)


_TRIES = 4
_BUSY = (429, 503)  # the queue is full; the runner was lost, and is started again
_WAIT = 0.5  # seconds, doubled with each try


async def ask(app: Any, url: str, body: bytes, key: str = "") -> tuple[int, bytes]:
    """The status and the body of an answer; where a model is away for a moment, it is asked again.

    Args:
        app: an ASGI application.
        key: who asks, see `Call.key`.
    """
    for attempt in range(1, _TRIES + 1):
        status, answer = await _ask(app, url, body, key)
        if status not in _BUSY or attempt == _TRIES:
            break
        await asyncio.sleep(_WAIT * 2**attempt)
    return status, answer


async def _ask(app: Any, url: str, body: bytes, key: str) -> tuple[int, bytes]:
    sent = False
    status = 500
    parts: list[bytes] = []

    async def receive() -> MutableMapping[str, Any]:
        nonlocal sent
        if sent:
            await asyncio.Event().wait()  # nobody goes away
        sent = True
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: MutableMapping[str, Any]) -> None:
        nonlocal status
        if message["type"] == "http.response.start":
            status = message["status"]
        else:
            parts.append(message.get("body", b""))

    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": url,
        "raw_path": url.encode(),
        "root_path": "",
        "query_string": b"",
        "headers": [
            (b"host", b"127.0.0.1"),
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
        ],
        "client": None,
        "server": ("127.0.0.1", 0),
        "ggmodel.key": key,
    }
    await app(scope, receive, send)
    return status, b"".join(parts)


_AHEAD = 4  # requests that may be answered out of turn, for each that is computed

Progress = Callable[[int], object]


async def answer_here(
    requests: RequestFile, answers: AnswerFile, server: Server, width: int, progress: Progress
) -> None:
    """Answers the requests that have no answer yet, several at a time, and closes the server.

    Args:
        width: requests that are asked at a time.
        progress: called with the number of answers after each.
    """
    from ..api import make_app

    app = make_app(server)
    try:
        await answer_all(requests, answers, partial(ask, app), width, progress)
    finally:
        await server.close()


Ask = Callable[[str, bytes], Awaitable[tuple[int, bytes]]]


async def answer_all(
    requests: RequestFile, answers: AnswerFile, ask: Ask, width: int, progress: Progress
) -> None:
    """Answers the requests that have no answer yet, several at a time.

    Args:
        ask: the status and the body of an answer to a URL and a body.
        width, progress: see `answer_here`.
    """
    free = asyncio.Semaphore(width)
    under_way: deque[tuple[RequestLine, asyncio.Task[tuple[int, bytes]]]] = deque()

    async def answer(line: RequestLine) -> tuple[int, bytes]:
        async with free:
            return await ask(line.url, bytes(line.body))

    async def write_first() -> None:
        line, task = under_way[0]
        status, body = await task
        under_way.popleft()
        answers.write(line, status, body)
        progress(answers.done)

    try:
        lines = requests.lines(after=answers.done)
        while line := await asyncio.to_thread(next, lines, None):
            under_way.append((line, asyncio.ensure_future(answer(line))))
            if len(under_way) >= width * _AHEAD:
                await write_first()
        while under_way:
            await write_first()
    finally:
        for _, task in under_way:
            task.cancel()
        await asyncio.gather(*(task for _, task in under_way), return_exceptions=True)
