"""Output of /v1/responses: items and events of an answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from msgspec import Struct, structs

from ....chat.replies import CallArguments, CallBegun, Content, Delta, Reasoning
from ...answers import ParsedToken
from ...chat_requests import Message, tool_call
from .response_tools import (
    Callee,
    CallItem,
    CustomToolCall,
    FunctionCall,
    OutputItem,
    Status,
    call_arguments,
    call_item,
    flat_name,
)
from .schemas import TokenLogprob, logprobs, new_id

_IDS = {"custom": "ctc_", "local_shell": "lsh_", "shell": "sh_", "apply_patch": "apc_"}


class OutputText(Struct, tag="output_text"):
    text: str
    annotations: list[dict[str, Any]]
    logprobs: list[TokenLogprob]


class ReasoningText(Struct, tag="reasoning_text"):
    text: str


class MessageItem(OutputItem, kw_only=True, tag="message"):
    role: Literal["assistant"] = "assistant"
    content: list[OutputText] = []


class ReasoningItem(OutputItem, kw_only=True, tag="reasoning"):
    summary: list[dict[str, Any]] = []
    content: list[ReasoningText] = []


AnswerItem = MessageItem | ReasoningItem | CallItem


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


class InputDelta(ItemEvent, kw_only=True, tag="response.custom_tool_call_input.delta"):
    delta: str


class InputDone(ItemEvent, kw_only=True, tag="response.custom_tool_call_input.done"):
    input: str


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
    | InputDelta
    | InputDone
)


class Output:
    """The items of an answer: thoughts, texts and calls in the order in which they come.

    Attributes:
        items: those that are complete, at the end all of them.

    Args:
        callees: the tools behind functions, by the names of these.
    """

    def __init__(self, callees: Mapping[str, Callee]) -> None:
        self.items: list[AnswerItem] = []
        self._callees = callees
        self._callee, self._calls = Callee("function", ""), list[dict[str, Any]]()
        self._item: AnswerItem | None = None
        self._texts: list[str] = []
        self._logprobs: list[TokenLogprob] = []

    def message(self) -> Message:
        """All items as the model's message of a conversation."""
        texts = [one.content[0].text for one in self.items if isinstance(one, MessageItem)]
        thoughts = [one.content[0].text for one in self.items if isinstance(one, ReasoningItem)]
        message: Message = {"role": "assistant", "content": "".join(texts)}
        if thoughts := "".join(thoughts):
            message["reasoning_content"] = thoughts
        if self._calls:
            message["tool_calls"] = self._calls
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
            callee = self._callees.get(delta.name) or Callee("function", delta.name)
            ids = {"id": new_id(_IDS.get(callee.type, "fc_")), "call_id": delta.id}
            events = self._opened(call_item(callee, ids))
            self._callee = callee
            return events
        if isinstance(delta, CallArguments):
            self._texts.append(delta.text)
            kind = {"function": ArgumentsDelta, "custom": InputDelta}.get(self._callee.type)
            return [kind(**self._place, delta=delta.text)] if kind else []
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
        if isinstance(item, ReasoningItem):
            item.content = [ReasoningText(text)]
            events.append(ReasoningTextDone(**self._place, text=text))
        elif isinstance(item, MessageItem):
            part = OutputText(text, [], self._logprobs)
            item.content = [part]
            events.append(OutputTextDone(**self._place, text=text, logprobs=self._logprobs))
            events.append(ContentPartDone(**self._place, part=part))
        else:
            item = self._called(item, text)
            if isinstance(item, FunctionCall):
                events.append(ArgumentsDone(**self._place, arguments=text, name=item.name))
            elif isinstance(item, CustomToolCall):
                events.append(InputDone(**self._place, input=text))
        item.status = status
        events.append(OutputItemDone(output_index=len(self.items), item=item))
        self.items.append(item)
        self._item, self._texts, self._logprobs = None, [], []
        return events

    def _called(self, item: CallItem, text: str) -> CallItem:
        """A call with all of its text."""
        callee = self._callee
        name = flat_name(callee.name, callee.namespace)
        self._calls.append(tool_call(item.call_id, name, call_arguments(callee, text)))
        return call_item(callee, {"id": item.id, "call_id": item.call_id}, text)
