"""Tools and items of agents that speak /v1/responses, such as Codex."""

from __future__ import annotations

import json
from typing import Any

import httpx
import msgspec
import openai
import pytest

from ggmodel.chat.replies import CallArguments, CallBegun
from ggmodel.serve.answers import ParsedToken
from ggmodel.serve.api.openai.response_output import Output
from ggmodel.serve.api.openai.response_tools import Callee
from tests.serve.standin import InProcess

WARNINGS = "x-ggmodel-warnings"
SCHEMA = {"type": "object", "properties": {"cmd": {"type": "string"}}, "required": ["cmd"]}
TOOLS: Any = [
    {"type": "function", "name": "exec", "parameters": SCHEMA, "strict": False},
    {
        "type": "custom",
        "name": "apply_patch",
        "description": "Edit files.",
        "format": {"type": "grammar", "syntax": "regex", "definition": "[+]a|[-]b"},
    },
    {"type": "local_shell"},
    {
        "type": "namespace",
        "name": "mcp__files__",
        "description": "Files.",
        "tools": [{"type": "function", "name": "read", "parameters": SCHEMA}],
    },
    {"type": "web_search", "external_web_access": True},
    {"type": "shell", "environment": {"type": "container_auto"}},
    {"type": "tool_search"},
]
ASKED: Any = {"model": "stories", "input": "Go.", "tools": TOOLS, "temperature": 0}

pytestmark = pytest.mark.usefixtures("tools_in_template")


def names(runner: InProcess) -> list[str]:
    return [one["function"]["name"] for one in runner.seen[-1].prompt.tools or ()]


def test_all_tools_that_the_client_runs_become_functions(client: openai.OpenAI, runner: InProcess):
    answer = client.responses.with_raw_response.create(**ASKED, max_output_tokens=1)
    assert names(runner) == ["exec", "apply_patch", "local_shell", "mcp__files__read"]
    told = answer.headers[WARNINGS]
    assert all(word in told for word in ("web_search", "shell that runs", "tool_search"))
    assert [one.type for one in answer.parse().tools] == [one["type"] for one in TOOLS]


def test_a_custom_call_is_an_item(client: openai.OpenAI):
    choice: Any = {"type": "custom", "name": "apply_patch"}
    asked: Any = {**ASKED, "tool_choice": choice, "max_output_tokens": 60}
    (item,) = client.responses.create(**asked).output
    assert item.type == "custom_tool_call" and item.name == "apply_patch"
    assert item.input in ("+a", "-b")

    events = list(client.responses.create(**asked, stream=True))
    pieces = [e.delta for e in events if e.type == "response.custom_tool_call_input.delta"]
    (done,) = [e for e in events if e.type == "response.custom_tool_call_input.done"]
    assert "".join(pieces) == done.input == item.input
    (added,) = [e.item for e in events if e.type == "response.output_item.added"]
    assert added.type == "custom_tool_call" and added.id == done.item_id and added.input == ""


def test_a_function_of_a_namespace_is_called_by_its_own_name(client: openai.OpenAI):
    choice: Any = {"type": "function", "name": "read"}
    asked: Any = {**ASKED, "tool_choice": choice, "max_output_tokens": 90}
    item = client.responses.create(**asked).output[0]
    assert item.type == "function_call"
    assert (item.namespace, item.name) == ("mcp__files__", "read")


def test_a_stored_custom_call_goes_on(client: openai.OpenAI, runner: InProcess):
    choice: Any = {"type": "custom", "name": "apply_patch"}
    first = client.responses.create(**ASKED, tool_choice=choice, max_output_tokens=60)
    (item,) = first.output
    assert item.type == "custom_tool_call"
    result: Any = {"type": "custom_tool_call_output", "call_id": item.call_id, "output": "ok"}
    again: Any = {**ASKED, "input": [result], "max_output_tokens": 1}
    client.responses.create(**again, previous_response_id=first.id)
    _, call, tool = runner.seen[-1].prompt.messages
    assert call["tool_calls"][0]["function"] == {
        "name": "apply_patch",
        "arguments": {"input": item.input},
    }
    assert (tool["name"], tool["content"]) == ("apply_patch", "ok")


HISTORY: Any = [
    {"role": "user", "content": "Go."},
    {"type": "web_search_call", "id": "w", "status": "completed"},
    {"type": "custom_tool_call", "call_id": "1", "name": "apply_patch", "input": "+a"},
    {"type": "local_shell_call", "id": "l", "call_id": "2", "status": "completed",
     "action": {"type": "exec", "command": ["ls"], "env": {}}},
    {"type": "shell_call", "call_id": "3", "action": {"commands": ["ls"]}},
    {"type": "apply_patch_call", "call_id": "4", "status": "completed",
     "operation": {"type": "delete_file", "path": "a"}},
    {"type": "function_call", "call_id": "5", "name": "read", "namespace": "mcp__files__",
     "arguments": '{"cmd": "a"}'},
    {"type": "custom_tool_call_output", "call_id": "1",
     "output": [{"type": "input_text", "text": "done"}]},
    {"type": "local_shell_call_output", "id": "2", "output": "a.txt"},
    {"type": "shell_call_output", "call_id": "3",
     "output": [{"stdout": "a", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}]},
    {"type": "apply_patch_call_output", "call_id": "4", "status": "failed", "output": "no file"},
    {"type": "function_call_output", "call_id": "5", "output": "text"},
]  # fmt: skip


