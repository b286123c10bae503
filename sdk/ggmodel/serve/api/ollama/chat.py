"""/api/chat."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from typing import Any

from msgspec import Struct
from starlette.routing import Route

from ....chat.replies import CallArguments, CallBegun, Content, Delta, Reasoning
from ...answers import Answer, Called, Reply, whole
from ...asking import Wish, ask
from ...conversation import Message, arguments_of, check_count, tool_call
from ...endpoint import Answers, Call, route
from ...errors import Refused
from ...server import Server
from .answered import ChatPart
from .options import (
    AnswerRequest,
    form,
    keep_alive,
    thinking,
    with_images,
)
from .shapes import LINES, OLLAMA, Clock, line, logprobs, now


class CalledFunction(Struct):
    name: str
    arguments: dict[str, Any] | str | None = None


class ToolCall(Struct):
    function: CalledFunction
    id: str = ""


class ChatMessage(Struct):
    """A message of a request."""

    role: str
    content: str | None = None
    images: list[str] | None = None
    thinking: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_name: str | None = None
    tool_call_id: str | None = None


class ChatRequest(AnswerRequest, kw_only=True):
    """A conversation to be answered; without messages, a model to be loaded or unloaded."""

    messages: list[ChatMessage] | None = None
    tools: list[dict[str, Any]] | None = None


def routes(server: Server) -> list[Route]:
    answers = Answers(ChatPart, [LINES])
    return [route("POST", "/api/chat", chat, server, OLLAMA, ChatRequest, answers=answers)]


async def chat(call: Call) -> None:
    """Answer a conversation, in Ollama's shape."""
    given, server, clock = await call.decode(ChatRequest), call.server, Clock()
    check_count(given.messages or ())
    wish = Wish(
        [_message(one, i) for i, one in enumerate(given.messages or ())],
        tools=[_tool(one, i) for i, one in enumerate(given.tools or ())],
        grammar=form(given.format),
        options=given.wanted(),
        variables=thinking(given.think),
    )
    async with given.model_of(server) as runner:
        clock.loaded()
        if not wish.messages:
            message = {"role": "assistant", "content": ""}
            await call.json(loaded(given, clock, {"message": message}))
            return
        asked = await ask(runner, wish, server.settings)
        answer = Answer(runner, asked, server.metrics)
        if given.stream is not False:
            await _send(call, given, answer, clock)
            return
        async with answer:
            reply = await whole(answer)
    shown: dict[str, Any] = {"message": _told(reply)}
    if given.logprobs:
        shown["logprobs"] = logprobs(reply.tokens)
    await call.json(_whole(given.model, shown, reply, clock))


def loaded(given: AnswerRequest, clock: Clock, empty: dict[str, Any]) -> dict[str, Any]:
    """The answer to a request that only loads a model, or has it unloaded."""
    reason = "unload" if keep_alive(given.keep_alive) == 0 else "load"
    done = {"done": True, "done_reason": reason, **clock.so_far()}
    return {"model": given.model, "created_at": now(), **empty, **done}


def _whole(model: str, shown: dict[str, Any], reply: Reply, clock: Clock) -> dict[str, Any]:
    done = {"done": True, "done_reason": reply.ended.reason, **clock.of(reply.ended)}
    return {"model": model, "created_at": now(), **shown, **done}


async def _send(call: Call, given: ChatRequest, answer: Answer, clock: Clock) -> None:
    async with answer, call.stream(LINES) as out:
        async for message, tokens in _messages(answer):
            shown: dict[str, Any] = {"message": message}
            if given.logprobs and tokens:
                shown["logprobs"] = logprobs(tokens)
            head = {"model": given.model, "created_at": now()}
            await out.send(line({**head, **shown, "done": False}))
        last = Reply(answer.ended)
        await out.send(line(_whole(given.model, {"message": _told(last)}, last, clock)))


async def _messages(answer: Answer) -> AsyncIterator[tuple[dict[str, Any], list[Any]]]:
    """Each token with its log-probability. Calls of tools come whole."""
    call: Called | None = None
    async for said in answer:
        tokens = [] if said.token is None else [said.token]
        texts: dict[str, str] = {}
        for delta in said.deltas:
            if isinstance(delta, CallArguments) and call is not None:
                call.arguments += delta.text
                continue
            if call is not None:
                yield _calling([call]), []
                call = None
            if isinstance(delta, CallBegun):
                call = Called(delta.id, delta.name)
            else:
                key, text = _named(delta)
                texts[key] = texts.get(key, "") + text
        if texts or tokens:
            yield {"role": "assistant", "content": "", **texts}, tokens
    if call is not None:
        yield _calling([call]), []


def _named(delta: Delta) -> tuple[str, str]:
    if isinstance(delta, Reasoning):
        return "thinking", delta.text
    assert isinstance(delta, Content)
    return "content", delta.text


def _told(reply: Reply) -> dict[str, Any]:
    found: dict[str, Any] = {"role": "assistant", "content": reply.content}
    if reply.reasoning:
        found["thinking"] = reply.reasoning
    if reply.calls:
        found["tool_calls"] = _calling(reply.calls)["tool_calls"]
    return found


def _calling(calls: list[Called]) -> dict[str, Any]:
    """A message that calls functions. Arguments are objects here."""
    listed = []
    for one in calls:
        function = {"name": one.name, "arguments": arguments_of(one.arguments)}
        function = {"index": len(listed), **function}
        listed.append({"id": one.id, "function": function})
    return {"role": "assistant", "content": "", "tool_calls": listed}


def _message(given: ChatMessage, index: int) -> Message:
    text = given.content or ""
    found: Message = {
        "role": given.role,
        **with_images(text, given.images, f"messages[{index}]."),
    }
    if given.thinking:
        found["reasoning_content"] = given.thinking
    if given.tool_calls:
        found["tool_calls"] = [
            tool_call(one.id or secrets.token_hex(6), one.function.name, one.function.arguments)
            for one in given.tool_calls
        ]
    if given.tool_name:
        found["name"] = given.tool_name
    if given.tool_call_id:
        found["tool_call_id"] = given.tool_call_id
    return found


def _tool(given: dict[str, Any], index: int) -> dict[str, Any]:
    function = given.get("function")
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        where = f"tools[{index}].function"
        raise Refused(f"{where}: a function with a name is missing", param=where)
    parameters = function.get("parameters") or {"type": "object", "properties": {}}
    about = str(function.get("description") or "")
    wanted = {"name": function["name"], "description": about, "parameters": parameters}
    return {"type": "function", "function": wanted}
