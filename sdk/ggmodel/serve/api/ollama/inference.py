"""Inference by Ollama's API: /api/chat, /api/generate, /api/embed."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
from msgspec import Struct
from starlette.routing import Route

from ....bounds import limits
from ....chat.replies import CallArguments, CallBegun, Content, Delta, Reasoning
from ....names import as_jinja
from ...answers import Answer, Called, Reply, whole
from ...chat_requests import (
    Asked,
    Message,
    Wish,
    arguments_of,
    ask,
    check_count,
    check_logprobs,
    tool_call,
    within,
)
from ...endpoint import Answers, Call, Handler, route
from ...errors import Refused
from ...infill import fill_prompt
from ...requests import Chat, Embed, Generate, Render, Rows, Runner
from ...server import Server
from .schemas import (
    LINES,
    OLLAMA,
    AnswerRequest,
    ChatPart,
    Clock,
    Embedded,
    EmbeddedText,
    KeepAlive,
    TextPart,
    form,
    keep_alive,
    line,
    logprobs,
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
    path, answers = "/api/generate", Answers(TextPart, [LINES])
    return [route("POST", path, generate, server, OLLAMA, GenerateRequest, answers=answers)]


async def generate(call: Call) -> None:
    """Go on with a prompt, in Ollama's shape."""
    given, server, clock = await call.decode(GenerateRequest), call.server, Clock()
    options = given.wanted()
    if given.suffix and (given.images or given.context):
        raise Refused("suffix: goes with no images and no context", param="suffix")
    async with given.model_of(server) as runner:
        clock.loaded()
        if not (given.prompt or given.images or given.suffix):
            await call.json(loaded(given, clock, {"response": ""}))
            return
        asked = await _asked(given, options, runner, server)
        check_logprobs([asked], runner)
        answer = Answer(runner, asked, server.metrics)
        if given.stream is not False:
            await _send_text(call, given, answer, clock)
            return
        async with answer:
            reply = await whole(answer)
    found: dict[str, Any] = {"response": reply.content}
    if reply.reasoning:
        found["thinking"] = reply.reasoning
    if given.logprobs:
        found["logprobs"] = logprobs(reply.tokens)
    await call.json({**_head(given), **found, **_done(answer, clock)})


async def _asked(
    given: GenerateRequest, options: dict[str, Any], runner: Runner, server: Server
) -> Asked:
    content = with_images(given.prompt or "", given.images, "")["content"]
    state = runner.state
    if given.suffix:
        options = within(options, server.settings)
        most = options.get("max_tokens")
        prompt = await fill_prompt(runner, given.prompt or "", given.suffix, max_tokens=most)
        return Asked(Generate(prompt, options, form(given.format)))
    if given.raw or not (state.template or given.template):
        prompt = [*(given.context or ()), *([content] if isinstance(content, str) else content)]
        whole_prompt = content if prompt == [content] else prompt
        wanted = within(options, server.settings)
        return Asked(Generate(whole_prompt, wanted, form(given.format)))
    messages: list[Message] = [{"role": "system", "content": given.system}] if given.system else []
    wish = Wish(
        [*messages, {"role": "user", "content": content}],
        grammar=form(given.format),
        options=options,
        variables=thinking(given.think),
        template=as_jinja(given.template, "template") if given.template else None,
    )
    asked = await ask(runner, wish, server.settings)
    if given.context:
        if not isinstance(content, str):
            raise Refused("context: cannot be given with images; use /api/chat", param="context")
        assert isinstance(asked.generate.prompt, Chat)
        text = (await runner.render(Render(asked.generate.prompt))).text
        asked.generate.prompt = [*given.context, text]
    return asked


def _head(given: GenerateRequest) -> dict[str, Any]:
    return {"model": given.model, "created_at": now()}


def _done(answer: Answer, clock: Clock) -> dict[str, Any]:
    found = {"done": True, "done_reason": answer.ended.reason, **clock.of(answer.ended)}
    if min(answer.begun.prompt, default=0) >= 0:
        found["context"] = [*answer.begun.prompt, *answer.ids]
    return found


async def _send_text(call: Call, given: GenerateRequest, answer: Answer, clock: Clock) -> None:
    async with answer, call.stream(LINES) as out:
        async for said in answer:
            texts = [delta.text for delta in said.deltas if isinstance(delta, Content)]
            thoughts = [delta.text for delta in said.deltas if isinstance(delta, Reasoning)]
            found: dict[str, Any] = {"response": "".join(texts)}
            if thoughts:
                found["thinking"] = "".join(thoughts)
            if given.logprobs and said.token is not None:
                found["logprobs"] = logprobs([said.token])
            await out.send(line({**_head(given), **found, "done": False}))
        await out.send(line({**_head(given), "response": "", **_done(answer, clock)}))


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
    """Embed texts, in Ollama's shape."""
    given, clock = await call.decode(EmbedRequest), Clock()
    texts = [given.input] if isinstance(given.input, str) else given.input or []
    if len(texts) > limits.serve_prompts:
        raise Refused(
            f"input: {len(texts)} texts are more than the limit serve_prompts of "
            f"{limits.serve_prompts}",
            param="input",
        )
    wanted = Embed([*texts], truncate=given.truncate is not False, dimensions=given.dimensions)
    rows = await _rows(call, given, wanted, clock)
    await call.json(
        {
            "model": given.model,
            "embeddings": _listed(rows),
            **clock.so_far(),
            "prompt_eval_count": sum(rows.tokens),
        }
    )


async def embedding(call: Call) -> None:
    """Embed one text, in Ollama's older shape."""
    given = await call.decode(EmbeddingRequest)
    texts: list[Any] = [given.prompt] if given.prompt else []
    rows = await _rows(call, given, Embed(texts, normalize=False, truncate=True), Clock())
    await call.json({"embedding": next(iter(_listed(rows)), [])})


async def _rows(
    call: Call, given: EmbedRequest | EmbeddingRequest, wanted: Embed, clock: Clock
) -> Rows:
    _, loading = options_of(given.options)
    stays = keep_alive(given.keep_alive)
    async with call.server.models.use(given.model, keep_alive=stays, **loading) as runner:
        clock.loaded()
        return await runner.embed(wanted) if wanted.texts else Rows(b"", 0, 0, [])


def _listed(rows: Rows) -> list[list[float]]:
    return np.frombuffer(rows.data, "<f4").reshape(rows.count, rows.width).tolist()
