"""Tools that Anthropic's API declares by a type, and clients run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import httpx
import pytest

from tests.serve.standin import InProcess

WARNINGS = "x-ggmodel-warnings"
MESSAGES: Any = [{"role": "user", "content": "Go."}]
ASKED: Any = {"model": "stories", "max_tokens": 1, "messages": MESSAGES}
SCREEN = {"display_width_px": 800, "display_height_px": 600}

pytestmark = pytest.mark.usefixtures("tools_in_template")


@pytest.fixture
def claude(url: str) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=url, api_key="none", max_retries=0) as client:
        yield client


@pytest.mark.parametrize(
    ("tool", "parameters"),
    [
        ({"type": "bash_20250124", "name": "bash"}, "command restart"),
        ({"type": "bash_20241022", "name": "bash"}, "command restart"),
        ({"type": "text_editor_20250728", "name": "str_replace_based_edit_tool",
          "max_characters": 10},
         "command path view_range file_text old_str new_str insert_line insert_text"),
        ({"type": "text_editor_20250124", "name": "str_replace_editor"},
         "command path view_range file_text old_str new_str insert_line"),
        ({"type": "memory_20250818", "name": "memory"},
         "command path view_range file_text old_str new_str insert_line insert_text old_path "
         "new_path"),
        ({"type": "computer_20241022", "name": "computer", **SCREEN}, "action coordinate text"),
        ({"type": "computer_20251124", "name": "computer", **SCREEN, "enable_zoom": True},
         "action coordinate text start_coordinate scroll_direction scroll_amount duration region"),
    ],
)  # fmt: skip
def test_tools_of_clients_are_functions(
    claude: anthropic.Anthropic, runner: InProcess, tool: Any, parameters: str
):
    answer = claude.beta.messages.with_raw_response.create(**ASKED, tools=[tool])
    assert WARNINGS not in answer.headers
    ((function),) = [one["function"] for one in runner.seen[-1].prompt.tools]
    assert function["name"] == tool["name"] and function["description"]
    assert list(function["parameters"]["properties"]) == parameters.split()
    if "computer" in tool["type"]:
        assert "800 x 600" in function["description"]


def test_commands_differ_between_versions(http: httpx.Client, runner: InProcess):
    commands = []
    for type in ("text_editor_20241022", "text_editor_20250429"):
        body = {**ASKED, "tools": [{"type": type, "name": "edit"}]}
        assert http.post("/v1/messages", json=body).status_code == 200
        (tool,) = runner.seen[-1].prompt.tools
        commands.append(tool["function"]["parameters"]["properties"]["command"]["enum"])
    assert commands[0] == [*commands[1], "undo_edit"]


def test_a_tool_of_the_client_is_called(claude: anthropic.Anthropic):
    tool: Any = {"type": "bash_20250124", "name": "bash"}
    asked = {**ASKED, "max_tokens": 200, "tools": [tool], "extra_body": {"temperature": 0}}
    answer = claude.messages.create(**asked, tool_choice={"type": "tool", "name": "bash"})
    assert answer.stop_reason == "tool_use"
    (block,) = answer.content
    assert block.type == "tool_use" and block.name == "bash"
    assert {*block.input} <= {"command", "restart"}


def test_blocks_of_anthropics_own_tools_are_left_out(
    claude: anthropic.Anthropic, runner: InProcess
):
    search: Any = {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}}
    result: Any = {"type": "web_search_tool_result", "tool_use_id": "s", "content": []}
    text: Any = {"type": "text", "text": "It is late."}
    messages = [*MESSAGES, {"role": "assistant", "content": [search, result, text]}, *MESSAGES]
    answer = claude.messages.with_raw_response.create(**{**ASKED, "messages": messages})
    told = answer.headers[WARNINGS]
    assert "messages[1].content[0]: 'server_tool_use'" in told and "'web_search_tool" in told
    assert runner.seen[-1].prompt.messages[1]["content"] == "It is late."


def test_a_tool_that_is_left_out_cannot_be_chosen(http: httpx.Client):
    tools = [{"type": "web_search_20250305", "name": "web_search"}]
    choice = {"type": "tool", "name": "web_search"}
    answer = http.post("/v1/messages", json={**ASKED, "tools": tools, "tool_choice": choice})
    assert answer.status_code == 400
    error = json.loads(answer.text)["error"]
    assert error["type"] == "invalid_request_error" and "tool_choice" in error["message"]
