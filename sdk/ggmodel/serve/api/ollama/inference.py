"""Inference by Ollama's API: /api/chat, /api/generate, /api/embed."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

import numpy as np
from msgspec import UNSET, Struct, UnsetType
from starlette.routing import Route

from ....bounds import limits
from ....chat.replies import CallArguments, CallBegun, Content, Reasoning
from ....names import as_jinja
from ...answers import Answer, ParsedCall, ParsedToken, Reply
from ...chat import ChatProtocol, serve_chat
from ...chat_requests import Message, check_count, tool_call
from ...endpoint import LINES, Answers, Call, Handler, line, route
from ...errors import Refused
from ...infill import fill_prompt
from ...requests import ChatParams, Embed, Finished, Render, Request, Rows, Started, Token
from ...server import Server
from ...tools import written_arguments
from ..openai.schemas import logprobs
from .schemas import (
    OLLAMA,
    AnsweredCall,
    AnsweredFunction,
    AnsweredMessage,
    AnswerRequest,
    ChatResponse,
    Clock,
    Embedded,
    EmbeddedText,
    GenerateResponse,
    KeepAlive,
    form,
    keep_alive,
    now,
    options_of,
    thinking,
    with_images,
)


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


def chat_routes(server: Server) -> list[Route]:
    answers = Answers(ChatResponse, {LINES: [ChatResponse]})
    return [route("POST", "/api/chat", chat, server, OLLAMA, ChatRequest, answers=answers)]


async def chat(call: Call) -> None:
    """Answer a conversation, in Ollama's format."""
    await serve_chat(Chats, call)


R = TypeVar("R", bound=AnswerRequest)


class OllamaProtocol(ChatProtocol[R]):
    """The part that chats and texts have in common: times, and the fields of `OllamaResponse`."""

    media_type = LINES

    def __init__(self, call: Call, params: R):
        super().__init__(call, params)
        self.clock = Clock()

    @property
    def streams(self) -> bool:
        return self.params.stream is not False

    def loading(self) -> dict[str, Any]:
        params = self.params
        return {"keep_alive": keep_alive(params.keep_alive), **options_of(params.options)[1]}

    async def prepared(self, requests: list[Request]) -> list[Request]:
        self.clock.loaded()
        thinks = self.params.think not in (None, False)
        if thinks and "thinking" not in self.runner.state.abilities:
            name = json.dumps(self.params.model)
            raise Refused(f"{name} does not support thinking; leave think out", param="think")
        return await super().prepared(requests)

    def frame(self, part: Any) -> bytes:
        return line(part)

    def part(self, tokens: Sequence[Token] | None = None) -> dict[str, Any]:
        """The fields of a part, with these tokens where log-probabilities are wanted."""
        fields = {"model": self.params.model, "created_at": now(), "done": False}
        if tokens is not None and self.params.logprobs:
            fields["logprobs"] = logprobs(tokens)
        return fields

    def done(self, end: Finished | None, tokens: Sequence[Token] | None = None) -> dict[str, Any]:
        """The fields of the last part; without an answer, the model was only loaded or unloaded."""
        fields = {**self.part(tokens), "done": True}
        if end is None:
            unloaded = keep_alive(self.params.keep_alive) == 0
            reason = "unload" if unloaded else "load"
            return {**fields, "done_reason": reason, **self.clock.so_far()}
        return {**fields, "done_reason": end.reason, **self.clock.of(end)}


class Chats(OllamaProtocol[ChatRequest]):
    """A message. Calls of tools come whole."""

    body = ChatRequest

    def __init__(self, call: Call, params: ChatRequest):
        super().__init__(call, params)
        self._call: ParsedCall | None = None

    async def read(self) -> list[Request]:
        params = self.params
        check_count(params.messages or ())
        messages = [_message(one, i) for i, one in enumerate(params.messages or ())]
        tools = [_tool(one, i) for i, one in enumerate(params.tools or ())]
        chat = ChatParams(messages, tools, variables=thinking(params.think))
        request = Request(chat, params.request_options(), form(params.format))
        return [request] if messages else []

    async def whole(self, replies: list[Reply]) -> ChatResponse:
        if not replies:
            return ChatResponse(message=AnsweredMessage(), **self.done(None))
        (reply,) = replies
        calls = _answered(reply.calls) if reply.calls else UNSET
        message = AnsweredMessage(
            reply.content, thinking=reply.reasoning or UNSET, tool_calls=calls
        )
        return ChatResponse(message=message, **self.done(reply.finished, reply.tokens))

    def chunks(self, index: int, parsed: ParsedToken) -> Iterable[ChatResponse]:
        tokens = [] if parsed.token is None else [parsed.token]
        message = AnsweredMessage()
        texts = False
        for delta in parsed.deltas:
            if isinstance(delta, CallArguments) and self._call is not None:
                self._call.arguments += delta.text
                continue
            yield from self._called()
            if isinstance(delta, CallBegun):
                self._call = ParsedCall(delta.id, delta.name)
            elif isinstance(delta, Reasoning):
                message.thinking = (message.thinking or "") + delta.text
                texts = True
            else:
                assert isinstance(delta, Content)
                message.content += delta.text
                texts = True
        if texts or tokens:
            yield ChatResponse(message=message, **self.part(tokens or None))

    async def last(self, index: int, answer: Answer) -> Iterable[ChatResponse]:
        last = ChatResponse(message=AnsweredMessage(), **self.done(answer.finished))
        return [*self._called(), last]

    def _called(self) -> list[ChatResponse]:
        """The call under way, which is complete."""
        call, self._call = self._call, None
        if call is None:
            return []
        return [ChatResponse(message=AnsweredMessage(tool_calls=_answered([call])), **self.part())]


