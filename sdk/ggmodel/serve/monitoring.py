"""Monitoring: an id and a log line for each request."""

from __future__ import annotations

import re
import secrets
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from queue import Full, Queue
from typing import TYPE_CHECKING, Any

from .tracing import record_span

if TYPE_CHECKING:
    from .requests import Finished

_WAITING = 1000  # lines that are not written yet; others are dropped
_LONGEST = 200  # characters of a path, or a model's name
_LAST_SECONDS = 1.0  # for what is left at the end
_POLLED = frozenset({"/health", "/v1/health", "/metrics"})
_GONE = 499  # the client left before the end of its answer
ID_HEADERS = ("x-request-id", "request-id")
"""Headers of answers with the request's id: OpenAI's and Anthropic's."""
_ID = re.compile(rb"[!-~]{1,128}")  # one of the client's that is kept


@dataclass
class RequestRecord:
    """A request under way.

    Attributes:
        id: the client's `x-request-id`, else one of ours.
        complete: the answer has been sent.
        model: the name that it calls one. answered: that model's own.
        read, written: tokens of prompts and answers.
        options: of its first answer, as runners take them. finished: the counts of all.
        first: seconds to the first token of an answer; None without any.
    """

    id: str
    began: float
    status: int = _GONE
    complete: bool = False
    model: str = ""
    read: int = 0
    written: int = 0
    answered: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    finished: list[Finished] = field(default_factory=list)
    first: float | None = None


_current: ContextVar[RequestRecord | None] = ContextVar("request", default=None)


def request_id() -> str | None:
    """The id of the request under way; None outside of one."""
    request = _current.get()
    return None if request is None else request.id


def note_model(name: str | None) -> None:
    """The model that the request under way names."""
    if name and (request := _current.get()) is not None:
        request.model = name


def note_options(options: Mapping[str, Any]) -> None:
    """The options of an answer to the request under way."""
    if (request := _current.get()) is not None and not request.options:
        request.options = options


def note_read(model: str, tokens: int) -> None:
    """Tokens that a model read for the request under way."""
    if (request := _current.get()) is not None:
        request.answered = model
        request.read += tokens


def note_answer(model: str, finished: Finished, first: float | None) -> None:
    """An answer to the request under way that is complete.

    Args:
        model: its own name. first: when the first token came, as `time.monotonic` tells it; None
            without any.
    """
    note_read(model, finished.prompt_tokens)
    if (request := _current.get()) is not None:
        request.written += finished.completion_tokens
        request.finished.append(finished)
        if first is not None and request.first is None:
            request.first = first - request.began


class RequestLog:
    """Writes lines in a thread of its own: nobody waits for a terminal or a pipe that is full."""

    def __init__(self) -> None:
        self._lines: Queue[str | None] = Queue(_WAITING)
        self._writer = threading.Thread(target=self._write, name="ggmodel-log", daemon=True)
        self._writer.start()

    def add(self, line: str) -> None:
        """Writes a line soon, unless too many wait."""
        with suppress(Full):
            self._lines.put_nowait(line)

    def close(self) -> None:
        """Waits a moment for the last lines."""
        with suppress(Full):
            self._lines.put_nowait(None)
            self._writer.join(_LAST_SECONDS)

    def _write(self) -> None:
        while (line := self._lines.get()) is not None:
            with suppress(OSError, ValueError):
                sys.stderr.write(line + "\n")
                sys.stderr.flush()


@contextmanager
def recorded(
    scope: Mapping[str, Any], log: RequestLog | None, model: str | None
) -> Iterator[RequestRecord]:
    """A record of what goes on after the answer to a request; its end has a span and a line."""
    request = RequestRecord(request_id() or "", time.monotonic(), model=model or "")
    token = _current.set(request)
    try:
        yield request
    finally:
        _current.reset(token)
        record_span(scope, request)
        if log is not None:
            log.add(_line(scope, request))


_KEPT_BYTES = 4 << 20  # of a body that is logged
_SHOWN = 8192  # characters of it
_MEDIA = re.compile(r"(?<![A-Za-z0-9+/_-])[A-Za-z0-9+/_-]{256,}={0,2}")  # base64
_TEXTS = re.compile(r"application/(x-ndjson|json)|text/")


