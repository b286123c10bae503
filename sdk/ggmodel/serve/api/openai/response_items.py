"""Items of /v1/responses: messages of a request, output and events of an answer."""

from __future__ import annotations

from typing import Any

import msgspec

from ....chat.replies import CallArguments, CallBegun, Content, Delta, Reasoning
from ...answers import Said
from ...chat_requests import check_count
from ...errors import Refused, wrong_body
from .inputs import ChatMessage, Function, ToolCall
from .schemas import entry, new_id

Item = dict[str, Any]


def read_items(given: str | list[Item] | None) -> list[ChatMessage]:
    """The messages of an input.

    Raises:
        Refused: an item is wrong, or of an unsupported type.
    """
    if isinstance(given, str):
        return [ChatMessage("user", given)]
    check_count(given or (), "input")
    found: list[ChatMessage] = []
    reasoning: str | None = None
    for i, item in enumerate(given or ()):
        where = f"input[{i}]"
        kind = item.get("type") or "message"
        if kind == "message":
            message = _message(item, where)
        elif kind == "reasoning":
            reasoning = _reasoning(item)
            continue
        elif kind == "function_call":
            message = _call(item, where, found)
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
        found.append(message)
    return found


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


Events = list[dict[str, Any]]


class Output:
    """The items of an answer: thoughts, texts and calls in the order in which they come.

    Attributes:
        items: those that are complete, at the end all of them.
    """

    def __init__(self) -> None:
        self.items: list[dict[str, Any]] = []
        self._item: dict[str, Any] | None = None
        self._texts: list[str] = []
        self._logprobs: list[dict[str, Any]] = []

    @property
    def content(self) -> str:
        """All text."""
        parts = [one["content"][0]["text"] for one in self.items if one["type"] == "message"]
        return "".join(parts)

    @property
    def reasoning(self) -> str:
        """All thoughts."""
        parts = [one["content"][0]["text"] for one in self.items if one["type"] == "reasoning"]
        return "".join(parts)

    @property
    def calls(self) -> list[dict[str, Any]]:
        """All calls of functions."""
        return [one for one in self.items if one["type"] == "function_call"]

    def take(self, said: Said) -> Events:
        """Adds what a token added. Returns the events of that."""
        events: Events = []
        logprobs: list[dict[str, Any]] = []
        if said.token is not None:
            top = [entry(one) for one in said.token.top]
            logprobs = [{**entry(said.token), "top_logprobs": top}]
        for delta in said.deltas:
            events += self._taken(delta, logprobs)
            logprobs = []
        return events

    def end(self, status: str) -> Events:
        """Completes the last item."""
        return self._closed(status)

    def _taken(self, delta: Delta, logprobs: list[dict[str, Any]]) -> Events:
        if isinstance(delta, CallBegun):
            call = {"type": "function_call", "call_id": delta.id, "name": delta.name}
            return self._opened({"id": new_id("fc_"), **call, "arguments": ""})
        if isinstance(delta, CallArguments):
            self._texts.append(delta.text)
            return [self._event("function_call_arguments.delta", delta=delta.text)]
        events: Events = []
        if isinstance(delta, Reasoning):
            if self._kind != "reasoning":
                events = self._opened(
                    {"id": new_id("rs_"), "type": "reasoning", "summary": [], "content": []}
                )
            self._texts.append(delta.text)
            more = self._event("reasoning_text.delta", content_index=0, delta=delta.text)
            return [*events, more]
        assert isinstance(delta, Content)
        if self._kind != "message":
            item = {"id": new_id("msg_"), "type": "message", "role": "assistant", "content": []}
            events = self._opened(item)
            part = _text_part("", [])
            events.append(self._event("content_part.added", content_index=0, part=part))
        self._texts.append(delta.text)
        self._logprobs += logprobs
        more = {"content_index": 0, "delta": delta.text, "logprobs": logprobs}
        return [*events, self._event("output_text.delta", **more)]

    @property
    def _kind(self) -> str:
        return "" if self._item is None else self._item["type"]

    def _event(self, name: str, /, **more: Any) -> dict[str, Any]:
        item = self._item or {}
        place = {"item_id": item.get("id"), "output_index": len(self.items)}
        return {"type": f"response.{name}", **place, **more}

    def _opened(self, item: dict[str, Any]) -> Events:
        events = self._closed("completed")
        self._item = {**item, "status": "in_progress"}
        added = {"type": "response.output_item.added", "output_index": len(self.items)}
        return [*events, {**added, "item": dict(self._item)}]

    def _closed(self, status: str) -> Events:
        """Completes the item under way."""
        if self._item is None:
            return []
        text, item = "".join(self._texts), self._item
        events: Events = []
        if item["type"] == "function_call":
            item["arguments"] = text or "{}"
            done = {"arguments": item["arguments"], "name": item["name"]}
            events.append(self._event("function_call_arguments.done", **done))
        elif item["type"] == "reasoning":
            item["content"] = [{"type": "reasoning_text", "text": text}]
            events.append(self._event("reasoning_text.done", content_index=0, text=text))
        else:
            part = _text_part(text, self._logprobs)
            item["content"] = [part]
            done = {"text": text, "logprobs": self._logprobs}
            events.append(self._event("output_text.done", content_index=0, **done))
            events.append(self._event("content_part.done", content_index=0, part=part))
        item["status"] = status
        end = {"type": "response.output_item.done", "output_index": len(self.items), "item": item}
        self.items.append(item)
        self._item, self._texts, self._logprobs = None, [], []
        return [*events, end]


def _text_part(text: str, logprobs: list[dict[str, Any]]) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}