def _answered(calls: list[ParsedCall]) -> list[AnsweredCall]:
    """Calls of functions. Arguments are objects here."""
    return [
        AnsweredCall(one.id, AnsweredFunction(i, one.name, written_arguments(one.arguments)))
        for i, one in enumerate(calls)
    ]


def _message(message: ChatMessage, index: int) -> Message:
    text = message.content or ""
    fields: Message = {
        "role": message.role,
        **with_images(text, message.images, f"messages[{index}]."),
    }
    if message.thinking:
        fields["reasoning_content"] = message.thinking
    if message.tool_calls:
        fields["tool_calls"] = [
            tool_call(one.id or secrets.token_hex(6), one.function.name, one.function.arguments)
            for one in message.tool_calls
        ]
    if message.tool_name:
        fields["name"] = message.tool_name
    if message.tool_call_id:
        fields["tool_call_id"] = message.tool_call_id
    return fields


def _tool(tool: dict[str, Any], index: int) -> dict[str, Any]:
    function = tool.get("function")
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        where = f"tools[{index}].function"
        raise Refused(f"{where}: a function with a name is missing", param=where)
    parameters = function.get("parameters") or {"type": "object", "properties": {}}
    about = str(function.get("description") or "")
    schema = {"name": function["name"], "description": about, "parameters": parameters}
    return {"type": "function", "function": schema}


class GenerateRequest(AnswerRequest, kw_only=True):
    """A prompt to be gone on with; without one, a model to be loaded or unloaded.

    Attributes:
        context: token ids of an earlier answer, whose conversation goes on.
        raw: the prompt is the whole text; no template is applied.
        template: Ollama's, in place of the model's.
    """

    prompt: str | None = None
    suffix: str | None = None
    system: str | None = None
    template: str | None = None
    context: list[int] | None = None
    images: list[str] | None = None
    raw: bool = False


def generate_routes(server: Server) -> list[Route]:
    path, answers = "/api/generate", Answers(GenerateResponse, {LINES: [GenerateResponse]})
    return [route("POST", path, generate, server, OLLAMA, GenerateRequest, answers=answers)]


async def generate(call: Call) -> None:
    """Go on with a prompt, in Ollama's format."""
    await serve_chat(Texts, call)