class _Body:
    """A body for the log, as far as it goes."""

    def __init__(self) -> None:
        self.kind, self._data, self._nbytes = "", bytearray(), 0

    def add(self, message: Mapping[str, Any]) -> None:
        """Takes a message of ASGI."""
        data = message.get("body", b"")
        self._nbytes += len(data)
        self._data += data[: _KEPT_BYTES - len(self._data)]

    def shown(self) -> str:
        """The text without control characters; media by their size."""
        if not self._nbytes:
            return "nothing"
        if self.kind and not _TEXTS.match(self.kind):
            return f"{self._nbytes:,} bytes of {_plain(self.kind)}"
        text = _MEDIA.sub(_media, self._data.decode("utf-8", "replace"))
        shown = "".join(map(_visible, text[:_SHOWN]))
        cut = len(text) > _SHOWN or self._nbytes > len(self._data)
        return f"{shown} … ({self._nbytes:,} bytes in all)" if cut else shown


def _media(found: re.Match[str]) -> str:
    return f"{found[0][:16]}…({len(found[0]):,} characters of base64)"


def _visible(sign: str) -> str:
    return sign if sign.isprintable() else ascii(sign)[1:-1]


def _type_of(headers: Iterable[tuple[bytes, bytes]]) -> str:
    return dict(headers).get(b"content-type", b"").decode("latin-1")


class NotesRequests:
    """An ASGI application around another that gives its requests ids, and logs them."""

    def __init__(self, app: Any, log: RequestLog | None, verbose: bool = False):
        """Logs nothing without a log, and bodies if `verbose`."""
        self._app, self._log, self._verbose = app, log, verbose

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        request = RequestRecord(_id_of(scope), time.monotonic())
        ids = [(name.encode(), request.id.encode()) for name in ID_HEADERS]
        asked, answered = (_Body(), _Body()) if self._log and self._verbose else (None, None)
        if asked is not None:
            asked.kind = _type_of(scope["headers"])

        async def receiving() -> Any:
            message = await receive()
            if asked is not None:
                asked.add(message)
            return message

        async def noting(message: Mapping[str, Any]) -> None:
            starts = message["type"] == "http.response.start"
            await send({**message, "headers": [*message["headers"], *ids]} if starts else message)
            if answered is not None:
                answered.add(message)
            if starts:
                request.status = message["status"]
                if answered is not None:
                    answered.kind = _type_of(message["headers"])
            else:
                request.complete = not message.get("more_body", False)

        token = _current.set(request)
        try:
            await self._app(scope, receiving, noting)
        finally:
            _current.reset(token)
            if not request.complete:
                request.status = _GONE
            record_span(scope, request)
            polled = request.status == 200 and scope["path"] in _POLLED
            if self._log is not None and not polled:
                self._log.add(_line(scope, request))
                if asked is not None and answered is not None:
                    self._log.add(f"  {request.id} < {asked.shown()}")
                    self._log.add(f"  {request.id} > {answered.shown()}")


def _id_of(scope: Mapping[str, Any]) -> str:
    given = dict(scope["headers"]).get(ID_HEADERS[0].encode(), b"")
    return given.decode() if _ID.fullmatch(given) else f"req_{secrets.token_hex(12)}"


def _line(scope: Mapping[str, Any], request: RequestRecord) -> str:
    client = scope["client"][0] if scope.get("client") else "-"
    path = scope.get("raw_path") or scope["path"].encode("utf-8", "surrogateescape")
    parts = [
        time.strftime("%Y-%m-%d %H:%M:%S"),
        client,
        _plain(scope["method"]),
        _plain(path.decode("latin-1")),
        str(request.status),
        f"{time.monotonic() - request.began:.3f}s",
    ]
    if request.model:
        parts.append(f"model={_plain(request.model)}")
    if request.read or request.written:
        parts.append(f"in={request.read} out={request.written}")
    return " ".join(parts)


def _plain(text: str) -> str:
    """A client's text as one word in ASCII, not too long."""
    text = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
    return ascii(text)[1:-1].replace(" ", "\\x20")
