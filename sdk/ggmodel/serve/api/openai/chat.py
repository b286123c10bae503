"""Chat completions of OpenAI's API, whole and streamed: /v1/chat/completions."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import Struct
from starlette.routing import Route

from ....chat.replies import CallArguments, CallBegun, Content, Delta, Reasoning
from ...answers import Answer, Reply, Said, all_whole
from ...chat_requests import Asked, Wish, ask, called, check_logprobs, functions
from ...endpoint import EVENTS, Answers, Call, Stream, event, route, together, written
from ...errors import Refused
from ...requests import Ended, GrammarSpec, Runner, State
from ...server import Server
from .inputs import ChatMessage, Sampling, converted, schema
from .schemas import OPENAI, ChatCompletion, head, logprobs, timings, usage

_encode = msgspec.json.Encoder().encode


class Chunks:
    """The chunks of a stream. Parts that all of them share are written once."""

    def __init__(self, model: str, state: State, with_usage: bool, with_logprobs: bool):
        self.with_usage, self._with_logprobs = with_usage, with_logprobs
        self._common = head("chatcmpl-", "chat.completion.chunk", model, state)
        first = _encode(self._common)[:-1] + b',"choices":[{"index":'
        self._head = b"data: " + first
        self._tail = b',"finish_reason":null}]}\n\n'
        if with_usage:
            self._tail = b',"finish_reason":null}],"usage":null}\n\n'

    def delta(self, index: int, delta: Any, tokens: bytes = b"null") -> bytes:
        """A chunk that adds something to a choice."""
        return b'%s%d,"delta":%s,"logprobs":%s%s' % (
            self._head,
            index,
            _encode(delta),
            tokens,
            self._tail,
        )

    def said(self, index: int, said: Said) -> bytes:
        """The chunks of what a token added."""
        tokens = b"null"
        if self._with_logprobs and said.token is not None:
            tokens = _encode(logprobs([said.token]))
        deltas = [_delta(one) for one in said.deltas] or [{}]
        first = self.delta(index, deltas[0], tokens)
        return b"".join([first, *(self.delta(index, one) for one in deltas[1:])])

    def end(self, index: int, reason: str, ended: Ended) -> bytes:
        """The last chunk of a choice."""
        choice = {"index": index, "delta": {}, "logprobs": None, "finish_reason": reason}
        found = {**self._common, "choices": [choice], "timings": timings(ended)}
        return event({**found, "usage": None} if self.with_usage else found)

    def usage(self, ended: list[Ended]) -> bytes:
        """The chunk with the counts of all choices."""
        counts = usage(ended, ended[0].prompt_tokens)
        return event({**self._common, "choices": [], "usage": counts})


async def send_chunks(call: Call, answers: list[Answer], chunks: Chunks) -> None:
    """Sends answers piece by piece."""
    ended: list[Ended] = []

    async def tell(index: int, out: Stream) -> None:
        async with answers[index] as answer:
            await out.send(chunks.delta(index, {"role": "assistant", "content": ""}))
            async for said in answer:
                await out.send(chunks.said(index, said))
            reason: str = answer.ended.reason
            if answer.called and reason == "stop":
                reason = "tool_calls"
            ended.append(answer.ended)
            await out.send(chunks.end(index, reason, answer.ended))

    async with call.stream() as out:
        await together(tell(index, out) for index in range(len(answers)))
        if chunks.with_usage:
            await out.send(chunks.usage(ended))
        await out.send(written(b"[DONE]"))


def _delta(delta: Delta) -> dict[str, Any]:
    if isinstance(delta, Content):
        return {"content": delta.text}
    if isinstance(delta, Reasoning):
        return {"reasoning_content": delta.text}
    if isinstance(delta, CallBegun):
        function = {"name": delta.name, "arguments": ""}
        call = {"index": delta.index, "id": delta.id, "type": "function", "function": function}
        return {"tool_calls": [call]}
    assert isinstance(delta, CallArguments)
    return {"tool_calls": [{"index": delta.index, "function": {"arguments": delta.text}}]}


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
    answers = Answers(ChatCompletion, [EVENTS])
    return [
        route("POST", path, create, server, OPENAI, ChatRequest, answers=answers) for path in paths
    ]


async def create(call: Call) -> None:
    """Answer a conversation."""
    given = await call.decode(ChatRequest)
    n, server = given.choices, call.server
    messages = await converted(given.messages, server.media.of_request())
    async with server.models.use(given.model, keep_alive=given.keep_alive) as runner:
        state = runner.state
        asked = await ask(runner, await wish(given, messages, runner, call), server.settings)
        check_logprobs([asked] * n, runner)
        name = called(given.model, state)
        answers = [Answer(runner, _varied(asked, index), server.metrics) for index in range(n)]
        if given.stream:
            chunks = Chunks(name, state, given.wants_usage, bool(given.logprobs))
            await send_chunks(call, answers, chunks)
        else:
            await call.json(await _completed(answers, name, state, bool(given.logprobs)))


async def wish(
    given: ChatRequest, messages: list[dict[str, Any]], runner: Runner, call: Call
) -> Wish:
    """The chat that a request asks for.

    Raises:
        Refused: it contradicts itself, or a tool is unsupported.
    """
    most = given.max_tokens if given.max_completion_tokens is None else given.max_completion_tokens
    options = await given.options(runner, most)
    if given.top_logprobs and not given.logprobs:
        raise Refused("top_logprobs: needs logprobs to be true", param="top_logprobs")
    if given.logprobs:
        top = given.top_logprobs or 0
        if not 0 <= top <= _TOP:
            raise Refused(f"top_logprobs: {top} is not between 0 and {_TOP}", param="top_logprobs")
        options |= {"logprobs": True, "top_logprobs": top}
    choice = given.tool_choice or "auto"
    tools = functions("OpenAI", given.tools, call, "function")
    return Wish(
        messages,
        tools=[schema_of(tool) for tool in tools],
        choice="required" if isinstance(choice, NamedTool) else choice,
        function=choice.function.name if isinstance(choice, NamedTool) else None,
        parallel=given.parallel_tool_calls is not False,
        strict=any(tool.function.strict for tool in tools if tool.function),
        grammar=_form(given),
        options=options,
        variables=_variables(given),
        template=given.chat_template,
        continues=_continues(given),
    )


def _form(given: ChatRequest) -> GrammarSpec | None:
    form = given.response_format
    if form is None or form.type == "text":
        return given.form()
    if form.type == "json_schema":
        found = form.schema if form.json_schema is None else form.json_schema.schema
        if found is None:
            raise Refused(
                "response_format.json_schema: the schema is missing",
                param="response_format.json_schema",
            )
        return schema(found)
    return schema(form.schema) if form.schema else GrammarSpec("json")


def schema_of(tool: Tool) -> dict[str, Any]:
    """A function as chat templates take it."""
    function = tool.function
    assert function is not None
    found: dict[str, Any] = {"name": function.name, "description": function.description or ""}
    found["parameters"] = function.parameters or {"type": "object", "properties": {}}
    if function.strict is not None:
        found["strict"] = function.strict
    return {"type": "function", "function": found}


def _variables(given: ChatRequest) -> dict[str, Any]:
    found = dict(given.chat_template_kwargs or {})
    if given.reasoning_effort is not None:
        found.setdefault("reasoning_effort", given.reasoning_effort)
        if given.reasoning_effort == "none":
            found.setdefault("enable_thinking", False)
    return found


def _continues(given: ChatRequest) -> bool:
    """Whether the last message is the beginning of the answer: it is the model's own.

    Raises:
        Refused: an answer is to begin, too, or whether one is remains open.
    """
    if given.continue_final_message and given.add_generation_prompt:
        raise Refused(
            "continue_final_message: leaves no room for add_generation_prompt; give one of them",
            param="continue_final_message",
        )
    if given.continue_final_message is not None:
        return given.continue_final_message
    roles = [message.role for message in given.messages[-2:]]
    if roles[-1:] != ["assistant"] or given.messages[-1].tool_calls or given.add_generation_prompt:
        return False
    if roles == ["assistant", "assistant"]:
        raise Refused(
            "messages: two answers at the end leave open whether the last one goes on; say so by "
            "continue_final_message or add_generation_prompt",
            param="messages",
        )
    return True


def _varied(asked: Asked, index: int) -> Asked:
    """The request for another choice: with a seed of its own."""
    seed = asked.generate.options.get("seed", -1)
    if index == 0 or seed < 0:
        return asked
    from msgspec.structs import replace

    options = {**asked.generate.options, "seed": seed + index}
    return Asked(replace(asked.generate, options=options), asked.form, asked.tools)


async def _completed(
    answers: list[Answer], name: str, state: State, with_logprobs: bool
) -> dict[str, Any]:
    done = await all_whole(answers)
    return {
        **head("chatcmpl-", "chat.completion", name, state),
        "choices": [_choice(i, reply, with_logprobs) for i, reply in enumerate(done)],
        "usage": usage([reply.ended for reply in done], done[0].ended.prompt_tokens),
        "timings": timings(done[0].ended),
    }


def _choice(index: int, reply: Reply, with_logprobs: bool) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": reply.content, "refusal": None}
    if reply.reasoning:
        message["reasoning_content"] = reply.reasoning
    reason: str = reply.ended.reason
    if reply.calls:
        message["content"] = reply.content or None
        message["tool_calls"] = [
            {
                "id": one.id,
                "type": "function",
                "function": {"name": one.name, "arguments": one.arguments},
            }
            for one in reply.calls
        ]
        reason = "tool_calls" if reason == "stop" else reason
    return {
        "index": index,
        "message": message,
        "logprobs": logprobs(reply.tokens) if with_logprobs else None,
        "finish_reason": reason,
    }
