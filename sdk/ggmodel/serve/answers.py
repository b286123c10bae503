"""Answers of runners, read for any API: content, thoughts, calls of tools, and their counts."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from ..chat.functions import new_call_id
from ..chat.replies import CallArguments, CallBegun, Content, Delta, Reasoning
from ..errors import ComputeError
from .endpoint import some
from .monitoring import note_options
from .requests import ChatParams, Finished, PromptProgress, Started, Token, TokenEvent
from .tools import CustomInput

if TYPE_CHECKING:
    from typing_extensions import Self

    from ..chat.replies import ReplyFormat
    from .metrics import Metrics
    from .requests import Request, Runner


class ParsedToken(NamedTuple):
    """The contribution of one token, or the end of the text.

    Attributes:
        token: where log-probabilities were asked for.
        progress: a step of the prefill, and no token.
    """

    deltas: list[Delta]
    token: Token | None
    progress: PromptProgress | None = None


class Answer:
    """One answer of a runner: `async with Answer(…) as answer: async for token in answer`.

    Entering waits until the prompt is read: errors of it are raised there. Leaving cancels what
    has not come yet.

    Attributes:
        started: the prompt. finished: counts, once all is there.
        ids: of the tokens so far.
        called: a tool was called.
    """

    started: Started
    finished: Finished

    def __init__(
        self, runner: Runner, request: Request, metrics: Metrics, form: ReplyFormat | None = None
    ):
        """Begins.

        Args:
            form: of the model's replies; None if all text is content.
        """
        self.called = False
        self.ids: list[int] = []
        self._thought = self._unread = 0
        self._input: tuple[int, CustomInput] | None = None
        self._request, self._form = request, form
        self._metrics, self._model = metrics, runner.name
        self._events = runner.generate(request)
        self._closing = aclosing(self._events)
        self._times = [time.monotonic()]  # of the begin, and of each token

    async def __aenter__(self) -> Self:
        first = await anext(self._events, None)
        if not isinstance(first, Started):
            await self._closing.__aexit__(None, None, None)
            raise ComputeError("the runner's answer has no beginning")
        self.started = first
        under_way, options = self._metrics.under_way, self._request.options
        note_options(options)
        self._progress = under_way.begin(self._model, len(first.prompt), options)
        chat = self._request.prompt
        tools = chat.tools if isinstance(chat, ChatParams) else None
        self._custom = chat.custom if isinstance(chat, ChatParams) else []
        self._parser = self._form and self._form.parser(tools, first.ending)
        return self

    async def __aexit__(self, *error: object) -> None:
        self._metrics.under_way.end(self._model, self._progress)
        await self._closing.__aexit__(None, None, None)

    async def __aiter__(self) -> AsyncIterator[ParsedToken]:
        parser = self._parser
        async for event in self._events:
            if isinstance(event, TokenEvent):
                self._times.append(time.monotonic())
                text, token = event.text, event.token
                self._progress.decoded += 1
                if event.id >= 0:
                    self.ids.append(event.id)
                if parser is None:
                    deltas: list[Delta] = [Content(text)] if text else []
                else:
                    deltas = parser.feed(text) if text else []
                    self._unread += 1
                if deltas or token is not None:
                    yield self._noted(deltas, token)
            elif isinstance(event, PromptProgress):
                self._progress.prefilled = event.processed
                yield ParsedToken([], None, event)
            elif isinstance(event, Finished):
                end = [] if parser is None else parser.end(cut=event.reason == "length")
                rest = self._noted(end, None).deltas
                rest += self._input_rest()
                self._end(event)
                if rest:
                    yield ParsedToken(rest, None)
                return
        raise ComputeError("the runner's answer has no end")

    def _noted(self, deltas: list[Delta], token: Token | None) -> ParsedToken:
        if deltas:  # tokens that had none, such as marks, go with those that follow
            if any(isinstance(delta, Reasoning) for delta in deltas):
                self._thought += self._unread
            self._unread = 0
        return ParsedToken([one for delta in deltas for one in self._called(delta)], token)

    def _called(self, delta: Delta) -> list[Delta]:
        """A delta with the id of a call, and the text of a custom tool's call from its JSON."""
        if isinstance(delta, CallArguments):
            if self._input is None:
                return [delta]
            text = self._input[1].feed(delta.text)
            return [CallArguments(delta.index, text)] if text else []
        rest = self._input_rest()
        if isinstance(delta, CallBegun):
            self.called = True
            delta = delta if delta.id else replace(delta, id=new_call_id())
            if delta.name in self._custom:
                self._input = delta.index, CustomInput()
        return [*rest, delta]

    def _input_rest(self) -> list[Delta]:
        """The end of a custom tool's call, if one was under way."""
        if self._input is None:
            return []
        (index, reader), self._input = self._input, None
        text = reader.end()
        return [CallArguments(index, text)] if text else []

    def _end(self, finished: Finished) -> None:
        finished.reasoning_tokens = self._thought
        self.finished = finished
        self._metrics.generated(self._model, finished, self._times)


@dataclass
class ParsedCall:
    """A call of a tool. Arguments are JSON text, or the text of a custom tool."""

    id: str
    name: str
    arguments: str = ""


@dataclass
class Reply:
    """A whole answer.

    Attributes:
        ids: of all tokens. tokens: where log-probabilities were asked for.
        parsed: all of it in the order in which it came.
    """

    started: Started
    finished: Finished
    ids: list[int]
    parsed: list[ParsedToken]
    content: str
    reasoning: str
    calls: list[ParsedCall]

    @property
    def tokens(self) -> list[Token]:
        return [parsed.token for parsed in self.parsed if parsed.token is not None]


async def _whole(answer: Answer) -> Reply:
    parsed = [one async for one in answer]
    texts: dict[type, list[str]] = {Content: [], Reasoning: []}
    calls: dict[int, tuple[CallBegun, list[str]]] = {}
    for delta in (delta for one in parsed for delta in one.deltas):
        if isinstance(delta, CallBegun):
            calls[delta.index] = (delta, [])
        elif isinstance(delta, CallArguments):
            calls[delta.index][1].append(delta.text)
        else:
            texts[type(delta)].append(delta.text)
    content, reasoning = ("".join(text) for text in texts.values())
    called = [ParsedCall(one.id, one.name, "".join(text)) for one, text in calls.values()]
    return Reply(answer.started, answer.finished, answer.ids, parsed, content, reasoning, called)


async def all_whole(answers: Sequence[Answer]) -> list[Reply]:
    """The answers to a request, each to its end."""
    replies: dict[int, Reply] = {}

    async def complete(index: int) -> None:
        async with answers[index] as answer:
            replies[index] = await _whole(answer)

    await some(complete, len(answers))
    return [replies[index] for index in range(len(answers))]
