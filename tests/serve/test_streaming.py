"""Parts of answers as they come."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator
from typing import Any

import httpx
import pytest

from ggmodel.errors import ComputeError, OutOfMemory
from ggmodel.serve import endpoint
from ggmodel.serve.endpoint import together
from ggmodel.serve.requests import Event, Finished, Request, Started, TokenEvent
from ggmodel.serve.server import Server
from tests.serve.conftest import serving
from tests.serve.standin import InProcess, InProcessModels

ASK = {"messages": [{"role": "user", "content": "Hi"}], "stream": True}
TEXT = {"prompt": "Hi", "stream": True}
CHAT = "/v1/chat/completions"


class Slow(InProcess):
    """Waits before its first token until it is released."""

    def __init__(self, model: Any):
        super().__init__(model)
        self.release = threading.Event()

    async def generate(self, request: Request) -> AsyncGenerator[Event, None]:
        yield Started([1, 2, 3])
        while not self.release.is_set():
            await asyncio.sleep(0.01)
        yield TokenEvent("Hello")
        yield Finished("stop", 3, 1)


class Failing(InProcess):
    """Fails in the middle, or at once where only one token is wanted."""

    async def generate(self, request: Request) -> AsyncGenerator[Event, None]:
        if request.options.get("max_tokens") == 1:
            raise OutOfMemory("no room for the prompt")
        yield Started([1])
        yield TokenEvent("Hello")
        raise ComputeError("the logits are NaN")


@pytest.mark.parametrize(
    ("path", "body", "first", "ping"),
    [
        (CHAT, ASK, '"role":"assistant"', ": ping"),
        ("/v1/completions", TEXT, "", ": ping"),
        ("/completion", TEXT, "", ": ping"),
        ("/v1/responses", {"input": "Hi", "stream": True}, "response.in_progress", ": ping"),
        ("/v1/messages", {**ASK, "max_tokens": 9}, '"input_tokens":3', "event: ping"),
    ],
)
def test_a_stream_begins_before_the_prompt_is_computed(
    runner: InProcess, path: str, body: Any, first: str, ping: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(endpoint, "_PING_SECONDS", 0.03)
    slow, text = Slow(runner.model), ""
    with (
        serving(Server(InProcessModels(slow))) as url,
        httpx.stream("POST", f"{url}{path}", json=body, timeout=20) as answer,
    ):
        assert answer.status_code == 200
        for part in answer.iter_text():
            text += part
            if text.count(ping) >= 3 and first in text:
                slow.release.set()
    assert text.index(first) < text.index("Hello")
    if path == "/v1/messages":
        assert text.startswith("event: message_start") and 'data: {"type":"ping"}' in text


@pytest.mark.parametrize(
    ("path", "body", "events"),
    [
        (CHAT, ASK, ['{"error":{"message":"the logits are NaN","type":"server_error"']),
        ("/v1/completions", TEXT, ['{"error":{"message":"the logits are NaN"']),
        ("/v1/messages", {**ASK, "max_tokens": 9}, ["event: error", '"type":"api_error"']),
        (
            "/v1/responses",
            {"input": "Hi", "stream": True},
            ["event: response.failed", '"status":"failed"', '"error":{"code":"server_error"'],
        ),
        ("/api/chat", {**ASK, "model": "stories"}, ['{"error":"the logits are NaN"}']),
    ],
)
def test_each_api_has_its_own_errors_in_a_stream(
    runner: InProcess, path: str, body: Any, events: list[str]
):
    with serving(Server(InProcessModels(Failing(runner.model)))) as url:
        answer = httpx.post(f"{url}{path}", json=body)
    assert answer.status_code == 200
    last = answer.text.rpartition("Hello")[2]
    assert all(event in last for event in events), last


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
