"""/v1/responses, with answers that are kept for later requests."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterable, Mapping
from contextlib import aclosing
from functools import cached_property
from typing import Any, Literal, TypeVar
from urllib.parse import parse_qs

import msgspec
from msgspec import structs
from starlette.routing import Route

from ....bounds import limits
from ...answers import Answer, ParsedToken, Reply
from ...background import BackgroundChat, EventLog
from ...chat import answer_chat
from ...chat_requests import Message, prepare
from ...endpoint import EVENTS, JSON, Answers, Call, Handler, named_event, route
from ...errors import Problem, Refused
from ...requests import ChatParams, Finished, GrammarSpec, Request, Runner, Started, Tokenize
from ...server import Server, Stored
from .inputs import AUTO, converted, schema
from .response_items import read_items
from .response_output import Output
from .response_schemas import (
    Format,
    Incomplete,
    ReasoningOptions,
    ResponseAnswer,
    ResponseCompleted,
    ResponseCreated,
    ResponseError,
    ResponseFailed,
    ResponseIncomplete,
    ResponseInProgress,
    ResponseRequest,
    ResponseStream,
)
from .response_tools import ResponseTools
from .schemas import (
    OPENAI,
    InputDetails,
    InputItems,
    InputTokens,
    OutputDetails,
    ResponseDeleted,
    ResponseUsage,
    new_id,
    usage,
)

T = TypeVar("T")
_WITH_LOGPROBS = "message.output_text.logprobs"


def routes(server: Server) -> list[Route]:
    base, answers = "/v1/responses", Answers(ResponseAnswer, {EVENTS: [ResponseStream]})

    def post(path: str, handler: Handler, answers: Answers) -> Route:
        return route("POST", path, handler, server, OPENAI, ResponseRequest, answers=answers)

    def kept(method: str, path: str, handler: Handler, kind: type) -> Route:
        return route(method, path, handler, server, OPENAI, answers=Answers(kind))

    return [
        *(  # the second is llama-server's
            post(path, create, answers) for path in (base, "/responses")
        ),
        post(f"{base}/input_tokens", count, Answers(InputTokens)),
        post("/responses/input_tokens", count, Answers(InputTokens)),
        route("GET", base + "/{id}", show, server, OPENAI, answers=answers),
        kept("DELETE", base + "/{id}", delete, ResponseDeleted),
        kept("GET", base + "/{id}/input_items", list_input, InputItems),
        kept("POST", base + "/{id}/cancel", cancel, ResponseAnswer),
    ]


async def create(call: Call) -> None:
    """Answer a conversation, and keep the answer for later requests."""
    chat = Responses(call, await call.decode(ResponseRequest))
    if not chat.params.background:
        return await answer_chat(chat)
    await call.server.background.begin(chat)
    if chat.events is not None:
        return await _follow(call, chat.events, 0)
    await show_kept(call, chat.id)


async def count(call: Call) -> None:
    """Count the tokens of a conversation."""
    params, server = await call.decode(ResponseRequest), call.server
    request = await Responses(call, params).request()
    async with server.models.use(params.model, keep_alive=params.keep_alive) as runner:
        await prepare(runner, request, server.settings)
        number = await prompt_tokens(runner, request)
    await call.json(InputTokens(number))


async def prompt_tokens(runner: Runner, request: Request) -> int:
    """Positions that the prompt of a chat takes, images included."""
    counted = msgspec.structs.replace(request, options={"max_tokens": 0}, grammar=None)
    async with aclosing(runner.generate(counted)) as events:
        async for one in events:
            if isinstance(one, Started):
                return len(one.prompt)
    tokens = await runner.tokenize(Tokenize(request.prompt))  # type: ignore[arg-type]
    return len(tokens.ids)


async def show(call: Call) -> None:
    """Give an answer that was kept, as far as it is, or its events after one of them."""
    fields = {name: values[-1] for name, values in parse_qs(call.query).items()}
    if fields.get("stream") != "true":
        return await show_kept(call, call.path["id"])
    events, after = _stored(call, call.path["id"]).events, fields.get("starting_after", "")
    if events is None:
        raise Refused(
            "stream: only a response that was made with `background` and `stream` has events; "
            "leave it out",
            param="stream",
        )
    if re.fullmatch("[0-9]{0,9}", after) is None:
        raise Refused("starting_after: is no number of an event", param="starting_after")
    await _follow(call, events, int(after or -1) + 1)


async def _follow(call: Call, events: EventLog, start: int) -> None:
    """Streams the events of an answer in the background."""
    call.interruption = None
    async with call.stream(), aclosing(events.follow(start)) as steps:
        await call.begin()
        async for frames in steps:
            await call.send_all(frames)


async def show_kept(call: Call, id: str) -> None:
    """Answers with one that was kept."""
    await call.reply(_stored(call, id).answer, JSON)


async def cancel(call: Call) -> None:
    """End an answer that is computed in the background."""
    id = call.path["id"]
    if not msgspec.json.decode(_stored(call, id).answer)["background"]:
        raise Refused("only a response that has `background` can be cancelled")
    await call.server.background.cancel(id)
    await show_kept(call, id)


async def delete(call: Call) -> None:
    """Forget an answer."""
    _stored(call, call.path["id"])
    await call.server.background.cancel(call.path["id"])
    call.server.stored.drop(call.path["id"], call.key)
    await call.json(ResponseDeleted(call.path["id"]))


async def list_input(call: Call) -> None:
    """List the items that the request of a kept answer had."""
    items = _stored(call, call.path["id"]).input
    ids = [item.get("id") for item in items]
    await call.json(InputItems(items, ids[0] if ids else None, ids[-1] if ids else None))


def _stored(call: Call, id: str) -> Stored:
    stored = call.server.stored.get(id, call.key)
    if stored is None:
        raise Refused(f"no response has the id {id!r:.100}, or no longer", 404)
    return stored


def _previous(call: Call, id: str | None) -> Stored | None:
    if id is None:
        return None
    stored = call.server.stored.get(id, call.key)
    if stored is None:
        raise Refused(
            f"previous_response_id: no response has the id {id!r:.100}, or no longer",
            param="previous_response_id",
            code="previous_response_not_found",
        )
    if stored.history is None:
        raise Refused(
            f"previous_response_id: {id!r:.100} has not ended, or ended without an answer",
            param="previous_response_id",
        )
    return stored


async def _history(params: ResponseRequest, call: Call, before: Stored | None) -> list[Message]:
    """The messages that were kept, and the new ones; without the instructions."""
    own = await converted(read_items(params.input, call), call, "input")
    return [*((before and before.history) or ()), *own]


def _options(params: ResponseRequest) -> dict[str, Any]:
    options: dict[str, Any] = {
        name: value
        for name in ("temperature", "top_p", "seed")
        if (value := getattr(params, name)) is not None
    }
    if params.max_output_tokens is not None:
        options["max_tokens"] = params.max_output_tokens
    if params.truncation == "auto":
        options["truncate"] = True
    if _WITH_LOGPROBS in (params.include or ()):
        options |= {"logprobs": True, "top_logprobs": params.top_logprobs or 0}
    return options


def _chat(params: ResponseRequest, history: list[Message], tools: Mapping[str, Any]) -> ChatParams:
    variables = dict(params.chat_template_kwargs or {})
    if params.reasoning is not None and params.reasoning.effort is not None:
        variables.setdefault("reasoning_effort", params.reasoning.effort)
        if params.reasoning.effort == "none":
            variables.setdefault("enable_thinking", False)
    first = [{"role": "system", "content": params.instructions}] if params.instructions else []
    return ChatParams(
        [*first, *history],
        variables=variables,
        parallel=params.parallel_tool_calls is not False,
        **tools,
    )


def _form(form: Format | None) -> GrammarSpec | None:
    if form is None or form.type == "text":
        return None
    if form.type == "json_object":
        return GrammarSpec("json")
    if form.schema is None:
        raise Refused("text.format.schema: is missing", param="text.format.schema")
    return schema(form.schema)


class Responses(BackgroundChat[ResponseRequest]):
    """A response, which is kept."""

    body = ResponseRequest

    def __init__(self, call: Call, params: ResponseRequest):
        super().__init__(call, params)
        self._tools = ResponseTools.of(params.tools, call)
        self.id = new_id("resp_")
        self._items, self._events = Output(self._tools.callees), 0
        call.interruption = self._failed
        if params.background and params.stream:
            self.events = EventLog()

    def loading(self) -> dict[str, Any]:
        return {"keep_alive": self.params.keep_alive}

    async def read(self) -> list[Request]:
        params = self.params
        if params.background and params.store is False:
            raise Refused(
                "background: is for answers that are kept; leave out store",
                param="background",
            )
        return [await self.request()]

    async def request(self) -> Request:
        """The request to the runner, as far as it can be made without it."""
        params, call = self.params, self.call
        self._before = _previous(call, params.previous_response_id)
        self._history = await _history(params, call, self._before)
        form = _form(params.text and params.text.format)
        if params.truncation != "auto":
            call.remedy = AUTO
        tools = self._tools.choose(params.tool_choice)
        return Request(_chat(params, self._history, tools), _options(params), form)

    async def whole(self, replies: list[Reply]) -> ResponseAnswer:
        (reply,) = replies
        for parsed in reply.parsed:
            self._items.take(parsed)
        return self._completed(reply.finished)

    async def first(self, index: int, answer: Answer) -> Iterable[ResponseStream]:
        return [
            ResponseCreated(response=self._response),
            ResponseInProgress(response=self._response),
        ]

    def chunks(self, index: int, parsed: ParsedToken) -> Iterable[ResponseStream]:
        return self._items.take(parsed)

    async def last(self, index: int, answer: Answer) -> Iterable[ResponseStream]:
        cut = answer.finished.reason == "length"
        events = self._items.end("incomplete" if cut else "completed")
        finished = self._completed(answer.finished)
        last = ResponseIncomplete if cut else ResponseCompleted
        return [*events, last(response=finished)]

    def frame(self, part: ResponseStream) -> bytes:
        part.sequence_number = self._events
        self._events += 1
        return named_event(part)

    def keep_begun(self) -> None:
        self._keep(self._response, None)

    def keep_ended(self, status: Literal["failed", "cancelled"], message: str) -> None:
        if status == "cancelled":
            return self._keep(structs.replace(self._response, status=status), None)
        failed = self._failure(message)
        self._keep(failed, None)
        if self.events is not None:
            self.events.add([self.frame(ResponseFailed(response=failed))])

    def _failed(self, problem: Problem) -> bytes:
        return self.frame(ResponseFailed(response=self._failure(problem.message)))

    def _failure(self, message: str) -> ResponseAnswer:
        error = ResponseError("server_error", message)
        return structs.replace(self._response, status="failed", error=error)

    @cached_property
    def _response(self) -> ResponseAnswer:
        params = self.params
        form = (params.text and params.text.format) or Format()
        return ResponseAnswer(
            id=self.id,
            created_at=int(time.time()),
            background=bool(params.background),
            instructions=_once(params.instructions),
            max_output_tokens=params.max_output_tokens,
            metadata=params.metadata or {},
            model=self.name,
            parallel_tool_calls=params.parallel_tool_calls is not False,
            previous_response_id=params.previous_response_id,
            reasoning=params.reasoning or ReasoningOptions(),
            store=params.store is not False,
            temperature=self._used("temperature"),
            text=_once({"format": {k: v for k, v in _fields(form) if v is not None}}),
            tool_choice=params.tool_choice or "auto",
            tools=_once(params.tools or []),
            top_p=self._used("top_p"),
            truncation=params.truncation or "disabled",
            user=params.user,
        )

    def _used(self, option: str) -> float | None:
        """An option of the request, else of the model; None where an engine does not tell it."""
        given = getattr(self.params, option)
        return self.runner.state.sampling.get(option) if given is None else given

    def _completed(self, finished: Finished) -> ResponseAnswer:
        """The complete answer, which is kept for later requests with its conversation."""
        cut, counts = finished.reason == "length", usage([finished])
        self._items.end("incomplete" if cut else "completed")
        response = structs.replace(
            self._response,
            status="incomplete" if cut else "completed",
            completed_at=None if cut else int(time.time()),
            incomplete_details=Incomplete("max_output_tokens") if cut else None,
            output=self._items.items,
            usage=ResponseUsage(
                input_tokens=counts.prompt_tokens,
                input_tokens_details=InputDetails(counts.prompt_tokens_details.cached_tokens),
                output_tokens=counts.completion_tokens,
                output_tokens_details=OutputDetails(finished.reasoning_tokens),
                total_tokens=counts.total_tokens,
            ),
        )
        if self.params.store is not False:
            self._keep(response, self._items.message())
        return response

    def _keep(self, response: ResponseAnswer, message: Message | None) -> None:
        """Keeps it, with the conversation once it has a message.

        Raises:
            Refused: it has no room, and is computed in the background.
        """
        call, inputs = self.call, self.params.input
        answer = msgspec.json.encode(response)
        items: Any = inputs
        if isinstance(inputs, str):
            content = [{"type": "input_text", "text": inputs}]
            items = [{"type": "message", "role": "user", "content": content}]
        items = [{"id": new_id("msg_"), **item} for item in items or ()]
        history = None if message is None else [*self._history, message]
        nbytes = len(answer) + len(call.body) + _nbytes(history)
        events = self.events
        if events is not None:  # those that take too much are forgotten first
            with_events = nbytes + events.nbytes + len(answer)
            events = None if with_events > limits.serve_stored_bytes else events
            nbytes = with_events if events else nbytes
        stored = Stored(call.key, answer, items, history, nbytes, events)
        if not call.server.stored.put(response.id, stored) and self.params.background:
            text = f"the answer and its conversation take {nbytes:,} bytes"
            raise Refused(f"{text}, more than the limit serve_stored_bytes", 413)


def _nbytes(value: Any) -> int:
    """About the memory of the texts and bytes in messages."""
    if isinstance(value, (dict, list)):
        return sum(map(_nbytes, value.values() if isinstance(value, dict) else value))
    return sys.getsizeof(value)


def _once(value: T) -> T:
    """A value that is written once: events repeat the tools, which may take megabytes."""
    return msgspec.Raw(msgspec.json.encode(value))  # type: ignore[return-value]


def _fields(form: Format) -> list[tuple[str, Any]]:
    return [(name, getattr(form, name)) for name in ("type", "name", "schema", "strict")]
