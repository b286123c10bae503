"""Tools of chats whose template knows none are described in a message."""

from __future__ import annotations

import json
from typing import Any

import httpx
import openai

from ggmodel.chat.described_tools import describe_tools
from ggmodel.chat.replies import reply_format
from tests.serve.standin import InProcess

TOOL: Any = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
CALL = {"id": "1", "type": "function", "function": {"name": "look", "arguments": {"at": "sky"}}}
HISTORY: Any = [
    {"role": "user", "content": "The sky?"},
    {"role": "assistant", "content": "I look.", "tool_calls": [CALL, CALL]},
    {"role": "tool", "name": "look", "content": "blue"},
    {"role": "tool", "name": "look", "content": [{"type": "text", "text": "grey"}]},
    {"role": "assistant", "content": "Blue."},
]


def test_calls_and_results_are_messages_that_any_template_takes():
    told = describe_tools(HISTORY, [TOOL])
    assert [one["role"] for one in told] == ["user", "assistant", "user", "assistant"]
    assert all({*one} == {"role", "content"} for one in told)
    first, call, result, _ = [one["content"] for one in told]
    assert '{"name":"look","parameters":{"type":"object"}}' in first
    assert first.endswith("\n\nThe sky?")
    assert json.loads(call.split("\n")[1]) == CALL["function"]
    assert result == [
        {"type": "text", "text": "Result of look:\nblue"},
        {"type": "text", "text": "Result of look:"},
        {"type": "text", "text": "grey"},
    ]


def test_the_system_message_has_the_description():
    told = describe_tools([{"role": "system", "content": "Be kind."}, *HISTORY], [TOOL])
    assert told[0]["content"].endswith("\n\nBe kind.") and told[1] == HISTORY[0]
    assert describe_tools(HISTORY[:1], None) == HISTORY[:1]


def test_the_form_that_is_asked_for_is_read_as_calls():
    call = describe_tools(HISTORY, [TOOL])[1]["content"].removeprefix("I look.\n")
    calls = reply_format("").parse(call, [TOOL]).calls
    assert [(one.name, json.loads(one.arguments)) for one in calls] == [("look", {"at": "sky"})] * 2


def test_rendered_prompts_have_the_description(http: httpx.Client):
    body = {"messages": [{"role": "user", "content": "The sky?"}], "tools": [TOOL]}
    prompt = http.post("/apply-template", json=body).json()["prompt"]
    assert '"name":"look"' in prompt
    tokens = http.post("/tokenize", json=body).json()["tokens"]
    assert '"name":"look"' in http.post("/detokenize", json={"tokens": tokens}).json()["content"]


def test_the_model_sees_tools_that_its_template_does_not_know(
    client: openai.OpenAI, runner: InProcess
):
    messages: Any = [{"role": "user", "content": "The sky?"}]
    asked: Any = {"model": "stories", "messages": messages, "max_tokens": 1}
    client.chat.completions.create(**asked, tools=[TOOL])
    assert '"name":"look"' in runner.seen[-1].prompt.messages[0]["content"]
    client.chat.completions.create(**asked, tools=[TOOL], tool_choice="none")
    assert runner.seen[-1].prompt.messages == messages
    own = {"chat_template": "{# tools #}{{ messages[0].content }}"}
    client.chat.completions.create(**asked, tools=[TOOL], extra_body=own)
    assert runner.seen[-1].prompt.messages == messages
