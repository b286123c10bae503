"""The log of requests: a line for each on standard error, when its answer is complete."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass
from queue import Full, Queue
from typing import Any

_WAITING = 1000  # lines that are not written yet; others are dropped
_LONGEST = 200  # characters of a path, or a model's name
_LAST_SECONDS = 1.0  # for what is left at the end
_POLLED = frozenset({"/health", "/v1/health", "/metrics"})
_GONE = 499  # the client left before the end of its answer


@dataclass
class _Request:
    """A request under way.

    Attributes:
        complete: the answer has been sent.
        read, written: tokens of prompts and answers.
    """

    began: float
    status: int = _GONE
    complete: bool = False
    model: str = ""
    read: int = 0
    written: int = 0


_current: ContextVar[_Request | None] = ContextVar("request", default=None)


def note_model(name: str | None) -> None:
    """The model that the request under way names."""
    if name and (request := _current.get()) is not None:
        request.model = name


def note_tokens(read: int, written: int = 0) -> None:
    """Tokens that a model read and wrote for the request under way."""
    if (request := _current.get()) is not None:
        request.read += read
        request.written += written


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


class LogsRequests:
    """An ASGI application around another that logs its requests."""

    def __init__(self, app: Any, log: RequestLog):
        self._app, self._log = app, log

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        request = _Request(time.monotonic())

        async def noting(message: Mapping[str, Any]) -> None:
            await send(message)
            if message["type"] == "http.response.start":
                request.status = message["status"]
            else:
                request.complete = not message.get("more_body", False)

        token = _current.set(request)
        try:
            await self._app(scope, receive, noting)
        finally:
            _current.reset(token)
            if request.status != 200 or scope["path"] not in _POLLED:
                self._log.add(_line(scope, request))


def _line(scope: Mapping[str, Any], request: _Request) -> str:
    client = scope["client"][0] if scope.get("client") else "-"
    path = scope.get("raw_path") or scope["path"].encode("utf-8", "surrogateescape")
    parts = [
        time.strftime("%Y-%m-%d %H:%M:%S"),
        client,
        _plain(scope["method"]),
        _plain(path.decode("latin-1")),
        str(request.status if request.complete else _GONE),
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
