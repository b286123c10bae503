"""Tools on the page: those of an MCP server, called after the user agrees."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from playwright.sync_api import Page, Route, expect

from tests.browser.talk import setting

WEATHER = {
    "name": "weather",
    "description": "The weather of a city.",
    "inputSchema": {"type": "object", "properties": {"city": {"type": "string"}}},
}
VERSION = "2025-06-18"


class Server(ThreadingHTTPServer):
    """An MCP server with a tool, as its specification describes one: a session, answers as JSON or
    as a stream of events, pages of its list.

    Attributes:
        asked: the messages that came.
    """

    def __init__(self, streams: bool):
        super().__init__(("127.0.0.1", 0), Handler)
        self.streams, self.asked = streams, list[Any]()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/mcp"

    def result(self, method: str, params: Any) -> Any:
        if method == "initialize":
            return {"protocolVersion": VERSION, "capabilities": {}, "serverInfo": {"name": "x"}}
        if method == "tools/list":
            return {"tools": [WEATHER]} if "cursor" in params else {"tools": [], "nextCursor": "2"}
        return {"content": [{"type": "text", "text": f"Rain in {params['arguments']['city']}"}]}


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_OPTIONS(self) -> None:
        self.send_response(204)
        self.end_headers()

    def do_POST(self) -> None:
        message = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.asked.append(message)
        later = message["method"] != "initialize"
        if later and self.headers["mcp-session-id"] != "s1":
            self.send_response(400)
            self.end_headers()
            return
        if "id" not in message:
            self.send_response(202)
            self.end_headers()
            return
        result = self.server.result(message["method"], message["params"])
        text = json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result})
        notice = json.dumps({"jsonrpc": "2.0", "method": "notifications/message", "params": {}})
        if self.server.streams:
            text = f"event: message\r\ndata: {notice}\r\n\r\nevent: message\r\ndata: {text}\r\n\r\n"
        self.send_response(200)
        kind = "text/event-stream" if self.server.streams else "application/json"
        self.send_header("Content-Type", kind)
        self.send_header("Mcp-Session-Id", "s1")
        self.end_headers()
        self.wfile.write(text.encode())

    def end_headers(self) -> None:
        for name in ("Allow-Origin", "Allow-Headers"):
            allowed = "content-type, mcp-protocol-version, mcp-session-id"
            self.send_header(f"Access-Control-{name}", "*" if name == "Allow-Origin" else allowed)
        self.send_header("Access-Control-Expose-Headers", "Mcp-Session-Id")
        super().end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture(params=[False, True], ids=["json", "events"])
def tools(request: pytest.FixtureRequest) -> Iterator[Server]:
    with Server(request.param) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def chats(page: Page) -> list[Any]:
    """Requests to a model that calls the tool first, then answers."""
    asked: list[Any] = []

    def chunk(delta: Any, reason: str | None = None) -> str:
        choice = {"index": 0, "delta": delta, "finish_reason": reason}
        return f"data: {json.dumps({'choices': [choice]})}\n\n"

    def answer(route: Route) -> None:
        asked.append(route.request.post_data_json)
        named = {"index": 0, "id": "c1", "function": {"name": "weather", "arguments": ""}}
        parts = [{"index": 0, "function": {"arguments": one}} for one in ('{"city":', '"Rome"}')]
        if asked[-1]["messages"][-1]["role"] == "tool":
            body = chunk({"content": "It rains."}) + chunk({}, "stop")
        else:
            deltas = [chunk({"tool_calls": [one]}) for one in (named, *parts)]
            body = "".join(deltas) + chunk({}, "tool_calls")
        route.fulfill(body=body + "data: [DONE]\n\n", content_type="text/event-stream")

    page.route("**/v1/chat/completions", answer)
    return asked


def send(page: Page, text: str) -> None:
    page.fill("#text", text)
    page.press("#text", "Enter")


def test_a_tool_is_called_and_its_result_answered(page: Page, tools: Server, chats: list[Any]):
    setting(page, tools=tools.url)
    send(page, "How is the weather in Rome?")
    page.get_by_role("button", name="Run", exact=True).click()

    expect(page.locator("#messages .content").last).to_have_text("It rains.")
    function = {"name": "weather", "description": "The weather of a city."}
    function["parameters"] = WEATHER["inputSchema"]  # type: ignore[assignment]
    assert chats[0]["tools"] == [{"type": "function", "function": function}]
    call = {"id": "c1", "type": "function"}
    call["function"] = {"name": "weather", "arguments": '{"city":"Rome"}'}  # type: ignore[assignment]
    assert chats[1]["messages"][1:] == [
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "Rain in Rome"},
    ]
    page.get_by_text("Called weather").click()
    expect(page.locator(".call pre")).to_have_text(['{"city":"Rome"}', "Rain in Rome"])
    page.reload()
    expect(page.get_by_text("Called weather")).to_be_visible()


def test_a_tool_that_may_always_run_is_not_asked_for(page: Page, tools: Server, chats: list[Any]):
    setting(page, tools=tools.url)
    send(page, "How is the weather?")
    page.get_by_role("button", name="Always").click()
    expect(page.locator("#messages .content").last).to_have_text("It rains.")

    send(page, "And now?")

    expect(page.get_by_text("It rains.")).to_have_count(2)
    called = [one for one in tools.asked if one["method"] == "tools/call"]
    assert len(called) == 2
    assert sum(one["method"] == "initialize" for one in tools.asked) == 1


def test_a_tool_of_that_name_elsewhere_is_asked_for(page: Page, tools: Server, chats: list[Any]):
    setting(page, tools=tools.url)
    send(page, "How is the weather?")
    page.get_by_role("button", name="Always").click()
    expect(page.locator("#messages .content").last).to_have_text("It rains.")

    setting(page, tools=f"{tools.url}?other")
    send(page, "And now?")
    page.get_by_role("button", name="Refuse").click()

    expect(page.get_by_text("It rains.")).to_have_count(2)
    assert sum(one["method"] == "tools/call" for one in tools.asked) == 1


def test_two_servers_have_no_tool_of_the_same_name(page: Page, tools: Server, chats: list[Any]):
    setting(page, tools=f"{tools.url} {tools.url}?other")
    send(page, "How is the weather?")

    expect(page.locator(".failed")).to_have_text(re.compile("both have a tool weather"))
    assert not chats


def test_a_call_is_refused(page: Page, tools: Server, chats: list[Any]):
    setting(page, tools=tools.url)
    send(page, "How is the weather?")
    page.get_by_role("button", name="Refuse").click()

    expect(page.locator("#messages .content").last).to_have_text("It rains.")
    assert "refused" in chats[1]["messages"][-1]["content"]
    assert not [one for one in tools.asked if one["method"] == "tools/call"]


def test_stopping_ends_the_question(page: Page, tools: Server, chats: list[Any]):
    setting(page, tools=tools.url)
    send(page, "How is the weather?")
    expect(page.get_by_role("button", name="Refuse")).to_be_visible()
    page.keyboard.press("Escape")

    expect(page.locator(".said").last).to_have_text(re.compile("stopped"))
    expect(page.get_by_role("button", name="Refuse")).to_have_count(0)
    assert len(chats) == 1


def test_a_server_that_is_not_there_is_named(page: Page, chats: list[Any]):
    setting(page, tools="http://127.0.0.1:9/mcp")
    send(page, "How is the weather?")

    expect(page.locator(".failed")).to_have_text(re.compile("tools of http://127.0.0.1:9/mcp"))
    assert not chats
