"""Anthropic's API: /v1/messages, whole and streamed, and its count of tokens."""

from __future__ import annotations

import secrets
from collections.abc import Collection
from typing import Any, Literal

import msgspec
from msgspec import Struct
from starlette.routing import Route

from ....chat.replies import CallArguments, CallBegun, Content, Delta, Reasoning
from ...answers import Answer, Reply, whole
from ...chat_requests import Wish, arguments_of, ask, called, functions
from ...endpoint import EVENTS, Answers, Call, Handler, event, route, written
from ...errors import Refused
from ...requests import Chat, Ended, GrammarSpec, Tokenize
from ...server import Server
from .schemas import (
    ANTHROPIC,
    Block,
    InputMessage,
    MessageAnswer,
    TokenCount,
    converted,
    counts,
    stopped,
    usage,
)

__all__ = ["ANTHROPIC", "routes"]


_encode = msgspec.json.Encoder().encode


def new_id() -> str:
    """The id of a message, which nobody can guess."""
    return f"msg_{secrets.token_hex(12)}"


class Events:
    """The events of one message, whose blocks begin and end as the answer changes its kind.

    Args:
        stops: the request's own stop strings.
    """

    def __init__(self, model: str, stops: Collection[str]):
        self._model, self._stops = model, stops
        self._index, self._open = -1, ""

    def begin(self, prompt_tokens: int) -> bytes:
        """The first event. How much of the prompt was in the cache comes with the last counts."""
        message = {
            "id": new_id(),
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": counts(prompt_tokens, 0, 0),
        }
        return _event("message_start", message=message)

    def delta(self, delta: Delta) -> bytes:
        """The events of what a token added."""
        if isinstance(delta, CallBegun):
            block = {"type": "tool_use", "id": delta.id, "name": delta.name, "input": {}}
            return self._begin(f"call {delta.index}", block)
        if isinstance(delta, CallArguments):
            kind, added = f"call {delta.index}", {"partial_json": delta.text}
            return self._in(kind, {}, {"type": "input_json_delta", **added})
        if isinstance(delta, Reasoning):
            block = {"type": "thinking", "thinking": "", "signature": ""}
            return self._in("thought", block, {"type": "thinking_delta", "thinking": delta.text})
        assert isinstance(delta, Content)
        block = {"type": "text", "text": ""}
        return self._in("text", block, {"type": "text_delta", "text": delta.text})

    def end(self, ended: Ended, called: bool) -> bytes:
        """The last events."""
        empty = b""
        if self._index < 0:
            empty = self._begin("text", {"type": "text", "text": ""})
        why = stopped(ended, called, self._stops)
        last = _event("message_delta", delta=why, usage=usage(ended))
        return empty + self._close() + last + _event("message_stop")

    def _in(self, kind: str, block: dict[str, Any], delta: dict[str, Any]) -> bytes:
        begun = b"" if self._open == kind else self._begin(kind, block)
        head = b'{"type":"content_block_delta","index":%d,"delta":' % self._index
        return begun + written(head + _encode(delta) + b"}", "content_block_delta")

    def _begin(self, kind: str, block: dict[str, Any]) -> bytes:
        closed = self._close()
        self._index, self._open = self._index + 1, kind
        return closed + _event("content_block_start", index=self._index, content_block=block)

    def _close(self) -> bytes:
        if not self._open:
            return b""
        signed = b""
        if self._open == "thought":
            delta = {"type": "signature_delta", "signature": ""}
            signed = _event("content_block_delta", index=self._index, delta=delta)
        self._open = ""
        return signed + _event("content_block_stop", index=self._index)


def _event(name: str, **data: Any) -> bytes:
    return event({"type": name, **data}, name)


_PING = _event("ping")


async def send_events(call: Call, answer: Answer, events: Events) -> None:
    """Sends an answer piece by piece."""
    async with answer, call.stream(ping=_PING) as out:
        await out.send(events.begin(len(answer.begun.prompt)) + _PING)
        async for said in answer:
            if said.deltas:
                await out.send(b"".join(map(events.delta, said.deltas)))
        await out.send(events.end(answer.ended, answer.called))


_MOST = 4096  # tokens of an answer whose length a request leaves out
_CHOICES = {"auto": "auto", "any": "required", "tool": "required", "none": "none"}


class InputTool(Struct):
    """A function that the model may call. Anthropic's own tools have a type instead of a schema."""

    name: str = ""
    description: str = ""
    input_schema: dict[str, Any] | None = None
    strict: bool | None = None
    type: str = "custom"


class ToolChoice(Struct):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool = False


class Thinking(Struct):
    """The budget is the model's own affair here."""

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: int | None = None


class Format(Struct):
    type: Literal["json_schema"]
    schema: dict[str, Any]


