"""Chat completions of OpenAI's API, whole and streamed: /v1/chat/completions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

from msgspec import UNSET, Struct
from starlette.routing import Route

from ....chat.replies import CallArguments, CallBegun, Content, Delta, Reasoning
from ...answers import Answer, ParsedToken, Reply
from ...chat import serve_chat
from ...chat_requests import choices, functions
from ...endpoint import EVENTS, Answers, Call, route
from ...errors import Refused
from ...requests import ChatParams, Finished, GrammarSpec, Request, Token
from ...server import Server
from .inputs import ChatMessage, OpenAIProtocol, Sampling, converted, schema
from .schemas import (
    OPENAI,
    CalledFunction,
    ChatAnswer,
    ChatChoice,
    ChatChunk,
    ChatCompletion,
    ChatDelta,
    ChunkChoice,
    FunctionDelta,
    Logprobs,
    ToolCall,
    ToolCallDelta,
    logprobs,
    timings,
    usage,
)

_TOP = 20


class JsonSchema(Struct):
    name: str = ""
    schema: dict[str, Any] | bool | None = None
    strict: bool | None = None


class ResponseFormat(Struct):
    """`schema` beside the type is llama-server's."""

    type: Literal["text", "json_object", "json_schema", "regex"]
    json_schema: JsonSchema | None = None
    schema: dict[str, Any] | None = None


class FunctionTool(Struct):
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class CustomTool(Struct):
    name: str = ""


class Tool(Struct):
    function: FunctionTool | None = None
    type: str = "function"
    custom: CustomTool | None = None

    @property
    def name(self) -> str | None:
        named = self.function if self.type == "function" else self.custom
        return named and named.name


class NamedFunction(Struct):
    name: str


class NamedTool(Struct):
    function: NamedFunction
    type: Literal["function"] = "function"


class ChatRequest(Sampling, kw_only=True):
    """A request. The last lines are no fields of OpenAI's, but those of llama-server and vLLM."""

    messages: list[ChatMessage]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    response_format: ResponseFormat | None = None
    tools: list[Tool] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: str | None = None

    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    continue_final_message: bool | None = None
    add_generation_prompt: bool | None = None


def routes(server: Server) -> list[Route]:
    paths = ("/v1/chat/completions", "/chat/completions")  # the second is llama-server's
    answers = Answers(ChatCompletion, {EVENTS: [ChatChunk]})
    return [
        route("POST", path, create, server, OPENAI, ChatRequest, answers=answers) for path in paths
    ]


async def create(call: Call) -> None:
    """Answer a conversation."""
    await serve_chat(ChatCompletions, call)


class ChatCompletions(OpenAIProtocol[ChatRequest]):
    """Choices, each a message."""

    body = ChatRequest
    prefix = "chatcmpl-"

    async def read(self) -> list[Request]:
        params, self.count = self.params, self.params.choices
        if params.top_logprobs and not params.logprobs:
            raise Refused("top_logprobs: needs logprobs to be true", param="top_logprobs")
        if params.logprobs and not 0 <= (params.top_logprobs or 0) <= _TOP:
            text = f"top_logprobs: {params.top_logprobs} is not between 0 and {_TOP}"
            raise Refused(text, param="top_logprobs")
        tools = functions("OpenAI", params.tools, self.call, "function")
        choice = params.tool_choice or "auto"
        chat = ChatParams(
            await converted(params.messages, self.call.fetch),
            tools=[schema_of(tool) for tool in tools],
            template=params.chat_template,
            variables=_variables(params),
            continues=_continues(params),
            choice="required" if isinstance(choice, NamedTool) else choice,
            function=choice.function.name if isinstance(choice, NamedTool) else None,
            parallel=params.parallel_tool_calls is not False,
            strict=any(tool.function.strict for tool in tools if tool.function),
        )
        return [Request(chat, grammar=_form(params))]

    async def prepared(self, requests: list[Request]) -> list[Request]:
        params, (request,) = self.params, requests
        most = params.max_completion_tokens
        most = params.max_tokens if most is None else most
        request.options = await params.options(self.runner, most)
        if params.logprobs:
            request.options |= {"logprobs": True, "top_logprobs": params.top_logprobs or 0}
        await super().prepared(requests)
        return choices(request, self.count)

    async def whole(self, replies: list[Reply]) -> ChatCompletion:
        return ChatCompletion(
            **self.head,
            choices=[self._choice(i, reply) for i, reply in enumerate(replies)],
            usage=usage([reply.finished for reply in replies], replies[0].finished.prompt_tokens),
            timings=timings(replies[0].finished),
        )

    def _choice(self, index: int, reply: Reply) -> ChatChoice:
        message = ChatAnswer(reply.content, reasoning_content=reply.reasoning or UNSET)
        if reply.calls:
            message.content = reply.content or None
            message.tool_calls = [
                ToolCall(one.id, CalledFunction(one.name, one.arguments)) for one in reply.calls
            ]
        reason = _reason(reply.finished, bool(reply.calls))
        return ChatChoice(index, message, self._logprobs(reply.tokens), reason)

    async def first(self, index: int, answer: Answer) -> Iterable[ChatChunk]:
        return [self._chunk(ChunkChoice(index, ChatDelta("assistant", "")))]

    def chunks(self, index: int, parsed: ParsedToken) -> Iterable[ChatChunk]:
        first, *others = [_delta(one) for one in parsed.deltas] or [ChatDelta()]
        tokens = self._logprobs([parsed.token]) if parsed.token else None
        yield self._chunk(ChunkChoice(index, first, tokens))
        for one in others:
            yield self._chunk(ChunkChoice(index, one))

    async def last(self, index: int, answer: Answer) -> Iterable[ChatChunk]:
        self.finished[index] = answer.finished
        reason = _reason(answer.finished, answer.called)
        last = self._chunk(ChunkChoice(index, ChatDelta(), None, reason))
        last.timings = timings(answer.finished)
        return [last]

    def counts(self) -> ChatChunk:
        finished = [*self.finished.values()]
        counts = usage(finished, finished[0].prompt_tokens)
        return ChatChunk(**self.head, choices=[], usage=counts)

    def _chunk(self, choice: ChunkChoice) -> ChatChunk:
        usage = None if self.params.wants_usage else UNSET
        return ChatChunk(**self.head, choices=[choice], usage=usage)

    def _logprobs(self, tokens: list[Token]) -> Logprobs | None:
        return Logprobs(logprobs(tokens)) if self.params.logprobs else None


