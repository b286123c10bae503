"""Anthropic's API: /v1/messages, whole and streamed, and its count of tokens."""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from typing import Any, Literal

import msgspec
from msgspec import Struct
from starlette.routing import Route

from ....chat.replies import CallArguments, CallBegun, Content, Delta, Reasoning
from ...answers import Answer, ParsedToken, Reply
from ...chat import ChatProtocol, serve_chat
from ...chat_requests import prepare
from ...endpoint import EVENTS, Answers, Call, Handler, named_event, route
from ...errors import Refused
from ...requests import ChatParams, Finished, GrammarSpec, Request, Tokenize
from ...server import Server
from ...tools import written_arguments
from . import batches
from .inputs import Block, InputMessage, converted
from .schemas import (
    ANTHROPIC,
    NO_THREADS,
    AnswerBlock,
    BlockDelta,
    ContentBlockDelta,
    ContentBlockStart,
    ContentBlockStop,
    InputJsonDelta,
    MessageAnswer,
    MessageDelta,
    MessageEvent,
    MessageStart,
    MessageStop,
    Ping,
    SignatureDelta,
    Stopped,
    TextBlock,
    TextDelta,
    ThinkingBlock,
    ThinkingDelta,
    TokenCount,
    ToolUseBlock,
    Usage,
    usage,
)
from .tools import InputTool, tools_of

__all__ = ["ANTHROPIC", "routes"]


_CHOICES: dict[str, Literal["auto", "none", "required"]] = {
    "auto": "auto",
    "any": "required",
    "tool": "required",
    "none": "none",
}


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

    max_tokens: int
    thread: dict[str, Any] | None = None
    stop_sequences: list[str] | None = None
    stream: bool = False
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None


def routes(server: Server) -> list[Route]:
    def post(path: str, handler: Handler, body: type, answers: Answers) -> Route:
        return route("POST", path, handler, server, ANTHROPIC, body, answers=answers)

    return [
        post(
            "/v1/messages", create, MessageRequest, Answers(MessageAnswer, {EVENTS: [MessageEvent]})
        ),
        post("/v1/messages/count_tokens", count, CountRequest, Answers(TokenCount)),
        *batches.routes(server),
    ]


async def create(call: Call) -> None:
    """Answer a conversation, in Anthropic's format."""
    await serve_chat(Messages, call)


async def count(call: Call) -> None:
    """Count the tokens of a conversation."""
    params, server = await call.decode(CountRequest), call.server
    chat = await _chat(params, call)
    async with server.models.use(params.model) as runner:
        await prepare(runner, Request(chat, grammar=_grammar(params)), server.settings)
        tokens = await runner.tokenize(Tokenize(chat))
    await call.json(TokenCount(len(tokens.ids)))


