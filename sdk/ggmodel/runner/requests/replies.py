"""Replies of a chat: read from the text that a model writes, piece by piece and as a whole."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from ...chat.functions import new_call_id
from ...chat.schemas import value_of
from ...errors import GrammarError
from .completion import Completion, Piece
from .generation import AsyncStream, Generation, Stream

if TYPE_CHECKING:
    from typing_extensions import Self

    from ...chat import Reply, ToolCall


class ChatCompletion(Completion):
    """The reply to a chat. The text is its content, without reasoning and tool calls.

    Attributes:
        raw: all that the model wrote.
        reasoning: the model's reasoning; "" where it wrote none.
        tool_calls: functions that the model calls, each with its name, its arguments as JSON text,
            and an id.
        messages: of `run_tools`: the conversation, this reply included; else empty.
    """

    raw: Completion
    reasoning: str
    tool_calls: tuple[ToolCall, ...]
    messages: list[dict[str, Any]]

    def __new__(
        cls,
        raw: Completion,
        reply: Reply,
        kind: Any = None,
        messages: Sequence[Mapping[str, Any]] = (),
    ) -> Self:
        self = super().__new__(
            cls,
            reply.content,
            raw.tokens,
            raw.finish_reason,
            raw.usage,
            raw.logprobs,
            raw.top_logprobs,
        )
        self.raw, self.proof, self.captured = raw, raw.proof, raw.captured
        self._reply, self._kind = reply, kind
        self.reasoning, self.tool_calls = reply.reasoning, reply.calls
        self.messages = [dict(message) for message in messages]
        return self

    _reply: Reply
    _kind: Any

    def __getnewargs__(self) -> tuple[Any, ...]:
        return self.raw, self._reply, self._kind, self.messages

    @property
    def parsed(self) -> Any:
        """The value of the type that `response_format` named: a pydantic model, a dataclass, or
        what JSON is in Python. None without `response_format`.

        Raises:
            GrammarError: the text is no such value, as where `max_tokens` cut it off.
        """
        if self._kind is None:
            return None
        try:
            return value_of(self._kind, json.loads(self))
        except (ValueError, TypeError, RecursionError) as error:
            cut = self.finish_reason == "length"
            why = "it was cut off; raise max_tokens or context_length" if cut else str(error)
            raise GrammarError(f"the reply has not the form of response_format: {why}") from error

    def message(self) -> dict[str, Any]:
        """The reply as a message of the conversation, reasoning and calls included."""
        return self._reply.message()

    def _repr_html_(self) -> str:
        """The reply as notebooks show it."""
        from html import escape  # slow

        parts = [super()._repr_html_()]
        if self.reasoning:
            text = f'<div style="white-space: pre-wrap">{escape(self.reasoning)}</div>'
            parts.insert(0, f"<details><summary>reasoning</summary>{text}</details>")
        calls = (f"<code>{escape(c.name)}({escape(c.arguments)})</code>" for c in self.tool_calls)
        return "<br>".join([*parts, *calls])


@dataclass
class ReplyReader:
    """Reads one reply.

    Args:
        parser: a `ReplyParser`; None if all text is content.
        takes_end: whether the parser wants the text of the token that ended the reply.
        kind: the type of the value that the reply is.
    """

    generation: Generation
    parser: Any
    takes_end: Callable[[str], bool]
    kind: Any
    _deltas: list[Any] = field(default_factory=list)
    _pieces: list[Piece] = field(default_factory=list)
    _ended: bool = False
    _ids: list[str] = field(default_factory=list)  # of calls, should the model give none

    def whole(self) -> ChatCompletion:
        """Generates the reply to its end."""
        raw = self.generation.run()
        self._take(raw)
        self.end()
        return self._completion(raw)

    def feed(self, piece: Piece) -> Piece:
        """The content and the reasoning that a piece of the text adds."""
        self._pieces.append(piece)
        return self._piece(piece, self._take(piece))

    def end(self) -> Piece | None:
        """The rest, once; None if there is nothing."""
        if self.parser is None or self._ended:
            return None
        self._ended, generation = True, self.generation
        rest = self._take(generation.ending) if self.takes_end(generation.ending) else []
        deltas = rest + self.parser.end(cut=generation.finish_reason == "length")
        self._deltas += deltas[len(rest) :]
        if not deltas or not generation.tokens:
            return None
        return self._piece(Piece("", generation.tokens[-1]), deltas)

    @property
    def completion(self) -> ChatCompletion:
        """The reply, as far as it has come."""
        return self._completion(self.generation.completion(self._pieces))

    def _take(self, text: str) -> list[Any]:
        if self.parser is None:
            return []
        deltas = self.parser.feed(text) if text else []
        self._deltas += deltas
        return deltas

    def _piece(self, piece: Piece, deltas: list[Any]) -> Piece:
        if self.parser is None:
            return piece
        from ...chat import Reply

        added = Reply.of(one for one in deltas if hasattr(one, "text") and not _is_call(one))
        made = Piece(added.content, piece.token, piece.logprob, piece.top_logprobs)
        made.reasoning = added.reasoning
        return made

    def _completion(self, raw: Completion) -> ChatCompletion:
        from ...chat import Reply

        if self.parser is None:
            return ChatCompletion(raw, Reply(str(raw)), self.kind)
        reply = Reply.of(self._deltas)
        self._ids += [new_call_id() for _ in reply.calls[len(self._ids) :]]
        pairs = zip(reply.calls, self._ids, strict=False)
        calls = tuple(call if call.id else replace(call, id=id) for call, id in pairs)
        return ChatCompletion(raw, replace(reply, calls=calls), self.kind)


def _is_call(delta: Any) -> bool:
    return hasattr(delta, "index")


class ChatStream(Stream):
    """The content of a reply as it comes; reasoning is in each piece's `reasoning`."""

    def __init__(self, reader: ReplyReader):
        super().__init__(reader.generation)
        self._reader = reader

    def send(self, value: None = None, /) -> Piece:
        """The next piece."""
        try:
            return self._reader.feed(super().send(value))
        except StopIteration:
            rest = self._reader.end() if self._complete else None
            if rest is None:
                raise
            return rest

    @property
    def reply(self) -> ChatCompletion:
        """The reply, as far as it has come: whole after the last piece."""
        return self._reader.completion


class AsyncChatStream(AsyncStream):
    """`ChatStream` for coroutines."""

    def __init__(self, reader: ReplyReader):
        super().__init__(reader.generation)
        self._reader = reader

    async def asend(self, value: None = None, /) -> Piece:
        """The next piece."""
        try:
            return self._reader.feed(await super().asend(value))
        except StopAsyncIteration:
            rest = self._reader.end() if self._complete else None
            if rest is None:
                raise
            return rest

    @property
    def reply(self) -> ChatCompletion:
        """The reply, as far as it has come: whole after the last piece."""
        return self._reader.completion
