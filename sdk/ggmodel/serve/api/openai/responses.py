"""/v1/responses, with answers that are kept for later requests."""

from __future__ import annotations

import time
from typing import Any, Literal

import msgspec
from msgspec import Struct
from starlette.routing import Route

from ...answers import Answer
from ...chat_requests import Asked, Message, Wish, ask, called, functions, tool_call
from ...endpoint import EVENTS, JSON, Answers, Call, Handler, event, route
from ...errors import Problem, Refused
from ...requests import Begun, GrammarSpec, Runner, Tokenize
from ...server import Kept, Server
from .inputs import converted, schema
from .response_items import Output, read_items
from .schemas import OPENAI, InputItems, InputTokens, ResponseAnswer, ResponseDeleted, new_id, usage

_WITH_LOGPROBS = "message.output_text.logprobs"


class Format(Struct):
    type: Literal["text", "json_object", "json_schema"] = "text"
    schema: dict[str, Any] | None = None
    name: str | None = None
    strict: bool | None = None


class TextOptions(Struct):
    format: Format | None = None
    verbosity: str | None = None


class ReasoningOptions(Struct):
    effort: str | None = None
    summary: str | None = None


class ResponseTool(Struct):
    type: str
    name: str | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Choice(Struct):
    type: str
    name: str | None = None


class ResponseRequest(Struct, kw_only=True):
    """A request. The last line is no field of OpenAI's."""

    input: str | list[dict[str, Any]] | None = None
    model: str | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    store: bool | None = None
    stream: bool | None = None
    background: bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    max_output_tokens: int | None = None
    top_logprobs: int | None = None
    include: list[str] | None = None
    text: TextOptions | None = None
    reasoning: ReasoningOptions | None = None
    tools: list[ResponseTool] | None = None
    tool_choice: Literal["none", "auto", "required"] | Choice | None = None
    parallel_tool_calls: bool | None = None
    truncation: Literal["auto", "disabled"] | None = None
    metadata: dict[str, str] | None = None
    user: str | None = None

    seed: int | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    keep_alive: float | None = None


def routes(server: Server) -> list[Route]:
    base = "/v1/responses"

    def post(path: str, handler: Handler, answers: Answers) -> Route:
        return route("POST", path, handler, server, OPENAI, ResponseRequest, answers=answers)

    def kept(method: str, path: str, handler: Handler, kind: type) -> Route:
        return route(method, path, handler, server, OPENAI, answers=Answers(kind))

    return [
        *(  # the second is llama-server's
            post(path, create, Answers(ResponseAnswer, [EVENTS])) for path in (base, "/responses")
        ),
        post(f"{base}/input_tokens", count, Answers(InputTokens)),
        kept("GET", base + "/{id}", show, ResponseAnswer),
        kept("DELETE", base + "/{id}", delete, ResponseDeleted),
        kept("GET", base + "/{id}/input_items", list_input, InputItems),
    ]


async def create(call: Call) -> None:
    """Answer a conversation, and keep the answer for later requests."""
    given = await call.decode(ResponseRequest)
    if given.background:
        raise Refused("background: is unsupported; wait, or stream", param="background")
    before = _kept(call, given.previous_response_id)
    history = await _history(given, call.server, before)
    server = call.server
    async with server.models.use(given.model, keep_alive=given.keep_alive) as runner:
        asked = await ask(runner, _wish(given, history, call), server.settings)
        name = called(given.model, runner.state)
        answer = Answer(runner, asked, server.metrics)
        responding = Responding(call, given, name)
        await (responding.stream(answer) if given.stream else responding.reply(answer))
    if given.store is not False:
        responding.keep(history, before)


async def count(call: Call) -> None:
    """Count the tokens of a conversation."""
    given = await call.decode(ResponseRequest)
    history = await _history(given, call.server, _kept(call, given.previous_response_id))
    async with call.server.models.use(given.model, keep_alive=given.keep_alive) as runner:
        number = await prompt_tokens(
            runner, await ask(runner, _wish(given, history, call), call.server.settings)
        )
    await call.json({"object": "response.input_tokens", "input_tokens": number})


