"""Asks the server's application without a connection."""

from __future__ import annotations

import asyncio
from collections.abc import MutableMapping
from typing import Any

_TRIES = 4
_BUSY = (429, 503)  # the queue is full; the runner was lost, and is started again
_WAIT = 0.5  # seconds, doubled with each try


async def ask(app: Any, url: str, body: bytes) -> tuple[int, bytes]:
    """The status and the body of an answer; where a model is away for a moment, it is asked again.

    Args:
        app: an ASGI application.
    """
    for attempt in range(1, _TRIES + 1):
        status, answer = await _ask(app, url, body)
        if status not in _BUSY or attempt == _TRIES:
            break
        await asyncio.sleep(_WAIT * 2**attempt)
    return status, answer


async def _ask(app: Any, url: str, body: bytes) -> tuple[int, bytes]:
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
    }
    await app(scope, receive, send)
    return status, b"".join(parts)
