"""Calls of tools and thoughts, forced by grammars onto a model that knows neither."""

from __future__ import annotations

import json
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import openai
import pytest

from ggmodel.chat.replies import ReplyFormat

# Marks the family whose calls are JSON between these tags.
TEMPLATE = """{{ bos_token }}{% for tool in tools or [] %}{{ tool | tojson }}{% endfor %}
{%- for message in messages %}<|user|>{{ message.content }}<|end|>
{%- for call in message.tool_calls or [] %}<tool_call>{{ call.function | tojson }}</tool_call>
{%- endfor %}{% endfor %}<|assistant|>{{ '<think>\n' if think }}{# <think></think> #}"""
COLOUR: Any = {
    "type": "object",
    "properties": {"colour": {"enum": ["red", "blue"]}},
    "required": ["colour"],
    "additionalProperties": False,
}
TOOLS: Any = [
    {"type": "function", "function": {"name": "paint", "parameters": COLOUR}},
    {"type": "function", "function": {"name": "wipe", "parameters": {}}},
]
ASKED: Any = {
    "model": "stories",
    "messages": [{"role": "user", "content": "Paint it."}],
    "tools": TOOLS,
    "tool_choice": {"type": "function", "function": {"name": "paint"}},
    "temperature": 0,
    "max_tokens": 80,
    "extra_body": {"chat_template": TEMPLATE},
}


def calls(answer: Any) -> list[Any]:
    return list(answer.choices[0].message.tool_calls or ())


def test_a_call_is_forced(client: openai.OpenAI):
    found = client.chat.completions.create(**ASKED)

    (choice,) = found.choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content is None
    (call,) = calls(found)
    assert call.type == "function"
    assert call.function.name == "paint"
    assert json.loads(call.function.arguments)["colour"] in ("red", "blue")
    assert len(call.id) == 9


@pytest.mark.parametrize("name", ["none", "auto", "required"])
def test_functions_may_be_called_like_choices(client: openai.OpenAI, name: str):
    own = {"type": "function", "function": {"name": name, "parameters": COLOUR}}
    asked = {**ASKED, "tools": [*TOOLS, own]}
    asked["tool_choice"] = {"type": "function", "function": {"name": name}}

    (call,) = calls(client.chat.completions.create(**asked))

    assert call.function.name == name


def test_a_stream_has_the_same_call_in_pieces(client: openai.OpenAI):
    (whole,) = calls(client.chat.completions.create(**ASKED))

    name = arguments = ""
    reasons: list[str | None] = []
    for chunk in client.chat.completions.create(**ASKED, stream=True):
        for choice in chunk.choices:
            reasons.append(choice.finish_reason)
            assert not choice.delta.content
            for call in choice.delta.tool_calls or ():
                assert call.index == 0
                assert call.function is not None
                name += call.function.name or ""
                arguments += call.function.arguments or ""

    assert reasons[-1] == "tool_calls"
    assert (name, arguments) == (whole.function.name, whole.function.arguments)


def test_one_of_several_functions_is_called(client: openai.OpenAI):
    asked = {**ASKED, "tool_choice": "required", "parallel_tool_calls": False}
    (call,) = calls(client.chat.completions.create(**asked))
    assert call.function.name in ("paint", "wipe")


def test_a_call_and_its_result_go_on(client: openai.OpenAI):
    first = client.chat.completions.create(**ASKED)
    result = {"role": "tool", "tool_call_id": calls(first)[0].id, "content": "done"}
    messages = [*ASKED["messages"], first.choices[0].message.model_dump(), result]

    asked = {**ASKED, "messages": messages, "tool_choice": "auto", "max_tokens": 3}
    assert client.chat.completions.create(**asked).choices[0].finish_reason == "length"


def test_responses_call_functions(client: openai.OpenAI):
    tools: Any = [{"type": "function", "name": "paint", "parameters": COLOUR}]
    with pytest.raises(openai.BadRequestError, match="tool_choice"):
        client.responses.create(
            model="stories",
            input="Paint it.",
            tools=tools,
            tool_choice={"type": "function", "name": "other"},
        )
    found = client.responses.create(
        model="stories",
        input="Paint it.",
        tools=tools,
        tool_choice="required",
        temperature=0,
        max_output_tokens=80,
    )
    (item,) = found.output
    assert item.type == "function_call"
    assert item.name == "paint"
    assert json.loads(item.arguments)["colour"] in ("red", "blue")


def test_thoughts_are_apart(client: openai.OpenAI):
    variables = {"chat_template": TEMPLATE, "chat_template_kwargs": {"think": True}}
    asked = {**ASKED, "tools": None, "tool_choice": None, "max_tokens": 9, "extra_body": variables}
    asked = {name: value for name, value in asked.items() if value is not None}

    found = client.chat.completions.create(**asked)

    message = found.choices[0].message.model_dump()
    assert message["reasoning_content"]
    assert message["content"] == ""
    assert found.usage is not None and found.usage.completion_tokens_details is not None
    assert found.usage.completion_tokens_details.reasoning_tokens == 9
    streamed = client.chat.completions.create(
        **asked, stream=True, stream_options={"include_usage": True}
    )
    usage = [chunk.usage for chunk in streamed][-1]
    assert usage is not None and usage.completion_tokens_details is not None
    assert usage.completion_tokens_details.reasoning_tokens == 9


OPEN: Any = {key: value for key, value in COLOUR.items() if key != "additionalProperties"}


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (
            "/v1/chat/completions",
            {"response_format": {"type": "json_schema", "json_schema": {"schema": OPEN}}},
        ),
        ("/v1/responses", {"text": {"format": {"type": "json_schema", "schema": OPEN}}}),
        ("/v1/messages", {"output_config": {"format": {"type": "json_schema", "schema": OPEN}}}),
        ("/api/chat", {"model": "stories", "format": OPEN, "stream": False}),
    ],
)
def test_objects_are_closed_in_every_api(http: httpx.Client, path: str, fields: Any):
    """The model goes on with keys of its own where it may."""
    asked = {"input" if path == "/v1/responses" else "messages": ASKED["messages"]}
    answer = http.post(path, json={"max_tokens": 80, **asked, **fields}).text
    assert re.search(r'"\{\\"colour\\": ?\\"(red|blue)\\"\}"', answer), answer


def test_arguments_of_calls_are_closed(client: openai.OpenAI):
    own = {"type": "function", "function": {"name": "paint", "parameters": OPEN}}
    (call,) = calls(client.chat.completions.create(**{**ASKED, "tools": [own]}))
    assert list(json.loads(call.function.arguments)) == ["colour"]


def test_grammars_that_take_long_delay_no_other_request(
    http: httpx.Client, monkeypatch: pytest.MonkeyPatch
):
    ended, begun = threading.Event(), threading.Semaphore(0)

    def grammar(*_: Any, **__: Any) -> None:
        begun.release()
        ended.wait(60)

    monkeypatch.setattr(ReplyFormat, "grammar", grammar)
    asked = {key: value for key, value in ASKED.items() if key != "extra_body"}
    with ThreadPoolExecutor(48) as threads:
        waiting = [threads.submit(http.post, "/v1/chat/completions", json=asked) for _ in range(40)]
        try:
            assert begun.acquire(timeout=30)
            # A large body is decoded in a thread, too.
            body = {"model": "stories", "content": "a", "other": " " * (2 << 20)}
            assert http.post("/tokenize", json=body, timeout=20).status_code == 200
        finally:
            ended.set()
        assert {one.result(60).status_code for one in waiting} == {400}  # it gave none
