"""Arguments of calls are streamed as they are written, and a limit leaves a call a call."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import httpx
import openai
import pytest

from ggmodel.serve.tools import written_arguments
from tests.serve.test_tools import ASKED

WORDS: Any = {
    "type": "object",
    "properties": {"word": {"type": "string", "pattern": "^[ab]{60}$"}},
    "required": ["word"],
}
TOOL: Any = {"type": "function", "function": {"name": "say", "parameters": WORDS}}
CHAT: Any = {**ASKED, "tools": [TOOL], "max_tokens": 200}
CHAT["tool_choice"] = {"type": "function", "function": {"name": "say"}}
CUT = 40  # tokens: within the word
FUNCTION: Any = {"type": "function", "name": "say", "parameters": WORDS}
RESPONSE: Any = {
    "model": "stories",
    "input": "Say.",
    "tools": [FUNCTION],
    "tool_choice": {"type": "function", "name": "say"},
    "temperature": 0,
}
MESSAGE: Any = {
    "model": "stories",
    "messages": [{"role": "user", "content": "Say."}],
    "tools": [{"name": "say", "input_schema": WORDS}],
    "tool_choice": {"type": "tool", "name": "say"},
    "extra_body": {"temperature": 0},
}


@pytest.fixture
def claude(url: str) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=url, api_key="none", max_retries=0) as client:
        yield client


def test_chats_stream_arguments(client: openai.OpenAI):
    chunks = [one.choices[0] for one in client.chat.completions.create(**CHAT, stream=True)]
    calls = [call for chunk in chunks for call in chunk.delta.tool_calls or ()]
    pieces = [call.function.arguments or "" for call in calls if call.function]
    assert calls[0].function and calls[0].function.name == "say" and len(pieces) > 10
    assert len(json.loads("".join(pieces))["word"]) == 60
    assert chunks[-1].finish_reason == "tool_calls"


def test_a_cut_call_of_a_chat_is_a_call(client: openai.OpenAI):
    cut = {**CHAT, "max_tokens": CUT}
    (choice,) = client.chat.completions.create(**cut).choices
    assert choice.finish_reason == "length" and not choice.message.content
    (call,) = choice.message.tool_calls or [None]
    assert call and call.type == "function" and call.function.name == "say"
    assert call.function.arguments.startswith('{"word')

    chunks = [one.choices[0] for one in client.chat.completions.create(**cut, stream=True)]
    assert chunks[-1].finish_reason == "length"
    assert not any(chunk.delta.content for chunk in chunks)
    calls = [call.function for chunk in chunks for call in chunk.delta.tool_calls or ()]
    assert "".join(one.arguments or "" for one in calls if one) == call.function.arguments


def test_a_cut_custom_call_has_the_text_so_far(client: openai.OpenAI):
    format = {"type": "grammar", "grammar": {"syntax": "regex", "definition": "[ab]{60}"}}
    tool: Any = {"type": "custom", "custom": {"name": "say", "format": format}}
    choice: Any = {"type": "custom", "custom": {"name": "say"}}
    cut = {**CHAT, "tools": [tool], "tool_choice": choice, "max_tokens": CUT}
    (made,) = client.chat.completions.create(**cut).choices
    (call,) = made.message.tool_calls or [None]
    assert made.finish_reason == "length" and call and call.type == "custom"
    assert 0 < len(call.custom.input) < 60 and set(call.custom.input) <= {"a", "b"}


def test_responses_stream_arguments_and_keep_cut_calls(client: openai.OpenAI):
    events = list(client.responses.create(**RESPONSE, max_output_tokens=200, stream=True))
    pieces = [e.delta for e in events if e.type == "response.function_call_arguments.delta"]
    (done,) = [e for e in events if e.type == "response.function_call_arguments.done"]
    assert len(pieces) > 10 and "".join(pieces) == done.arguments
    assert len(json.loads(done.arguments)["word"]) == 60

    answer = client.responses.create(**RESPONSE, max_output_tokens=CUT)
    (item,) = answer.output
    assert answer.status == "incomplete" and item.type == "function_call"
    assert item.status == "incomplete" and item.arguments.startswith('{"word')


def test_messages_stream_arguments_and_keep_cut_calls(claude: anthropic.Anthropic):
    with claude.messages.stream(**MESSAGE, max_tokens=200) as stream:
        deltas = [e.delta for e in stream if e.type == "content_block_delta"]
        (block,) = stream.get_final_message().content
    pieces = [one.partial_json for one in deltas if one.type == "input_json_delta"]
    assert len(pieces) > 10 and block.type == "tool_use"
    assert json.loads("".join(pieces)) == block.input and len(str(block.input["word"])) == 60

    answer = claude.messages.create(**MESSAGE, max_tokens=CUT)
    assert answer.stop_reason == "max_tokens"
    (block,) = answer.content
    assert block.type == "tool_use" and block.name == "say" and isinstance(block.input, dict)


def test_ollama_keeps_cut_calls(http: httpx.Client):
    form = {"type": "object", "properties": {"name": {"const": "say"}}}
    form["properties"]["arguments"] = WORDS
    form["required"] = ["name", "arguments"]
    body = {
        "model": "stories",
        "messages": [{"role": "user", "content": "Say."}],
        "tools": [TOOL],
        "format": form,
        "options": {"num_predict": CUT, "temperature": 0},
    }
    answer = http.post("/api/chat", json={**body, "stream": False}).json()
    assert answer["done_reason"] == "length", answer
    (call,) = answer["message"]["tool_calls"]
    assert call["function"]["name"] == "say" and not answer["message"]["content"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"a": 1, "b": "x', {"a": 1}),
        ('{"a": [1, {"c": "d"}, ', {"a": [1, {"c": "d"}]}),
        ('{"a": {"b": true', {"a": {}}),
        ('{"a', {}),
        ("", {}),
        ("{" * 9, {"arguments": "{" * 9}),
        ("no JSON", {"arguments": "no JSON"}),
        ("[1", {"arguments": "[1"}),
    ],
)
def test_what_is_complete_of_arguments_is_read(text: str, expected: Any):
    assert written_arguments(text) == expected
    assert "a" in written_arguments('{"a":' * 5000)