def _reason(finished: Finished, called: bool) -> Literal["stop", "length", "tool_calls"]:
    return "tool_calls" if called and finished.reason == "stop" else finished.reason


def _delta(delta: Delta) -> ChatDelta:
    if isinstance(delta, Content):
        return ChatDelta(content=delta.text)
    if isinstance(delta, Reasoning):
        return ChatDelta(reasoning_content=delta.text)
    if isinstance(delta, CallBegun):
        call = ToolCallDelta(delta.index, FunctionDelta("", delta.name), delta.id, "function")
        return ChatDelta(tool_calls=[call])
    assert isinstance(delta, CallArguments)
    return ChatDelta(tool_calls=[ToolCallDelta(delta.index, FunctionDelta(delta.text))])


def _form(params: ChatRequest) -> GrammarSpec | None:
    form = params.response_format
    if form is None or form.type == "text":
        return params.form()
    if form.type == "json_schema":
        json_schema = form.schema if form.json_schema is None else form.json_schema.schema
        if json_schema is None:
            raise Refused(
                "response_format.json_schema: the schema is missing",
                param="response_format.json_schema",
            )
        return schema(json_schema)
    return schema(form.schema) if form.schema else GrammarSpec("json")


def schema_of(tool: Tool) -> dict[str, Any]:
    """A function as chat templates take it."""
    function = tool.function
    assert function is not None
    declaration: dict[str, Any] = {"name": function.name, "description": function.description or ""}
    declaration["parameters"] = function.parameters or {"type": "object", "properties": {}}
    if function.strict is not None:
        declaration["strict"] = function.strict
    return {"type": "function", "function": declaration}


def _variables(params: ChatRequest) -> dict[str, Any]:
    variables = dict(params.chat_template_kwargs or {})
    if params.reasoning_effort is not None:
        variables.setdefault("reasoning_effort", params.reasoning_effort)
        if params.reasoning_effort == "none":
            variables.setdefault("enable_thinking", False)
    return variables


def _continues(params: ChatRequest) -> bool:
    """Whether the last message is the beginning of the answer: it is the model's own.

    Raises:
        Refused: an answer is to begin, too, or whether one is remains open.
    """
    if params.continue_final_message and params.add_generation_prompt:
        raise Refused(
            "continue_final_message: leaves no room for add_generation_prompt; give one of them",
            param="continue_final_message",
        )
    if params.continue_final_message is not None:
        return params.continue_final_message
    last = params.messages[-2:]
    roles = [message.role for message in last]
    if roles[-1:] != ["assistant"] or last[-1].tool_calls or params.add_generation_prompt:
        return False
    if roles == ["assistant", "assistant"]:
        raise Refused(
            "messages: two answers at the end leave open whether the last one goes on; say so by "
            "continue_final_message or add_generation_prompt",
            param="messages",
        )
    return True
