"""Tools whose calls are one text, choices among some tools, and functions in the form before."""

from __future__ import annotations

import json
from typing import Any

import httpx
import openai
import pytest

from ggmodel.serve.tools import CustomInput
from tests.serve.standin import InProcess
from tests.serve.test_tools import ASKED, COLOUR, TEMPLATE, TOOLS

REGEX = r'red|"blue"\n'
CUSTOM: Any = {
    "type": "custom",
    "custom": {
        "name": "say",
        "description": "Say it.",
        "format": {"type": "grammar", "grammar": {"syntax": "regex", "definition": REGEX}},
    },
}
FORCED: Any = {
    **ASKED,
    "tools": [CUSTOM],
    "tool_choice": {"type": "custom", "custom": {"name": "say"}},
}
# Marks a family that writes arguments as texts between tags; its thought is over.
TAGGED = TEMPLATE.replace(
    "{# <think></think> #}", "<think></think>{# <tool_call><function=<parameter= #}"
)
LARK = 'start: begin line line\nbegin: "*** \\"begin\\"\\n"\nline: "+" /[ab]/ "\\n"'


def names(runner: InProcess) -> list[str]:
    return [one["function"]["name"] for one in runner.seen[-1].prompt.tools or ()]


def test_a_custom_call_is_one_text(client: openai.OpenAI):
    (choice,) = client.chat.completions.create(**FORCED).choices
    assert choice.finish_reason == "tool_calls"
    (call,) = choice.message.tool_calls or [None]
    assert call and call.type == "custom" and call.custom.name == "say"
    assert call.custom.input in ("red", '"blue"\n')


def test_a_streamed_custom_call_is_the_same_text(http: httpx.Client, client: openai.OpenAI):
    (choice,) = client.chat.completions.create(**FORCED).choices
    body = {**FORCED, **FORCED["extra_body"], "stream": True}
    del body["extra_body"]
    lines = http.post("/v1/chat/completions", json=body).text.split("\n\n")
    chunks = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    calls = [one for delta in deltas for one in delta.get("tool_calls", ())]
    assert calls[0]["type"] == "custom" and calls[0]["custom"]["name"] == "say"
    (whole,) = choice.message.tool_calls or [None]
    assert whole and whole.type == "custom"
    assert "".join(call["custom"]["input"] for call in calls) == whole.custom.input


def test_a_grammar_of_lark_holds_where_arguments_are_plain_text(client: openai.OpenAI):
    grammar = {"syntax": "lark", "definition": LARK}
    tool: Any = {
        "type": "custom",
        "custom": {"name": "patch", "format": {"type": "grammar", "grammar": grammar}},
    }
    asked = {**FORCED, "tools": [tool], "tool_choice": "required"}
    asked["extra_body"] = {"chat_template": TAGGED}
    (choice,) = client.chat.completions.create(**asked).choices
    (call,) = choice.message.tool_calls or [None]
    assert call and call.type == "custom"
    first, *lines, end = call.custom.input.split("\n")
    assert first == '*** "begin"' and end == ""
    assert len(lines) == 2 and {*lines} <= {"+a", "+b"}


def test_custom_calls_in_history_reach_the_template(http: httpx.Client):
    messages: Any = [
        {"role": "user", "content": "Say."},
        {
            "role": "assistant",
            "tool_calls": [
                {"id": "1", "type": "custom", "custom": {"name": "say", "input": 'a"b'}}
            ],
        },
    ]
    body = {"messages": messages, "chat_template": TEMPLATE, "tools": [CUSTOM]}
    prompt = http.post("/apply-template", json=body).json()["prompt"]
    assert json.dumps({"name": "say", "arguments": {"input": 'a"b'}}) in prompt
    assert '"name": "say"' in prompt.partition("<|user|>")[0]


