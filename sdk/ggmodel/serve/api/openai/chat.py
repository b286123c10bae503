"""Chat completions of OpenAI's API, whole and streamed: /v1/chat/completions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

from msgspec import UNSET, Struct
from starlette.routing import Route

from ....chat.replies import CallArguments, CallBegun, Content, Delta, Reasoning
from ...answers import Answer, ParsedCall, ParsedToken, Reply
from ...chat import serve_chat
from ...chat_requests import choices
from ...endpoint import EVENTS, Answers, Call, route
from ...errors import Refused
from ...requests import (
    ChatParams,
    Detokenize,
    Finished,
    GrammarSpec,
    PromptProgress,
    Request,
    Token,
)
from ...server import Server
from .inputs import AUTO, ChatMessage, OpenAIProtocol, Sampling, converted, schema
from .schemas import (
    OPENAI,
    CalledCustom,
    CalledFunction,
    ChatAnswer,
    ChatChoice,
    ChatChunk,
    ChatCompletion,
    ChatDelta,
    ChunkChoice,
    CustomDelta,
    CustomToolCall,
    FinishReason,
    FunctionDelta,
    FunctionToolCall,
    Logprobs,
    ToolCall,
    ToolCallDelta,
    Verbose,
    logprobs,
    progress_of,
    settings_of,
    timings,
    timings_so_far,
    usage,
)
from .tools import FunctionTool, NamedTool, Tool, ToolChoice, ToolChoiceMode, chat_tools, choose

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


class ChatRequest(Sampling, kw_only=True):
    """A request. The last lines are no fields of OpenAI's, but those of llama-server and vLLM."""

    messages: list[ChatMessage]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    response_format: ResponseFormat | None = None
    tools: list[Tool] | None = None
    tool_choice: ToolChoiceMode | ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    functions: list[FunctionTool] | None = None
    function_call: Literal["none", "auto"] | NamedTool | None = None
    reasoning_effort: str | None = None

    truncation: Literal["auto", "disabled"] | None = None
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    continue_final_message: bool | None = None
    add_generation_prompt: bool | None = None
    verbose: bool | None = None


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

    def __init__(self, call: Call, params: ChatRequest):
        super().__init__(call, params)
        self._options: dict[str, Any] = {}
        self._custom: dict[int, bool] = {}  # the call under way of each choice is a custom tool's

    async def read(self) -> list[Request]:
        params, self.count = self.params, self.params.choices
        if params.top_logprobs and not params.logprobs:
            raise Refused("top_logprobs: needs logprobs to be true", param="top_logprobs")
        if params.logprobs and not 0 <= (params.top_logprobs or 0) <= _TOP:
            text = f"top_logprobs: {params.top_logprobs} is not between 0 and {_TOP}"
            raise Refused(text, param="top_logprobs")
        tools = self._tools()
        self.customs: list[str] = tools["custom"]
        chat = ChatParams(
            await converted(params.messages, self.call),
            template=params.chat_template,
            variables=_variables(params),
            continues=_continues(params),
            parallel=params.parallel_tool_calls is not False and not self.legacy,
            **tools,
        )
        return [Request(chat, grammar=_form(params))]

    @property
    def legacy(self) -> bool:
        """The request has functions in the form that tools came after."""
        return bool(self.params.functions)

    def _tools(self) -> dict[str, Any]:
        params = self.params
        if not self.legacy:
            return choose(chat_tools(params.tools, self.call), params.tool_choice)
        if params.tools:
            raise Refused("functions: are what tools are; give one of them", param="functions")
        named = params.function_call
        tools = [Tool(one) for one in params.functions or ()]
        choice = ToolChoice(function=named) if isinstance(named, NamedTool) else named
        return choose(chat_tools(tools, self.call), choice)

    async def prepared(self, requests: list[Request]) -> list[Request]:
        params, (request,) = self.params, requests
        most = params.max_completion_tokens
        most = params.max_tokens if most is None else most
        request.options = await params.options(self.runner, most)
        request.progress, request.slot = params.watches_prefill, params.slot
        if params.truncation is not None:
            request.options["truncate"] = params.truncation == "auto"
        if not request.options.get("truncate"):
            self.call.remedy = AUTO
        if params.logprobs:
            request.options |= {"logprobs": True, "top_logprobs": params.top_logprobs or 0}
        await super().prepared(requests)
        self._options = request.options
        return choices(request, self.count)

    async def whole(self, replies: list[Reply]) -> ChatCompletion:
        first = replies[0]
        whole = ChatCompletion(
            **self.head,
            choices=[self._choice(i, reply) for i, reply in enumerate(replies)],
            usage=usage([reply.finished for reply in replies], first.finished.prompt_tokens),
            timings=timings(first.finished),
        )
        asked = self.params.verbose
        if self.call.server.settings.verbose if asked is None else asked:
            prompt = await self.runner.detokenize(Detokenize(first.started.prompt))
            whole.verbose = Verbose(prompt.text, settings_of(self._options))
        return whole

    def _choice(self, index: int, reply: Reply) -> ChatChoice:
        message = ChatAnswer(reply.content, reasoning_content=reply.reasoning or UNSET)
        if reply.calls:
            message.content = reply.content or None
            if self.legacy:
                first = reply.calls[0]
                message.function_call = CalledFunction(first.name, first.arguments)
            else:
                message.tool_calls = [*map(self._call, reply.calls)]
        reason = self._reason(reply.finished, bool(reply.calls))
        captured = reply.finished.captured or UNSET
        return ChatChoice(index, message, self._logprobs(reply.tokens), reason, captured)

    def _call(self, call: ParsedCall) -> ToolCall:
        if call.name in self.customs:
            return CustomToolCall(id=call.id, custom=CalledCustom(call.name, call.arguments))
        return FunctionToolCall(id=call.id, function=CalledFunction(call.name, call.arguments))

    async def first(self, index: int, answer: Answer) -> Iterable[ChatChunk]:
        return [self._chunk(ChunkChoice(index, ChatDelta("assistant", "")))]

    def prefilled(self, index: int, progress: PromptProgress) -> Iterable[ChatChunk]:
        chunk = self._chunk(ChunkChoice(index, ChatDelta()))
        chunk.prompt_progress, chunk.timings = progress_of(progress), timings_so_far(progress)
        return [chunk]

    def chunks(self, index: int, parsed: ParsedToken) -> Iterable[ChatChunk]:
        first, *others = [self._delta(index, one) for one in parsed.deltas] or [ChatDelta()]
        tokens = self._logprobs([parsed.token]) if parsed.token else None
        yield self._chunk(ChunkChoice(index, first, tokens))
        for one in others:
            yield self._chunk(ChunkChoice(index, one))

    async def last(self, index: int, answer: Answer) -> Iterable[ChatChunk]:
        self.finished[index] = answer.finished
        reason = self._reason(answer.finished, answer.called)
        captured = answer.finished.captured or UNSET
        last = self._chunk(ChunkChoice(index, ChatDelta(), None, reason, captured))
        last.timings = timings(answer.finished)
        return [last]

    def counts(self) -> ChatChunk:
        finished = [*self.finished.values()]
        counts = usage(finished, finished[0].prompt_tokens)
        return ChatChunk(**self.head, choices=[], usage=counts)

    def _chunk(self, choice: ChunkChoice) -> ChatChunk:
        usage = None if self.params.wants_usage else UNSET
        return ChatChunk(**self.head, choices=[choice], usage=usage)

    def _reason(self, finished: Finished, called: bool) -> FinishReason:
        if not called or finished.reason != "stop":
            return finished.reason
        return "function_call" if self.legacy else "tool_calls"

    def _delta(self, choice: int, delta: Delta) -> ChatDelta:
        if isinstance(delta, Content):
            return ChatDelta(content=delta.text)
        if isinstance(delta, Reasoning):
            return ChatDelta(reasoning_content=delta.text)
        assert isinstance(delta, (CallBegun, CallArguments))
        call, name, text = ToolCallDelta(delta.index), UNSET, ""
        if isinstance(delta, CallBegun):
            self._custom[choice] = delta.name in self.customs
            name, call.id = delta.name, delta.id
            call.type = "custom" if self._custom[choice] else "function"
        else:
            text = delta.text
        if self.legacy:  # has room for one call
            first = delta.index == 0
            return ChatDelta(function_call=FunctionDelta(text, name)) if first else ChatDelta()
        if self._custom[choice]:
            call.custom = CustomDelta(text, name)
        else:
            call.function = FunctionDelta(text, name)
        return ChatDelta(tool_calls=[call])

    def _logprobs(self, tokens: list[Token]) -> Logprobs | None:
        return Logprobs(logprobs(tokens)) if self.params.logprobs else None


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
