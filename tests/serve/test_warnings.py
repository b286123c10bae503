"""Fields and tools that have no effect are told in a header and in the log."""

from __future__ import annotations

import json
import logging
import typing
from collections.abc import Callable
from typing import Any

import anthropic
import httpx
import openai
import pytest
from anthropic.types.beta import BetaToolUnionParam
from openai.types.responses import ToolParam

from ggmodel.serve.tools import _HOSTED, _VERSION
from tests.serve.standin import InProcess

WARNINGS = "x-ggmodel-warnings"
MESSAGES: Any = [{"role": "user", "content": "Hi"}]
CHAT = {"messages": MESSAGES, "max_tokens": 1}
FUNCTION: Any = {"type": "function", "name": "look", "parameters": {"type": "object"}}
COLOURS = {"type": "object", "properties": {"c": {"enum": ["red", "blue"]}}, "required": ["c"]}

# Types of the tools that clients run, beside functions.
CLIENTS = {
    "OpenAI": "custom apply_patch shell local_shell namespace",
    "Anthropic": "bash text_editor computer memory computer_toolset browser_toolset",
}


@pytest.mark.parametrize(
    ("path", "body", "names"),
    [
        ("/v1/chat/completions", {**CHAT, "max_token": 5}, ["max_token"]),
        ("/v1/chat/completions", {**CHAT, "modalities": ["audio"]}, ["modalities"]),
        ("/v1/chat/completions", {**CHAT, "prompt_logprobs": 0}, ["prompt_logprobs"]),
        ("/v1/chat/completions", {**CHAT, "web_search_options": {}}, ["web_search_options"]),
        ("/v1/chat/completions", {**CHAT, "max_token": 5, "stream": True}, ["max_token"]),
        (
            "/v1/chat/completions",
            {**CHAT, "response_format": {"type": "text", "strict": True}},
            ["response_format.strict"],
        ),
        (
            "/v1/completions",
            {"prompt": "Hi", "max_tokens": 1, "return_token_ids": True, "zeit\u00e9\n": 1},
            ["return_token_ids", r"zeit\xe9\n"],
        ),
        ("/completion", {"prompt": "Hi", "n_predict": 1, "answer_fields": ["x"]},
         ["answer_fields"]),
        ("/v1/responses", {"input": "Hi", "max_output_tokens": 1, "text": {"format": {"typ": 1}}},
         ["text.format.typ"]),
        ("/v1/messages", {**CHAT, "context_management": {"edits": []}}, ["context_management"]),
        (
            "/api/chat",
            {"model": "stories", "messages": MESSAGES, "shifts": True,
             "options": {"num_predict": 1, "num_thread": 2, "mirostat": 2, "tempreature": 1}},
            ["shifts", "options.mirostat", "options.tempreature"],
        ),
        ("/v1/embeddings", {"input": "Hi", "input_type": "query"}, ["input_type"]),
    ],
)  # fmt: skip
def test_ignored_fields_are_told(
    http: httpx.Client, path: str, body: Any, names: list[str], caplog: pytest.LogCaptureFixture
):
    answer = http.post(path, json=body)

    assert answer.status_code == 200, answer.text
    told = f"fields without effect: {', '.join(map(repr, names))}".replace("\\\\", "\\")
    assert answer.headers[WARNINGS] == told
    assert [one.getMessage() for one in caplog.records] == [f"{path!r}: {told}"]


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("/v1/chat/completions", {**CHAT, "max_token": 5},
         "Unrecognized request argument supplied: max_token"),
        ("/v1/completions", {"prompt": "Hi", "a": 1, "b": 2},
         "Unrecognized request arguments supplied: a, b"),
        ("/v1/responses", {"input": "Hi", "text": {"format": {"typ": 1}}},
         "Unrecognized request argument supplied: text.format.typ"),
        ("/v1/messages", {**CHAT, "top": 1, "b\n": 2},
         "top: Extra inputs are not permitted; b\n: Extra inputs are not permitted"),
        ("/api/chat", {"model": "stories", "messages": MESSAGES, "options": {"mirostat": 2}},
         "fields without effect: 'options.mirostat'"),
    ],
)  # fmt: skip
def test_ignored_fields_may_be_errors(
    serve: Callable[..., str], path: str, body: Any, message: str
):
    with httpx.Client(base_url=serve(strict_fields=True), timeout=30) as http:
        answer = http.post(path, json=body)
        idle = http.post("/v1/chat/completions", json={**CHAT, "user": "me", "functions": None})
    assert answer.status_code == 400 and idle.status_code == 200
    error = answer.json()["error"]
    assert (error if isinstance(error, str) else error["message"]) == message


def test_fields_that_ask_for_nothing_are_not_told(
    http: httpx.Client, caplog: pytest.LogCaptureFixture
):
    idle = {"functions": [], "logit_bias": None, "web_search_options": None, "cache_prompt": True}
    idle |= {"mm_processor_kwargs": {}, "vllm_xargs": {}}
    idle |= {"metadata": {"a": "b"}, "client_metadata": {"a": "b"}}
    answer = http.post("/v1/chat/completions", json={**CHAT, **idle})
    assert answer.status_code == 200 and WARNINGS not in answer.headers
    assert not [one for one in caplog.records if one.levelno >= logging.WARNING]


def test_warnings_are_bounded(http: httpx.Client):
    names = {f"{i:060}{'x' * 1000}": 1 for i in range(500)}
    answer = http.post("/v1/chat/completions", json={**CHAT, **names})
    assert len(answer.headers[WARNINGS]) <= 1000
    short = {f"n{i}": 1 for i in range(500)}
    answer = http.post("/v1/chat/completions", json={**CHAT, **short})
    assert answer.headers[WARNINGS].endswith("'n15' and 484 more")