@pytest.mark.parametrize("mode", ["auto", "required"])
def test_the_choice_is_among_allowed_tools(client: openai.OpenAI, runner: InProcess, mode: str):
    wanted = [{"type": "function", "function": {"name": "paint"}}]
    choice = {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": wanted}}
    asked: Any = {**ASKED, "tool_choice": choice}
    (answer,) = client.chat.completions.create(**asked).choices
    assert names(runner) == ["paint"]
    assert bool(answer.message.tool_calls) == (mode == "required")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"tool_choice": {"type": "web_search"}}, ["'web_search'", "names no tool"]),
        ({"tool_choice": {"type": "custom", "custom": {"name": "no"}}}, ["'no'"]),
        (
            {"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [
                {"type": "function", "function": {"name": "no"}}]}}},
            ["no tool is called 'no'"],
        ),
        ({"tools": [{"type": "custom", "custom": {"name": ""}}]}, ["no name"]),
        ({"tools": [{"type": "custom", "custom": {"name": "x", "format": {"type": "grammar"}}}]},
         ["no definition"]),
        ({"functions": [{"name": "paint"}]}, ["give one of them"]),
        ({"messages": [{"role": "assistant", "tool_calls": [{"id": "1"}]}]},
         ["messages[0].tool_calls[0].function"]),
    ],
)  # fmt: skip
def test_wrong_tools_are_refused(http: httpx.Client, fields: Any, words: list[str]):
    body = {"messages": ASKED["messages"], "tools": TOOLS, "max_tokens": 1, **fields}
    answer = http.post("/v1/chat/completions", json=body)
    assert answer.status_code == 400, answer.text
    assert all(word in answer.json()["error"]["message"] for word in words), answer.text


LEGACY: Any = {
    "model": "stories",
    "messages": ASKED["messages"],
    "functions": [{"name": "paint", "parameters": COLOUR}],
    "function_call": {"name": "paint"},
    "temperature": 0,
    "max_tokens": 80,
    "extra_body": {"chat_template": TEMPLATE},
}


def test_older_functions_are_called(client: openai.OpenAI):
    (choice,) = client.chat.completions.create(**LEGACY).choices
    call = choice.message.function_call
    assert choice.finish_reason == "function_call"
    assert call is not None and call.name == "paint" and not choice.message.tool_calls
    assert json.loads(call.arguments)["colour"] in ("red", "blue")

    deltas = [c.choices[0] for c in client.chat.completions.create(**LEGACY, stream=True)]
    pieces = [one.delta.function_call for one in deltas if one.delta.function_call]
    assert pieces[0].name == "paint" and deltas[-1].finish_reason == "function_call"
    assert "".join(one.arguments or "" for one in pieces) == call.arguments


@pytest.mark.usefixtures("tools_in_template")
def test_results_of_older_functions_go_on(http: httpx.Client, runner: InProcess):
    messages = [
        *ASKED["messages"],
        {"role": "assistant", "content": None,
         "function_call": {"name": "paint", "arguments": '{"colour": "red"}'}},
        {"role": "function", "name": "paint", "content": "done"},
    ]  # fmt: skip
    body = {
        "messages": messages,
        "max_tokens": 1,
        "function_call": "none",
        "functions": [{"name": "paint"}],
    }
    assert http.post("/v1/chat/completions", json=body).status_code == 200
    asked, result = runner.seen[-1].prompt.messages[1:]
    assert asked["tool_calls"][0]["id"] == result["tool_call_id"] and result["role"] == "tool"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"input": "a\\n\\"b\\" \\u00e9\\ud83d\\ude00"}', 'a\n"b" \u00e9\U0001f600'),
        ('{"input":"cut \\', "cut "),
        ('{"input":"half \\ud83d', "half "),
        ('{ "input" : ""}', ""),
        ('{"other": 1}', '{"other": 1}'),
        ("plain", "plain"),
        ('{"input":"alone \\ud83dx"}', "alone \ufffdx"),
        ('{"input":"x\\q \\\ny"}', "x\\q \\\ny"),
        ('{"input":"a\\ud8zz b \\u12"}', "a\\ud8zz b \\u12"),
        ('{"input":"\\ud83d\\udezz \\ud83d\\\\"}', "\ufffd\\udezz \ufffd\\"),
    ],
)  # fmt: skip
def test_texts_are_read_as_they_come(text: str, expected: str):
    for size in (1, 3, len(text)):
        reader = CustomInput()
        pieces = [reader.feed(text[i : i + size]) for i in range(0, len(text), size)]
        assert "".join([*pieces, reader.end()]) == expected
