"""Items of /v1/responses: messages of a request, output and events of an answer."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import Struct, structs

from ....chat.replies import CallArguments, CallBegun, Content, Delta, Reasoning
from ...answers import ParsedToken
from ...chat_requests import Message, check_count, tool_call
from ...errors import Refused, wrong_body
from .inputs import ChatMessage, Function, ToolCall
from .schemas import TokenLogprob, logprobs, new_id

Item = dict[str, Any]


def read_items(items: str | list[Item] | None) -> list[ChatMessage]:
    """The messages of an input.

    Raises:
        Refused: an item is wrong, or of an unsupported type.
    """
    if isinstance(items, str):
        return [ChatMessage("user", items)]
    check_count(items or (), "input")
    messages: list[ChatMessage] = []
    reasoning: str | None = None
    for i, item in enumerate(items or ()):
        where = f"input[{i}]"
        kind = item.get("type") or "message"
        if kind == "message":
            message = _message(item, where)
        elif kind == "reasoning":
            reasoning = _reasoning(item)
            continue
        elif kind == "function_call":
            message = _call(item, where, messages)
        elif kind == "function_call_output":
            id = _text(item, "call_id", where)
            output = item.get("output")
            content = output if isinstance(output, (str, list)) else ""
            message = ChatMessage("tool", content, tool_call_id=id)
        else:
            raise Refused(
                f"{where}.type: {kind!r:.50} is unsupported; supported are message, reasoning, "
                "function_call and function_call_output",
                param=f"{where}.type",
            )
        if message is None:  # it went into the message before
            continue
        if message.role == "assistant" and reasoning:
            message.reasoning_content, reasoning = reasoning, None
        messages.append(message)
    return messages


def _message(item: Item, where: str) -> ChatMessage:
    try:
        return msgspec.convert(item, ChatMessage)
    except msgspec.ValidationError as error:
        wrong = wrong_body(error)
        param = f"{where}.{wrong.param}" if wrong.param else where
        raise Refused(f"{where}.{wrong}", param=param) from None


def _call(item: Item, where: str, before: list[ChatMessage]) -> ChatMessage | None:
    """A message with a call; None if the message before took it, since it is the model's, too."""
    arguments = item.get("arguments")
    call = ToolCall(
        Function(
            _text(item, "name", where), arguments if isinstance(arguments, (str, dict)) else None
        ),
        _text(item, "call_id", where),
    )
    last = before[-1] if before else None
    if last is not None and last.role == "assistant":
        last.tool_calls = [*(last.tool_calls or ()), call]
        return None
    return ChatMessage("assistant", tool_calls=[call])


def _reasoning(item: Item) -> str:
    parts = item.get("content") or item.get("summary") or ()
    texts = [part.get("text") for part in parts if isinstance(part, dict)]
    return "\n".join(text for text in texts if isinstance(text, str))


def _text(item: Item, name: str, where: str) -> str:
    value = item.get(name)
    if not isinstance(value, str):
        raise Refused(f"{where}.{name}: expected a text", param=f"{where}.{name}")
    return value


class OutputText(Struct, tag="output_text"):
    text: str
    annotations: list[dict[str, Any]]
    logprobs: list[TokenLogprob]


class ReasoningText(Struct, tag="reasoning_text"):
    text: str


Status = Literal["in_progress", "completed", "incomplete"]


class OutputItem(Struct, kw_only=True):
    """A part of an answer, with an id of its own."""

    id: str
    status: Status = "in_progress"


class MessageItem(OutputItem, kw_only=True, tag="message"):
    role: Literal["assistant"] = "assistant"
    content: list[OutputText] = []


class ReasoningItem(OutputItem, kw_only=True, tag="reasoning"):
    summary: list[dict[str, Any]] = []
    content: list[ReasoningText] = []


class FunctionCall(OutputItem, kw_only=True, tag="function_call"):
    """Arguments are JSON text."""

    call_id: str
    name: str
    arguments: str = ""


AnswerItem = MessageItem | ReasoningItem | FunctionCall


class Event(Struct, kw_only=True):
    """An event of a stream.

    Attributes:
        sequence_number: from 0.
    """

    sequence_number: int = 0


class OutputItemAdded(Event, kw_only=True, tag="response.output_item.added"):
    output_index: int
    item: AnswerItem


class OutputItemDone(OutputItemAdded, kw_only=True, tag="response.output_item.done"):
    pass


class ItemEvent(Event, kw_only=True):
    """An event of the item under way."""

    item_id: str
    output_index: int


class ContentEvent(ItemEvent, kw_only=True):
    content_index: int = 0


class ContentPartAdded(ContentEvent, kw_only=True, tag="response.content_part.added"):
    part: OutputText


class ContentPartDone(ContentPartAdded, kw_only=True, tag="response.content_part.done"):
    pass