def test_refusals_tell_them_too(http: httpx.Client):
    answer = http.post("/v1/chat/completions", json={"messages": [], "max_token": 5})
    assert answer.status_code == 400 and "max_token" in answer.headers[WARNINGS]


@pytest.mark.parametrize(
    "fields",
    [
        {"structured_outputs": {"json": COLOURS}},
        {"structured_outputs": {"json": json.dumps(COLOURS)}},
        {"structured_outputs": {"regex": r'\{"c":"red"\}'}},
        {"structured_outputs": {"choice": ['{"c":"red"}']}},
        {"structured_outputs": {"grammar": 'root ::= "{\\"c\\":\\"red\\"}"'}},
        {"guided_json": COLOURS},
        {"guided_grammar": 'start: "{\\"c\\":" ("\\"red\\"" | "\\"blue\\"") "}"'},
    ],
)
def test_forms_of_vllm(http: httpx.Client, fields: Any):
    for path, ask in (
        ("chat/completions", {"messages": MESSAGES}),
        ("completions", {"prompt": "Hi"}),
    ):
        answer = http.post(f"/v1/{path}", json={**ask, **fields, "max_tokens": 50})
        (choice,) = answer.json()["choices"]
        text = choice["message"]["content"] if "message" in choice else choice["text"]
        assert json.loads(text)["c"] in ("red", "blue")
        assert WARNINGS not in answer.headers


def test_one_form_is_enough(http: httpx.Client):
    both = {"structured_outputs": {"regex": "a", "choice": ["a"]}}
    answer = http.post("/v1/chat/completions", json={**CHAT, **both})
    assert answer.status_code == 400 and "one form" in answer.json()["error"]["message"]
    answer = http.post("/v1/completions", json={"prompt": "", "structured_outputs": {"tag": 1}})
    assert answer.headers[WARNINGS].endswith("'structured_outputs.tag'")


def test_tools_of_other_servers_are_left_out(client: openai.OpenAI, runner: InProcess):
    tools: Any = [FUNCTION, {"type": "web_search"}, {"type": "file_search", "vector_store_ids": []}]
    asked: Any = {"model": "stories", "input": "Hi", "max_output_tokens": 1}
    answer = client.responses.with_raw_response.create(**asked, tools=tools)

    assert "tools[1]: 'web_search'" in answer.headers[WARNINGS]
    assert "tools[2]: 'file_search'" in answer.headers[WARNINGS]
    assert [one["function"]["name"] for one in runner.seen[-1].prompt.tools] == ["look"]

    alone = client.responses.with_raw_response.create(**asked, tools=tools[1:])
    assert alone.parse().status == "incomplete"
    assert runner.seen[-1].prompt.tools is None


def test_anthropics_own_tools_are_left_out(url: str, runner: InProcess):
    tools: Any = [
        {"name": "look", "input_schema": {"type": "object"}},
        {"type": "web_search_20250305", "name": "web_search", "max_uses": 3},
        {"type": "code_execution_20250825", "name": "code_execution"},
    ]
    with anthropic.Anthropic(base_url=url, api_key="none", max_retries=0) as claude:
        asked: Any = {"model": "stories", "max_tokens": 1, "messages": MESSAGES}
        answer = claude.messages.with_raw_response.create(**asked, tools=tools)
        counted = claude.messages.count_tokens(model="stories", messages=MESSAGES, tools=tools)
    assert "tools[1]: 'web_search_20250305'" in answer.headers[WARNINGS]
    assert [one["function"]["name"] for one in runner.seen[-1].prompt.tools] == ["look"]
    assert counted.input_tokens


@pytest.mark.parametrize(
    ("path", "body", "names"),
    [
        ("/v1/responses", {"input": "Hi", "tools": [{"type": "frobnicate"}]},
         ["'frobnicate'", "is unsupported"]),
        ("/v1/responses", {"input": "Hi", "tools": [{"type": "function"}]}, ["tools[0]", "name"]),
        (
            "/v1/responses",
            {"input": "Hi", "tools": [FUNCTION, {"type": "web_search"}],
             "tool_choice": {"type": "web_search"}},
            ["tool_choice", "'web_search'"],
        ),
        ("/v1/responses",
         {"input": "Hi", "tools": [{"type": "web_search"}], "tool_choice": "required"},
         ["tool_choice", "no tools"]),
        ("/v1/chat/completions", {**CHAT, "tools": [{"type": "frobnicate"}]}, ["'frobnicate'"]),
        ("/v1/messages",
         {**CHAT, "tools": [{"type": "computer_toolset_20260801", "name": "computer"}]},
         ["tools[0]", "'computer_toolset_20260801' ('computer') is unsupported"]),
        ("/v1/messages", {**CHAT, "tools": [{"type": "frobnicate"}]},
         ["'frobnicate'", "is unsupported"]),
    ],
)  # fmt: skip
def test_tools_that_a_client_would_run_are_refused(
    http: httpx.Client, path: str, body: Any, names: list[str]
):
    answer = http.post(path, json=body)
    assert answer.status_code == 400
    message = answer.json()["error"]["message"]
    assert all(name in message for name in names), message


@pytest.mark.parametrize(
    ("api", "union"), [("OpenAI", ToolParam), ("Anthropic", BetaToolUnionParam)]
)
def test_published_types_are_known(api: str, union: Any):
    hints = [typing.get_type_hints(tool)["type"] for tool in typing.get_args(union)]
    types = {type for hint in hints for type in typing.get_args(hint) if isinstance(type, str)}
    families = {_VERSION.sub("", type) for type in types}
    assert len(families) > 8
    assert families <= {*_HOSTED[api].split(), *CLIENTS[api].split(), "function"}
