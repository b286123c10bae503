"""Parts of answers as they come."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import httpx
import pytest

from ggmodel.errors import ComputeError, OutOfMemory
from ggmodel.serve import streaming
from ggmodel.serve.requests import Begun, Ended, Event, Generate, Piece
from ggmodel.serve.server import Server
from ggmodel.serve.streaming import together
from tests.serve.conftest import serving
from tests.serve.standin import InProcess, InProcessModels

ASK = {"messages": [{"role": "user", "content": "Hi"}], "stream": True}
CHAT = "/v1/chat/completions"


class Slow(InProcess):
    """Waits before its first token."""

    async def generate(self, request: Generate) -> AsyncGenerator[Event, None]:
        yield Begun([1])
        await asyncio.sleep(0.2)
        yield Piece("Hello")
        yield Ended("stop", 1, 1)


class Failing(InProcess):
    """Fails in the middle, or at once where only one token is wanted."""

    async def generate(self, request: Generate) -> AsyncGenerator[Event, None]:
        if request.options.get("max_tokens") == 1:
            raise OutOfMemory("no room for the prompt")
        yield Begun([1])
        yield Piece("Hello")
        raise ComputeError("the logits are NaN")


def test_comments_keep_a_silent_stream_open(runner: InProcess, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(streaming, "_SILENCE", 0.03)
    with serving(Server(InProcessModels(Slow(runner.model)))) as url:
        text = httpx.post(f"{url}{CHAT}", json=ASK).text
    assert text.count("\n:\n") >= 2
    assert "Hello" in text


def test_an_error_in_the_middle_ends_the_stream_and_is_told(runner: InProcess):
    with serving(Server(InProcessModels(Failing(runner.model)))) as url:
        text = httpx.post(f"{url}{CHAT}", json=ASK).text
        at_once = httpx.post(f"{url}{CHAT}", json={**ASK, "max_tokens": 1})
        whole = httpx.post(f"{url}{CHAT}", json={**ASK, "stream": False})
    assert "Hello" in text
    assert "the logits are NaN" in text.strip().splitlines()[-1]
    assert "[DONE]" not in text
    assert at_once.status_code == 503
    assert at_once.headers["retry-after"] == "2"
    assert whole.status_code == 500
    assert whole.json()["error"]["type"] == "server_error"


def test_the_first_error_ends_all():
    ended: list[str] = []

    async def wait(name: str) -> None:
        try:
            await asyncio.sleep(30)
        finally:
            ended.append(name)

    async def fail() -> None:
        await asyncio.sleep(0)
        raise ComputeError("wrong")

    with pytest.raises(ComputeError):
        asyncio.run(together([wait("a"), fail(), wait("b")]))
    assert sorted(ended) == ["a", "b"]
