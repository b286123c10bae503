"""Declared replies are read as transformers reads them."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from ggmodel.chat.replies import Reply, ReplyFormat, reply_format
from ggmodel.chat.template import REPLIES_KEY
from ggmodel.errors import TemplateError

from .declared_cases import DECLARATIONS, GOLDEN, TOOLS, cuts

CASES = json.loads(GOLDEN.read_text(encoding="utf-8"))


def _calls(message: dict[str, Any]) -> list[tuple[str, Any, str]]:
    found = [(call, call.get("function", call)) for call in message.get("tool_calls", [])]
    return [(inner["name"], inner["arguments"], call.get("id", "")) for call, inner in found]


@pytest.mark.parametrize("number", range(len(CASES)))
def test_is_read_as_by_transformers(number: int) -> None:
    case = CASES[number]
    declared = reply_format("", DECLARATIONS[case["declaration"]])
    tools = TOOLS if case["tools"] else None
    whole = declared.parse(case["text"], tools, case["prefix"])
    message = case["message"]
    reasoning = ("reasoning_content", "reasoning", "thinking")
    assert whole.content == message.get("content", "")
    assert whole.reasoning == next((message[key] for key in reasoning if key in message), "")
    assert [(c.name, json.loads(c.arguments), c.id) for c in whole.calls] == _calls(message)
    for seed in range(3):
        parser = declared.parser(tools, case["prefix"])
        deltas = [d for piece in cuts(case["text"], seed) for d in parser.feed(piece)]
        assert Reply.of([*deltas, *parser.end()]) == whole


def test_a_declared_call_that_is_cut_short_is_a_call() -> None:
    parser = reply_format("", DECLARATIONS["objects"]).parser()
    text = 'Hello <tool_call>{"name": "f", "arguments": {"a": 1, "b'
    reply = Reply.of([*parser.feed(text), *parser.end(cut=True)])
    assert reply.content == "Hello"
    assert [(call.name, call.arguments) for call in reply.calls] == [("f", '{"a": 1, "b')]


def _declared(**fields: Any) -> dict[str, Any]:
    return {"start_anchor": "A", "fields": fields}


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        ([], "is an object"),
        ({}, "has no fields"),
        ({"version": 2, "start_anchor": "A", "fields": {"content": {}}}, "version 2"),
        ({"fields": {"content": {}}}, "no start_anchor"),
        ({**_declared(content={}), "more": 1}, "unknown key 'more'"),
        (_declared(content={"opens": "<"}), "unknown key 'opens'"),
        (_declared(content={}, thinking={}), "content, thinking"),
        (_declared(content={"open": ""}), "open is a text"),
        (_declared(content={"open": "<", "open_pattern": "<"}), "both open and open_pattern"),
        (_declared(content={"open_pattern": "("}), "is not closed"),
        (_declared(content={"open_pattern": "a)"}), "closes nothing"),
        (_declared(content={"open_pattern": "(?=a)"}), "looks back or ahead"),
        (_declared(content={"open_pattern": r"(a)\1"}), "unsupported"),
        (_declared(content={"open_pattern": "(?:a{1000}){1000}"}), "repeats too much"),
        (_declared(content={"open_pattern": "a{2}{2}"}), "repeats a repetition"),
        (_declared(content={"open_pattern": "a*"}), "where there is nothing"),
        (_declared(content={"open_pattern": "[b-a]"}), "bad character range"),
        (_declared(content={"open_pattern": "a" * 3000}), "at most 2000"),
        (_declared(content={"open_pattern": "(?P<x>a)"}), "'x' needs a transform"),
        (_declared(content={"content": "yaml"}), "'yaml' is unknown"),
        (_declared(content={"content_args": {"sep": 1}}), "no argument 'sep'"),
        (_declared(content={"content": "xml-inline"}), "tag_pattern"),
        (_declared(content={"transform": "a {content}"}), "mixes a place"),
        (_declared(content={"join": " "}), "repeats"),
        (_declared(content={"transform_each": True}), "needs a transform"),
    ],
)
def test_a_declaration_that_makes_no_sense_is_an_error(declared: Any, message: str) -> None:
    with pytest.raises(TemplateError, match=re.escape(message)):
        reply_format("", declared)


def test_a_declaration_that_is_no_json_is_an_error() -> None:
    with pytest.raises(TemplateError, match="is no JSON"):
        ReplyFormat.from_metadata({REPLIES_KEY: "{"})
    with pytest.raises(TemplateError, match="is no JSON"):
        reply_format("", {"fields": {1, 2}})


@pytest.mark.parametrize(
    "body", ["{", "[]", '{"name": 1}', '{"name": "f", "arguments": 1}', "[" * 5000]
)
def test_a_broken_call_is_content(body: str) -> None:
    text = f"Hello <tool_call>{body}</tool_call> Bye"
    assert reply_format("", DECLARATIONS["objects"]).parse(text) == Reply(content=text)


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "text", [" " * 5_000, "<" * 5_000, "<think>" * 2_000, " <tool_call>{}</tool_call>" * 400]
)
def test_hostile_text_is_read_in_a_time_that_grows_with_it(text: str) -> None:
    parser = reply_format("", DECLARATIONS["objects"]).parser()
    deltas = [d for at in range(0, len(text), 4) for d in parser.feed(text[at : at + 4])]
    assert Reply.of([*deltas, *parser.end()]) == reply_format("", DECLARATIONS["objects"]).parse(
        text
    )
