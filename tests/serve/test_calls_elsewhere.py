"""Calls of tools in the shapes of Anthropic's and Ollama's APIs."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import anthropic
import httpx
import pytest

import ggmodel
from ggmodel.gguf_file import open_gguf
from ggmodel.serve.requests import Event, Finished, Request, Started, TokenEvent
from ggmodel.serve.server import Server
from tests.conftest import _vary
from tests.serve.conftest import ASSETS, serving
from tests.serve.standin import InProcess, InProcessModels
from tests.serve.test_tools import COLOUR, TEMPLATE

ASK: Any = [{"role": "user", "content": "Paint it."}]
TOOL: Any = {"name": "paint", "description": "Paints.", "input_schema": COLOUR}
ASKED: Any = {
    "model": "stories",
    "messages": ASK,
    "max_tokens": 80,
    "tools": [TOOL],
    "tool_choice": {"type": "tool", "name": "paint"},
    "extra_body": {"temperature": 0},
}


@pytest.fixture(scope="module")
def caller() -> Iterator[ggmodel.LoadedModel]:
    """A model whose template is that of a family which calls tools."""
    with open_gguf(ASSETS / "stories.gguf") as source:
        changed = _vary(source, metadata={"tokenizer.chat_template": TEMPLATE})
        with ggmodel.load(changed, threads=1, parallel=4) as model:
            yield model


@pytest.fixture(scope="module")
def url(caller: ggmodel.LoadedModel) -> Iterator[str]:
    with serving(Server(InProcessModels(InProcess(caller)))) as found:
        yield found


@pytest.fixture
def claude(url: str) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=url, api_key="none", timeout=30, max_retries=0) as found:
        yield found


def test_anthropics_client_gets_a_call(claude: anthropic.Anthropic):
    found = claude.messages.create(**ASKED)

    assert found.stop_reason == "tool_use"
    (block,) = found.content
    assert block.type == "tool_use"
    assert block.name == "paint" and block.input["colour"] in ("red", "blue")  # type: ignore[index]


def test_anthropics_stream_has_the_same_call(claude: anthropic.Anthropic):
    whole = claude.messages.create(**ASKED)

    with claude.messages.stream(**ASKED) as stream:
        final = stream.get_final_message()

    assert final.stop_reason == "tool_use"
    assert [b.input for b in final.content] == [b.input for b in whole.content]  # type: ignore[union-attr]


def test_the_result_of_a_call_goes_on(claude: anthropic.Anthropic):
    found = claude.messages.create(**ASKED)
    result: Any = {"type": "tool_result", "tool_use_id": found.content[0].id, "content": "done"}  # type: ignore[union-attr]
    history: Any = [
        *ASK,
        {"role": "assistant", "content": [b.model_dump() for b in found.content]},
        {"role": "user", "content": [result]},
    ]

    asked = {**ASKED, "messages": history, "tool_choice": {"type": "any"}, "max_tokens": 200}
    again = claude.messages.create(**asked)

    assert again.stop_reason == "tool_use"
    assert again.usage.input_tokens > 0


def lines(url: str, **more: Any) -> list[dict[str, Any]]:
    """The lines of Ollama's stream."""
    function = {"name": "paint", "description": "", "parameters": COLOUR}
    body = {
        "model": "stories",
        "messages": ASK,
        "tools": [{"type": "function", "function": function}],
        "options": {"temperature": 0, "num_predict": 80},
        **more,
    }
    answer = httpx.post(f"{url}/api/chat", json=body, timeout=30)
    assert answer.status_code == 200, answer.text
    return [json.loads(line) for line in answer.text.splitlines()]


def test_ollamas_calls_come_whole(url: str, monkeypatch: pytest.MonkeyPatch):
    call = '<tool_call>{"name": "paint", "arguments": {"colour": "red"}}</tool_call>'
    says(monkeypatch, "Well. " + call + call)

    *pieces, last = lines(url)

    calls = [c for p in pieces for c in p["message"].get("tool_calls", ())]
    assert [c["function"]["name"] for c in calls] == ["paint", "paint"]
    assert [c["function"]["arguments"] for c in calls] == [{"colour": "red"}] * 2
    assert "".join(p["message"]["content"] for p in pieces).strip() == "Well."
    assert last["done"] and last["done_reason"] == "stop"
    (whole,) = lines(url, stream=False)
    assert len(whole["message"]["tool_calls"]) == 2


def test_ollamas_thoughts_stand_apart(url: str, monkeypatch: pytest.MonkeyPatch):
    says(monkeypatch, "<think>hm, red?</think>Red.")

    *pieces, _ = lines(url)

    assert "".join(p["message"].get("thinking", "") for p in pieces) == "hm, red?"
    assert "".join(p["message"]["content"] for p in pieces) == "Red."


def test_a_broken_call_is_content(claude: anthropic.Anthropic, monkeypatch: pytest.MonkeyPatch):
    says(monkeypatch, '<tool_call>{"name": "paint", "arg</tool_call> oh')

    found = claude.messages.create(**{**ASKED, "tool_choice": {"type": "auto"}})

    assert found.stop_reason == "end_turn"
    (block,) = found.content
    assert block.type == "text" and '"paint"' in block.text


def says(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """Has every model write this text, three characters a token."""

    async def generate(self: InProcess, request: Request) -> AsyncIterator[Event]:
        yield Started([1, 2, 3])
        for at in range(0, len(text), 3):
            yield TokenEvent(text[at : at + 3], 5)
        yield Finished("stop", 3, len(text) // 3)

    monkeypatch.setattr(InProcess, "generate", generate)
