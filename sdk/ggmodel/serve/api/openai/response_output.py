"""Items of an answer of /v1/responses, and the events that tell how they grow."""

from __future__ import annotations

from typing import Any

from ....chat.replies import CallArguments, CallBegun, Content, Delta, Reasoning
from ...answers import Said
from .shapes import entry, new_id

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
