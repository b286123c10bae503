"""Clients that do not read their answers."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import AsyncGenerator

import pytest

from ggmodel.bounds import limits
from ggmodel.serve.listening import _Protocol
from ggmodel.serve.requests import Event, Finished, Request, Started, TokenEvent
from ggmodel.serve.server import Server
from tests.serve.conftest import serving
from tests.serve.standin import InProcess, InProcessModels

SECONDS = 20.0


class Talking(InProcess):
    """Talks until nobody listens any more.

    Attributes:
        over: it was ended.
    """

    over: threading.Event

    async def generate(self, request: Request) -> AsyncGenerator[Event, None]:
        yield Started([1])
        try:
            for _ in range(100_000):
                yield TokenEvent("x" * 65536)
            yield Finished("length", 1, 1)
        finally:
            self.over.set()


@pytest.mark.slow
def test_one_that_takes_nothing_is_hung_up_on(runner: InProcess, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(limits, "serve_send_seconds", 0.1)
    talking = Talking(runner.model)
    talking.over = threading.Event()
    server = Server(InProcessModels(talking))
    with serving(server, http=_Protocol) as url, socket.socket() as client:
        client.settimeout(SECONDS)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        client.connect(("127.0.0.1", int(url.rpartition(":")[2])))
        body = json.dumps({"prompt": "Hi", "stream": True}).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}"
        client.sendall(head.encode() + b"\r\n\r\n" + body)
        assert talking.over.wait(SECONDS)