async def prompt_tokens(runner: Runner, asked: Asked) -> int:
    """Positions that the prompt of a chat takes, images included."""
    from contextlib import aclosing

    generate = msgspec.structs.replace(asked.generate, options={"max_tokens": 0}, grammar=None)
    async with aclosing(runner.generate(generate)) as events:
        async for one in events:
            if isinstance(one, Begun):
                return len(one.prompt)
    found = await runner.tokenize(Tokenize(asked.generate.prompt))  # type: ignore[arg-type]
    return len(found.ids)


async def show(call: Call) -> None:
    """Give an answer that was kept."""
    await call.reply(_existing(call).answer, JSON)


async def delete(call: Call) -> None:
    """Forget an answer."""
    _existing(call)
    call.server.stored.drop(call.path["id"], call.key)
    await call.json({"id": call.path["id"], "object": "response", "deleted": True})


async def list_input(call: Call) -> None:
    """List the items that the request of a kept answer had."""
    items = _existing(call).input
    ids = [item.get("id") for item in items]
    ends = {"first_id": ids[0] if ids else None, "last_id": ids[-1] if ids else None}
    await call.json({"object": "list", "data": items, **ends, "has_more": False})


def _existing(call: Call) -> Kept:
    id = call.path["id"]
    found = call.server.stored.get(id, call.key)
    if found is None:
        raise Refused(f"no response has the id {id!r:.100}, or no longer", 404)
    return found


def _kept(call: Call, id: str | None) -> Kept | None:
    if id is None:
        return None
    found = call.server.stored.get(id, call.key)
    if found is None:
        raise Refused(
            f"previous_response_id: no response has the id {id!r:.100}, or no longer",
            param="previous_response_id",
            code="previous_response_not_found",
        )
    return found


async def _history(given: ResponseRequest, server: Server, before: Kept | None) -> list[Message]:
    """The messages that were kept, and the new ones; without the instructions."""
    own = await converted(read_items(given.input), server.media.of_request(), "input")
    return [*(before.history if before else ()), *own]


def _wish(given: ResponseRequest, history: list[Message], call: Call) -> Wish:
    options: dict[str, Any] = {
        name: value
        for name in ("temperature", "top_p", "seed")
        if (value := getattr(given, name)) is not None
    }
    if given.max_output_tokens is not None:
        options["max_tokens"] = given.max_output_tokens
    if given.truncation == "auto":
        options["truncate"] = True
    if _WITH_LOGPROBS in (given.include or ()):
        options |= {"logprobs": True, "top_logprobs": given.top_logprobs or 0}
    variables = dict(given.chat_template_kwargs or {})
    if given.reasoning is not None and given.reasoning.effort is not None:
        variables.setdefault("reasoning_effort", given.reasoning.effort)
        if given.reasoning.effort == "none":
            variables.setdefault("enable_thinking", False)
    tools = functions("OpenAI", given.tools, call)
    choice = given.tool_choice or "auto"
    if isinstance(choice, Choice) and choice.type != "function":
        raise Refused(
            f"tool_choice.type: {choice.type!a:.60} is unsupported; give 'auto', 'none', "
            "'required', or a function with its name",
            param="tool_choice.type",
        )
    messages = history
    if given.instructions:
        messages = [{"role": "system", "content": given.instructions}, *history]
    return Wish(
        messages,
        tools=[_schema_of(tool) for tool in tools],
        choice="required" if isinstance(choice, Choice) else choice,
        function=choice.name or None if isinstance(choice, Choice) else None,
        parallel=given.parallel_tool_calls is not False,
        strict=any(tool.strict for tool in tools),
        grammar=_form(given.text and given.text.format),
        options=options,
        variables=variables,
    )


def _form(form: Format | None) -> GrammarSpec | None:
    if form is None or form.type == "text":
        return None
    if form.type == "json_object":
        return GrammarSpec("json")
    if form.schema is None:
        raise Refused("text.format.schema: is missing", param="text.format.schema")
    return schema(form.schema)


def _schema_of(tool: ResponseTool) -> dict[str, Any]:
    function: dict[str, Any] = {
        "name": tool.name,
        "description": tool.description or "",
        "parameters": tool.parameters or {"type": "object", "properties": {}},
    }
    return {"type": "function", "function": function}


