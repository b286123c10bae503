"""/v1/messages, and how many tokens one takes."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import Struct
from starlette.routing import Route

from ...answers import Answer, Reply, whole
from ...asking import Wish, ask, called
from ...conversation import arguments_of
from ...endpoint import EVENTS, Answers, Call, Handler, route
from ...errors import Refused
from ...requests import Chat, GrammarSpec, Tokenize
from ...server import Server
from ...tools import functions
from .answered import MessageAnswer, TokenCount
from .content import Block, InputMessage, converted
from .message_stream import Events, new_id, send_events
from .shapes import ANTHROPIC, stopped, usage

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