class OutputTextDelta(ContentEvent, kw_only=True, tag="response.output_text.delta"):
    delta: str
    logprobs: list[TokenLogprob]


class OutputTextDone(ContentEvent, kw_only=True, tag="response.output_text.done"):
    text: str
    logprobs: list[TokenLogprob]


class ReasoningTextDelta(ContentEvent, kw_only=True, tag="response.reasoning_text.delta"):
    delta: str


class ReasoningTextDone(ContentEvent, kw_only=True, tag="response.reasoning_text.done"):
    text: str


class ArgumentsDelta(ItemEvent, kw_only=True, tag="response.function_call_arguments.delta"):
    delta: str


class ArgumentsDone(ItemEvent, kw_only=True, tag="response.function_call_arguments.done"):
    arguments: str
    name: str


OutputEvent = (
    OutputItemAdded
    | OutputItemDone
    | ContentPartAdded
    | ContentPartDone
    | OutputTextDelta
    | OutputTextDone
    | ReasoningTextDelta
    | ReasoningTextDone
    | ArgumentsDelta
    | ArgumentsDone
)


class Output:
    """The items of an answer: thoughts, texts and calls in the order in which they come.

    Attributes:
        items: those that are complete, at the end all of them.
    """

    def __init__(self) -> None:
        self.items: list[AnswerItem] = []
        self._item: AnswerItem | None = None
        self._texts: list[str] = []
        self._logprobs: list[TokenLogprob] = []

    def message(self) -> Message:
        """All items as the model's message of a conversation."""
        texts = [one.content[0].text for one in self.items if isinstance(one, MessageItem)]
        thoughts = [one.content[0].text for one in self.items if isinstance(one, ReasoningItem)]
        calls = [one for one in self.items if isinstance(one, FunctionCall)]
        message: Message = {"role": "assistant", "content": "".join(texts)}
        if thoughts := "".join(thoughts):
            message["reasoning_content"] = thoughts
        if calls:
            message["tool_calls"] = [tool_call(c.call_id, c.name, c.arguments) for c in calls]
        return message

    def take(self, parsed: ParsedToken) -> list[OutputEvent]:
        """Adds what a token added. Returns the events of that."""
        events: list[OutputEvent] = []
        tokens = [] if parsed.token is None else logprobs([parsed.token])
        for delta in parsed.deltas:
            events += self._taken(delta, tokens)
            tokens = []
        return events

    def _taken(self, delta: Delta, tokens: list[TokenLogprob]) -> list[OutputEvent]:
        if isinstance(delta, CallBegun):
            return self._opened(FunctionCall(id=new_id("fc_"), call_id=delta.id, name=delta.name))
        if isinstance(delta, CallArguments):
            self._texts.append(delta.text)
            return [ArgumentsDelta(**self._place, delta=delta.text)]
        events: list[OutputEvent] = []
        if isinstance(delta, Reasoning):
            if not isinstance(self._item, ReasoningItem):
                events = self._opened(ReasoningItem(id=new_id("rs_")))
            self._texts.append(delta.text)
            return [*events, ReasoningTextDelta(**self._place, delta=delta.text)]
        assert isinstance(delta, Content)
        if not isinstance(self._item, MessageItem):
            events = self._opened(MessageItem(id=new_id("msg_")))
            events.append(ContentPartAdded(**self._place, part=OutputText("", [], [])))
        self._texts.append(delta.text)
        self._logprobs += tokens
        return [*events, OutputTextDelta(**self._place, delta=delta.text, logprobs=tokens)]

    @property
    def _place(self) -> dict[str, Any]:
        return {"item_id": self._item and self._item.id, "output_index": len(self.items)}

    def _opened(self, item: AnswerItem) -> list[OutputEvent]:
        events = self.end("completed")
        self._item = item
        added = OutputItemAdded(output_index=len(self.items), item=structs.replace(item))
        return [*events, added]

    def end(self, status: Status) -> list[OutputEvent]:
        """Completes the item under way. Returns the events of that."""
        item = self._item
        if item is None:
            return []
        text, events = "".join(self._texts), list[OutputEvent]()
        if isinstance(item, FunctionCall):
            item.arguments = text or "{}"
            events.append(ArgumentsDone(**self._place, arguments=item.arguments, name=item.name))
        elif isinstance(item, ReasoningItem):
            item.content = [ReasoningText(text)]
            events.append(ReasoningTextDone(**self._place, text=text))
        else:
            part = OutputText(text, [], self._logprobs)
            item.content = [part]
            events.append(OutputTextDone(**self._place, text=text, logprobs=self._logprobs))
            events.append(ContentPartDone(**self._place, part=part))
        item.status = status
        events.append(OutputItemDone(output_index=len(self.items), item=item))
        self.items.append(item)
        self._item, self._texts, self._logprobs = None, [], []
        return events