class Responding:
    """The answer to one request."""

    def __init__(self, call: Call, given: ResponseRequest, name: str):
        self._call, self._given, self._output = call, given, Output()
        options = given.reasoning or ReasoningOptions()
        form = (given.text and given.text.format) or Format()
        self._id = new_id("resp_")
        shown: dict[str, Any] = {
            "id": self._id,
            "object": "response",
            "created_at": int(time.time()),
            "completed_at": None,
            "status": "in_progress",
            "background": False,
            "error": None,
            "incomplete_details": None,
            "instructions": given.instructions,
            "max_output_tokens": given.max_output_tokens,
            "metadata": given.metadata or {},
            "model": name,
            "output": [],
            "parallel_tool_calls": given.parallel_tool_calls is not False,
            "previous_response_id": given.previous_response_id,
            "reasoning": {"effort": options.effort, "summary": options.summary},
            "store": given.store is not False,
            "temperature": given.temperature,
            "text": {"format": {k: v for k, v in _fields(form) if v is not None}},
            "tool_choice": given.tool_choice or "auto",
            "tools": given.tools or [],
            "top_p": given.top_p,
            "truncation": given.truncation or "disabled",
            "usage": None,
            "user": given.user,
        }
        # Written once: events repeat the tools, which may take megabytes.
        self._shown = {name: msgspec.Raw(msgspec.json.encode(v)) for name, v in shown.items()}

    async def reply(self, answer: Answer) -> None:
        """Sends it as a whole."""
        async with answer:
            async for said in answer:
                self._output.take(said)
        self._end(answer)
        await self._call.json(self._shown)

    async def stream(self, answer: Answer) -> None:
        """Sends it piece by piece."""
        sequence = 0

        def numbered(events: list[dict[str, Any]]) -> bytes:
            nonlocal sequence
            parts = []
            for one in events:
                parts.append(event({**one, "sequence_number": sequence}, one["type"]))
                sequence += 1
            return b"".join(parts)

        def failed(found: Problem) -> bytes:
            error = {"code": "server_error", "message": found.message}
            response = {**self._shown, "status": "failed", "error": error}
            return numbered([{"type": "response.failed", "response": response}])

        self._call.interruption = failed
        async with answer, self._call.stream() as out:
            for word in ("created", "in_progress"):
                begun = {"type": f"response.{word}", "response": self._shown}
                await out.send(numbered([begun]))
            async for said in answer:
                await out.send(numbered(self._output.take(said)))
            events = self._end(answer)
            await out.send(numbered(events))
            ended = {"type": f"response.{_status(answer)}", "response": self._shown}
            await out.send(numbered([ended]))

    def _end(self, answer: Answer) -> list[dict[str, Any]]:
        """Completes what is shown. Returns the events of that."""
        status = _status(answer)
        cut, events = status == "incomplete", self._output.end(status)
        counts = usage([answer.ended])
        shown: dict[str, Any] = {
            "status": status,
            "completed_at": None if cut else int(time.time()),
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "output": self._output.items,
            "usage": {
                "input_tokens": counts["prompt_tokens"],
                "input_tokens_details": {
                    "cached_tokens": counts["prompt_tokens_details"]["cached_tokens"]
                },
                "output_tokens": counts["completion_tokens"],
                "output_tokens_details": {"reasoning_tokens": answer.ended.reasoning_tokens},
                "total_tokens": counts["total_tokens"],
            },
        }
        self._shown |= {name: msgspec.Raw(msgspec.json.encode(v)) for name, v in shown.items()}
        return events

    def keep(self, history: list[Message], before: Kept | None) -> None:
        """Keeps the answer, and the conversation with it."""
        message: Message = {"role": "assistant", "content": self._output.content}
        if self._output.reasoning:
            message["reasoning_content"] = self._output.reasoning
        if calls := self._output.calls:
            message["tool_calls"] = [
                tool_call(one["call_id"], one["name"], one["arguments"]) for one in calls
            ]
        answer = msgspec.json.encode(self._shown)
        nbytes = len(answer) + len(self._call.body) + (before.nbytes if before else 0)
        given = self._given.input
        items: Any = given
        if isinstance(given, str):
            content = [{"type": "input_text", "text": given}]
            items = [{"type": "message", "role": "user", "content": content}]
        items = [{"id": new_id("msg_"), **item} for item in items or ()]
        kept = Kept(self._call.key, answer, items, [*history, message], nbytes)
        self._call.server.stored.put(self._id, kept)


def _status(answer: Answer) -> str:
    return "incomplete" if answer.ended.reason == "length" else "completed"


def _fields(form: Format) -> list[tuple[str, Any]]:
    return [(name, getattr(form, name)) for name in ("type", "name", "schema", "strict")]