class Texts(OllamaProtocol[GenerateRequest]):
    """A text after a prompt, which a template may make of it."""

    body = GenerateRequest

    async def read(self) -> list[Request]:
        params = self.params
        if params.suffix and (params.images or params.context):
            raise Refused("suffix: goes with no images and no context", param="suffix")
        options = params.request_options()
        if not (params.prompt or params.images or params.suffix):
            return []
        self._content = with_images(params.prompt or "", params.images, "")["content"]
        request = Request(params.prompt or "", options, form(params.format))
        if not params.suffix:
            request.prompt = self._plain() if params.raw else self._chat()
        return [request]

    def _plain(self) -> str | list[Any]:
        """The prompt as the whole text, without a template."""
        content = self._content
        parts = [content] if isinstance(content, str) else content
        prompt = [*(self.params.context or ()), *parts]
        return content if prompt == [content] else prompt

    def _chat(self) -> ChatParams:
        params = self.params
        system = [{"role": "system", "content": params.system}] if params.system else []
        return ChatParams(
            [*system, {"role": "user", "content": self._content}],
            template=as_jinja(params.template, "template") if params.template else None,
            variables=thinking(params.think),
        )

    async def prepared(self, requests: list[Request]) -> list[Request]:
        params, runner, template = self.params, self.runner, self.runner.state.template
        for one in requests:
            if isinstance(one.prompt, ChatParams) and not (template or params.template):
                one.prompt = self._plain()
        await super().prepared(requests)
        for one in requests:
            if params.suffix:
                most = one.options.get("max_tokens")
                prefix = params.prompt or ""
                one.prompt = await fill_prompt(runner, prefix, params.suffix, max_tokens=most)
            elif params.context and isinstance(one.prompt, ChatParams):
                if not isinstance(self._content, str):
                    text = "context: cannot be given with images; use /api/chat"
                    raise Refused(text, param="context")
                text = (await runner.render(Render(one.prompt))).text
                one.prompt = [*params.context, text]
        return requests

    async def whole(self, replies: list[Reply]) -> GenerateResponse:
        if not replies:
            return GenerateResponse(response="", **self.done(None))
        (reply,) = replies
        return GenerateResponse(
            response=reply.content,
            thinking=reply.reasoning or UNSET,
            context=_context(reply.started, reply.ids),
            **self.done(reply.finished, reply.tokens),
        )

    def chunks(self, index: int, parsed: ParsedToken) -> Iterable[GenerateResponse]:
        texts = [delta.text for delta in parsed.deltas if isinstance(delta, Content)]
        thoughts = [delta.text for delta in parsed.deltas if isinstance(delta, Reasoning)]
        part = self.part(parsed.token and [parsed.token])
        thinking = "".join(thoughts) or UNSET
        return [GenerateResponse(response="".join(texts), thinking=thinking, **part)]

    async def last(self, index: int, answer: Answer) -> Iterable[GenerateResponse]:
        context = _context(answer.started, answer.ids)
        return [GenerateResponse(response="", context=context, **self.done(answer.finished))]


def _context(started: Started, ids: list[int]) -> list[int] | UnsetType:
    """Token ids of prompt and answer; none where the prompt has images."""
    return [*started.prompt, *ids] if min(started.prompt, default=0) >= 0 else UNSET


class EmbedRequest(Struct, kw_only=True):
    """Texts; without any, a model to be loaded."""

    model: str
    input: str | list[str] | None = None
    truncate: bool | None = None
    dimensions: int | None = None
    options: dict[str, Any] | None = None
    keep_alive: KeepAlive = None


class EmbeddingRequest(Struct, kw_only=True):
    """One text."""

    model: str
    prompt: str | None = None
    options: dict[str, Any] | None = None
    keep_alive: KeepAlive = None


def embed_routes(server: Server) -> list[Route]:
    def post(path: str, handler: Handler, body: type, kind: type) -> Route:
        return route("POST", path, handler, server, OLLAMA, body, answers=Answers(kind))

    return [
        post("/api/embed", embed, EmbedRequest, Embedded),
        post("/api/embeddings", embedding, EmbeddingRequest, EmbeddedText),
    ]


async def embed(call: Call) -> None:
    """Embed texts, in Ollama's format."""
    params, clock = await call.decode(EmbedRequest), Clock()
    texts = [params.input] if isinstance(params.input, str) else params.input or []
    if len(texts) > limits.serve_prompts:
        raise Refused(
            f"input: {len(texts)} texts are more than the limit serve_prompts of "
            f"{limits.serve_prompts}",
            param="input",
        )
    request = Embed([*texts], truncate=params.truncate is not False, dimensions=params.dimensions)
    rows = await _rows(call, params, request, clock)
    counts = {**clock.so_far(), "prompt_eval_count": sum(rows.tokens)}
    await call.json(Embedded(params.model, _listed(rows), **counts))


async def embedding(call: Call) -> None:
    """Embed one text, in Ollama's older format."""
    params = await call.decode(EmbeddingRequest)
    texts: list[Any] = [params.prompt] if params.prompt else []
    rows = await _rows(call, params, Embed(texts, normalize=False, truncate=True), Clock())
    await call.json(EmbeddedText(next(iter(_listed(rows)), [])))


async def _rows(
    call: Call, params: EmbedRequest | EmbeddingRequest, request: Embed, clock: Clock
) -> Rows:
    _, loading = options_of(params.options)
    stays = keep_alive(params.keep_alive)
    async with call.server.models.use(params.model, keep_alive=stays, **loading) as runner:
        clock.loaded()
        if not request.texts:
            return Rows(b"", 0, 0, [])
        request.pooling = call.server.settings.one_row
        rows = await runner.embed(request)
    call.server.metrics.read(runner.name, rows)
    return rows


def _listed(rows: Rows) -> list[list[float]]:
    return np.frombuffer(rows.data, "<f4").reshape(rows.count, rows.width).tolist()