class OutputConfig(Struct):
    format: Format | None = None
    effort: str | None = None


class CountRequest(Struct, kw_only=True):
    """A conversation."""

    messages: list[InputMessage]
    model: str | None = None
    system: str | list[Block] | None = None
    tools: list[InputTool] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None


class MessageRequest(CountRequest, kw_only=True):
    """A conversation to be answered."""

    max_tokens: int = _MOST
    stop_sequences: list[str] | None = None
    stream: bool = False
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None


def routes(server: Server) -> list[Route]:
    def post(path: str, handler: Handler, body: type, answers: Answers) -> Route:
        return route("POST", path, handler, server, ANTHROPIC, body, answers=answers)

    return [
        post("/v1/messages", create, MessageRequest, Answers(MessageAnswer, [EVENTS])),
        post("/v1/messages/count_tokens", count, CountRequest, Answers(TokenCount)),
    ]


async def create(call: Call) -> None:
    """Answer a conversation, in Anthropic's shape."""
    given, server = await call.decode(MessageRequest), call.server
    asking = await wish(given, call)
    stops = given.stop_sequences or ()
    asking.options = _options(given)
    async with server.models.use(given.model) as runner:
        name = called(given.model, runner.state)
        asked = await ask(runner, asking, server.settings)
        answer = Answer(runner, asked, server.metrics)
        if given.stream:
            await send_events(call, answer, Events(name, stops))
            return
        async with answer:
            reply = await whole(answer)
    ended = reply.ended
    message = {
        "id": new_id(),
        "type": "message",
        "role": "assistant",
        "model": name,
        "content": _blocks(reply),
        **stopped(ended, bool(reply.calls), stops),
        "usage": usage(ended),
    }
    await call.json(message)


async def count(call: Call) -> None:
    """Tell how many tokens a conversation takes."""
    given, server = await call.decode(CountRequest), call.server
    asking = await wish(given, call)
    async with server.models.use(given.model) as runner:
        prompt = (await ask(runner, asking, server.settings)).generate.prompt
        assert isinstance(prompt, Chat)
        tokens = await runner.tokenize(Tokenize(prompt))
    await call.json({"input_tokens": len(tokens.ids)})


async def wish(given: CountRequest, call: Call) -> Wish:
    """The chat that a request asks for.

    Raises:
        Refused: a tool is unsupported, or none of those that may be chosen.
    """
    choice = given.tool_choice or ToolChoice("auto")
    if choice.type == "tool" and choice.name is None:
        raise Refused("tool_choice.name: is missing", param="tool_choice.name")
    tools = functions("Anthropic", given.tools, call)
    form = given.output_config.format if given.output_config else None
    last = given.messages[-1] if given.messages else None
    variables: dict[str, Any] = {}
    if given.thinking is not None:
        variables["enable_thinking"] = given.thinking.type != "disabled"
    return Wish(
        await converted(given.system, given.messages, call.server.media.of_request()),
        tools=[_schema_of(tool) for tool in tools],
        choice=_CHOICES[choice.type],
        function=choice.name if choice.type == "tool" else None,
        parallel=not choice.disable_parallel_tool_use,
        strict=any(tool.strict for tool in tools),
        grammar=form and GrammarSpec("json_schema", msgspec.json.encode(form.schema).decode()),
        variables=variables,
        continues=last is not None and last.role == "assistant" and not _calls(last),
    )


def _calls(message: InputMessage) -> bool:
    content = message.content
    return isinstance(content, list) and any(b.get("type") == "tool_use" for b in content)


def _options(given: MessageRequest) -> dict[str, Any]:
    if given.max_tokens < 1:
        raise Refused(f"max_tokens: {given.max_tokens} is less than 1", param="max_tokens")
    options: dict[str, Any] = {"max_tokens": given.max_tokens}
    for name in ("temperature", "top_k", "top_p"):
        if (value := getattr(given, name)) is not None:
            options[name] = value
    if given.stop_sequences:
        options["stop"] = given.stop_sequences
    return options


def _schema_of(tool: InputTool) -> dict[str, Any]:
    found: dict[str, Any] = {"name": tool.name, "description": tool.description}
    found["parameters"] = tool.input_schema or {"type": "object", "properties": {}}
    if tool.strict is not None:
        found["strict"] = tool.strict
    return {"type": "function", "function": found}


def _blocks(reply: Reply) -> list[Block]:
    found: list[Block] = []
    if reply.reasoning:
        found.append({"type": "thinking", "thinking": reply.reasoning, "signature": ""})
    if reply.content or not (reply.reasoning or reply.calls):
        found.append({"type": "text", "text": reply.content})
    for one in reply.calls:
        given = arguments_of(one.arguments)
        found.append({"type": "tool_use", "id": one.id, "name": one.name, "input": given})
    return found