def test_calls_of_all_kinds_and_their_outputs_become_messages(
    client: openai.OpenAI, runner: InProcess
):
    asked: Any = {**ASKED, "input": HISTORY, "max_output_tokens": 1}
    answer = client.responses.with_raw_response.create(**asked)
    assert "input[1]: 'web_search_call' is left out" in answer.headers[WARNINGS]
    _, model, *tools = runner.seen[-1].prompt.messages
    calls = [(c["function"]["name"], c["function"]["arguments"]) for c in model["tool_calls"]]
    assert calls == [
        ("apply_patch", {"input": "+a"}),
        ("local_shell", {"command": ["ls"], "env": {}}),
        ("shell", {"commands": ["ls"]}),
        ("apply_patch", {"type": "delete_file", "path": "a"}),
        ("mcp__files__read", {"cmd": "a"}),
    ]
    contents = [one["content"] for one in tools]
    assert contents[0] == "done" and contents[1] == "a.txt" and contents[4] == "text"
    assert json.loads(contents[2])[0]["stdout"] == "a"
    assert contents[3] == "failed\nno file"


@pytest.mark.parametrize(
    ("kind", "arguments", "expected"),
    [
        ("local_shell", {"command": ["ls", "-l"], "timeout_ms": 5},
         {"action": {"type": "exec", "command": ["ls", "-l"], "env": {}, "timeout_ms": 5}}),
        ("local_shell", {"command": "ls -l"},
         {"action": {"type": "exec", "command": ["sh", "-c", "ls -l"], "env": {}}}),
        ("shell", {"commands": ["a"]},
         {"action": {"commands": ["a"], "timeout_ms": None, "max_output_length": None}}),
        ("apply_patch", {"type": "create_file", "path": "a", "diff": "+x"},
         {"operation": {"type": "create_file", "path": "a", "diff": "+x"}}),
        ("apply_patch", {"type": "delete_file", "path": "a"},
         {"operation": {"type": "delete_file", "path": "a"}}),
        ("shell", "cut {", {"action": {"commands": [], "timeout_ms": None,
                                       "max_output_length": None}}),
    ],
)  # fmt: skip
def test_calls_of_built_in_tools_are_items(kind: str, arguments: Any, expected: Any):
    output = Output({kind: Callee(kind, kind)})
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    added = output.take(ParsedToken([CallBegun(0, "c", kind)], None))
    assert output.take(ParsedToken([CallArguments(0, text)], None)) == []
    (done,) = output.end("completed")

    (item,) = msgspec.to_builtins(output.items)
    assert item == {"type": f"{kind}_call", "status": "completed", "call_id": "c", **expected} | {
        "id": item["id"]
    }
    assert [one["type"] for one in msgspec.to_builtins([*added, done])] == [
        "response.output_item.added",
        "response.output_item.done",
    ]
    assert output.message()["tool_calls"][0]["function"]["name"] == kind


@pytest.mark.parametrize(
    ("choice", "kept"),
    [
        ({"type": "allowed_tools", "mode": "auto", "tools": [
            {"type": "function", "name": "exec"}, {"type": "local_shell"}]},
         ["exec", "local_shell"]),
        ({"type": "allowed_tools", "mode": "auto", "tools": [
            {"type": "namespace", "name": "mcp__files__"}, {"type": "web_search"}]},
         ["mcp__files__read"]),
        ({"type": "allowed_tools", "mode": "auto", "tools": [{"type": "web_search"}]}, []),
    ],
)  # fmt: skip
def test_the_choice_is_among_allowed_tools(
    client: openai.OpenAI, runner: InProcess, choice: Any, kept: list[str]
):
    client.responses.create(**ASKED, tool_choice=choice, max_output_tokens=1)
    assert names(runner) == kept


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"tool_choice": {"type": "web_search_preview"}}, ["'web_search_preview' is unsupported"]),
        ({"tool_choice": {"type": "mcp", "server_label": "x"}}, ["'mcp' is unsupported"]),
        ({"tool_choice": {"type": "shell"}}, ["no tool is called 'shell'"]),
        ({"tools": [TOOLS[0], TOOLS[0]]}, ["two are called 'exec'"]),
        ({"tools": [{"type": "custom"}]}, ["no name"]),
        ({"tools": [{"type": "namespace", "name": "n", "tools": [{"type": "x"}]}]}, ["'x'"]),
        ({"input": [{"type": "custom_tool_call", "call_id": "1", "name": "a"}]},
         ["input[0].input"]),
        ({"input": [{"type": "item_reference", "id": "1"}]}, ["'item_reference' is unsupported"]),
    ],
)  # fmt: skip
def test_wrong_tools_and_items_are_refused(http: httpx.Client, fields: Any, words: list[str]):
    answer = http.post("/v1/responses", json={**ASKED, "max_output_tokens": 1, **fields})
    assert answer.status_code == 400, answer.text
    assert all(word in answer.json()["error"]["message"] for word in words), answer.text
