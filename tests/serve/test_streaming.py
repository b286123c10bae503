"""Parts of answers as they come."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncGenerator
from typing import Any

import httpx
import pytest

from ggmodel.errors import ComputeError, OutOfMemory
from ggmodel.serve.endpoint import together
from ggmodel.serve.requests import Event, Finished, PromptProgress, Request, Started, TokenEvent
from ggmodel.serve.server import Server, Settings
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


class Reading(InProcess):
    """Tells how far its prefill is, where asked for, and is silent for a while."""

    async def generate(self, request: Request) -> AsyncGenerator[Event, None]:
        yield Started([1, 2, 3])
        for processed in (1, 3) if request.progress else ():
            yield PromptProgress(3, 1, processed, processed / 4)
        await asyncio.sleep(0.1)
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
    runner: InProcess, path: str, body: Any, first: str, ping: str
):
    slow, text = Slow(runner.model), ""
    with (
        serving(Server(InProcessModels(slow), Settings(ping_seconds=0.03))) as url,
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
    ("path", "body", "empty"),
    [(CHAT, ASK, {}), ("/v1/completions", TEXT, ""), ("/completion", TEXT, "")],
)
def test_steps_of_the_prefill_are_told_to_those_who_ask(
    runner: InProcess, path: str, body: Any, empty: object
):
    with serving(Server(InProcessModels(Reading(runner.model)))) as url:

        def parts(**more: Any) -> list[Any]:
            text = httpx.post(f"{url}{path}", json={**body, **more}, timeout=20).text
            events = [one.removeprefix("data: ") for one in text.split("\n\n")]
            return [json.loads(one) for one in events if one.startswith("{")]

        told = [one for one in parts(return_progress=True) if "prompt_progress" in one]
        assert [one["prompt_progress"] for one in told] == [
            {"total": 3, "cache": 1, "processed": 1, "time_ms": 250},
            {"total": 3, "cache": 1, "processed": 3, "time_ms": 750},
        ]
        first, then = (one["timings"] for one in told)
        assert first["prompt_n"] == first["prompt_ms"] == 0 and first["cache_n"] == 1
        assert (then["prompt_n"], then["prompt_ms"], then["prompt_per_second"]) == (
            2,
            750,
            2 / 0.75,
        )
        choice = told[0]["choices"][0] if "choices" in told[0] else told[0]
        assert choice.get("delta", choice.get("text", choice.get("content"))) == empty
        for silent in ({}, {"return_progress": False}, {"return_progress": None}):
            assert not any("prompt_progress" in one for one in parts(**silent))
        whole = {**body, "stream": False, "return_progress": True}
        assert "prompt_progress" not in httpx.post(f"{url}{path}", json=whole, timeout=20).text


@pytest.mark.parametrize(("seconds", "pinged"), [(0.02, True), (-1, False), (0, False)])
def test_pings_come_as_often_as_is_wanted(runner: InProcess, seconds: float, pinged: bool):
    models = InProcessModels(Reading(runner.model))
    with serving(Server(models, Settings(ping_seconds=seconds))) as url:
        assert (": ping" in httpx.post(f"{url}{CHAT}", json=ASK, timeout=20).text) == pinged


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