class Messages(ChatProtocol[MessageRequest]):
    """A message, whose blocks begin and end as the answer changes its kind."""

    body = MessageRequest
    ping = named_event(Ping())

    def __init__(self, call: Call, params: MessageRequest):
        super().__init__(call, params)
        self._index, self._open = -1, ""

    async def read(self) -> list[Request]:
        if self.params.thread is not None:  # clients go on with all messages
            raise Refused(
                "thread: conversations are not kept here; send all of its messages without it",
                param="thread",
                code=NO_THREADS,
            )
        chat = await _chat(self.params, self.call)
        return [Request(chat, _options(self.params), _grammar(self.params))]

    async def whole(self, replies: list[Reply]) -> MessageAnswer:
        (reply,) = replies
        stopped = self._stopped(reply.finished, bool(reply.calls))
        return self._message(_blocks(reply), stopped, usage(reply.finished))

    async def first(self, index: int, answer: Answer) -> Iterable[MessageEvent]:
        # How much of the prompt was in the cache comes with the last counts.
        # One token counts as written from the start, as from Anthropic's servers.
        counts = Usage(len(answer.started.prompt), 0, 0, 1)
        return [MessageStart(self._message([], Stopped(None, None), counts)), Ping()]

    def chunks(self, index: int, parsed: ParsedToken) -> Iterable[MessageEvent]:
        return [event for delta in parsed.deltas for event in self._delta(delta)]

    async def last(self, index: int, answer: Answer) -> Iterable[MessageEvent]:
        empty = self._begin("text", TextBlock("")) if self._index < 0 else []
        stopped = self._stopped(answer.finished, answer.called)
        end = [MessageDelta(stopped, usage(answer.finished)), MessageStop()]
        return [*empty, *self._close(), *end]

    def frame(self, part: MessageEvent) -> bytes:
        return named_event(part)

    def _message(
        self, content: list[AnswerBlock], stopped: Stopped, counts: Usage
    ) -> MessageAnswer:
        return MessageAnswer(
            id=f"msg_{secrets.token_hex(12)}",  # nobody can guess it
            model=self.name,
            content=content,
            stop_reason=stopped.stop_reason,
            stop_sequence=stopped.stop_sequence,
            usage=counts,
        )

    def _stopped(self, finished: Finished, called: bool) -> Stopped:
        sequence = finished.stop if finished.stop in (self.params.stop_sequences or ()) else None
        if finished.reason == "length":
            return Stopped("max_tokens", sequence)
        if called:
            return Stopped("tool_use", sequence)
        return Stopped("end_turn" if sequence is None else "stop_sequence", sequence)

    def _delta(self, delta: Delta) -> list[MessageEvent]:
        if isinstance(delta, CallBegun):
            return self._begin(f"call {delta.index}", ToolUseBlock(delta.id, delta.name, {}))
        if isinstance(delta, CallArguments):
            return [ContentBlockDelta(self._index, InputJsonDelta(delta.text))]
        if isinstance(delta, Reasoning):
            return self._in("thought", ThinkingBlock(""), ThinkingDelta(delta.text))
        assert isinstance(delta, Content)
        return self._in("text", TextBlock(""), TextDelta(delta.text))

    def _in(self, kind: str, block: AnswerBlock, delta: BlockDelta) -> list[MessageEvent]:
        begun = [] if self._open == kind else self._begin(kind, block)
        return [*begun, ContentBlockDelta(self._index, delta)]

    def _begin(self, kind: str, block: AnswerBlock) -> list[MessageEvent]:
        closed = self._close()
        self._index, self._open = self._index + 1, kind
        return [*closed, ContentBlockStart(self._index, block)]

    def _close(self) -> list[MessageEvent]:
        kind, self._open = self._open, ""
        if not kind:
            return []
        signed = [ContentBlockDelta(self._index, SignatureDelta())] if kind == "thought" else []
        return [*signed, ContentBlockStop(self._index)]


async def _chat(params: CountRequest, call: Call) -> ChatParams:
    """The chat of a request.

    Raises:
        Refused: a tool is unsupported, or none of those that may be chosen.
    """
    choice = params.tool_choice or ToolChoice("auto")
    if choice.type == "tool" and choice.name is None:
        raise Refused("tool_choice.name: is missing", param="tool_choice.name")
    tools = tools_of(params.tools, call)
    last = params.messages[-1] if params.messages else None
    thinks = params.thinking and {"enable_thinking": params.thinking.type != "disabled"}
    return ChatParams(
        await converted(params.system, params.messages, call),
        tools=tools.functions,
        variables=thinks or {},
        continues=last is not None and last.role == "assistant" and not _calls(last),
        choice=_CHOICES[choice.type],
        function=choice.name if choice.type == "tool" else None,
        parallel=not choice.disable_parallel_tool_use,
        strict=tools.strict,
    )


def _grammar(params: CountRequest) -> GrammarSpec | None:
    form = params.output_config and params.output_config.format
    return form and GrammarSpec("json_schema", msgspec.json.encode(form.schema).decode())


def _calls(message: InputMessage) -> bool:
    content = message.content
    return isinstance(content, list) and any(b.get("type") == "tool_use" for b in content)


def _options(params: MessageRequest) -> dict[str, Any]:
    if params.max_tokens < 1:
        raise Refused(f"max_tokens: {params.max_tokens} is less than 1", param="max_tokens")
    options: dict[str, Any] = {"max_tokens": params.max_tokens}
    for name in ("temperature", "top_k", "top_p"):
        if (value := getattr(params, name)) is not None:
            options[name] = value
    if params.stop_sequences:
        options["stop"] = params.stop_sequences
    return options


def _blocks(reply: Reply) -> list[AnswerBlock]:
    blocks: list[AnswerBlock] = []
    if reply.reasoning:
        blocks.append(ThinkingBlock(reply.reasoning))
    if reply.content or not (reply.reasoning or reply.calls):
        blocks.append(TextBlock(reply.content))
    return blocks + [
        ToolUseBlock(one.id, one.name, written_arguments(one.arguments)) for one in reply.calls
    ]
