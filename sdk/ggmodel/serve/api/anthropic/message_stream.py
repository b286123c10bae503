"""/v1/messages piece by piece."""

from __future__ import annotations

import secrets
from collections.abc import Collection
from typing import Any

import msgspec

from ....chat.replies import CallArguments, CallBegun, Content, Delta, Reasoning
from ...answers import Answer
from ...endpoint import Call
from ...requests import Ended
from ...streaming import event, written
from .shapes import counts, stopped, usage

_encode = msgspec.json.Encoder().encode


def new_id() -> str:
    """The id of a message, which nobody can guess."""
    return f"msg_{secrets.token_hex(12)}"


class Events:
    """The events of one message, whose blocks begin and end as the answer changes its kind.

    Args:
        stops: the request's own stop strings.
    """

    def __init__(self, model: str, stops: Collection[str]):
        self._model, self._stops = model, stops
        self._index, self._open = -1, ""

    def begin(self, prompt_tokens: int) -> bytes:
        """The first event. How much of the prompt was in the cache comes with the last counts."""
        message = {
            "id": new_id(),
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": counts(prompt_tokens, 0, 0),
        }
        return _event("message_start", message=message)

    def delta(self, delta: Delta) -> bytes:
        """The events of what a token added."""
        if isinstance(delta, CallBegun):
            block = {"type": "tool_use", "id": delta.id, "name": delta.name, "input": {}}
            return self._begin(f"call {delta.index}", block)
        if isinstance(delta, CallArguments):
            kind, added = f"call {delta.index}", {"partial_json": delta.text}
            return self._in(kind, {}, {"type": "input_json_delta", **added})
        if isinstance(delta, Reasoning):
            block = {"type": "thinking", "thinking": "", "signature": ""}
            return self._in("thought", block, {"type": "thinking_delta", "thinking": delta.text})
        assert isinstance(delta, Content)
        block = {"type": "text", "text": ""}
        return self._in("text", block, {"type": "text_delta", "text": delta.text})

    def end(self, ended: Ended, called: bool) -> bytes:
        """The last events."""
        empty = b""
        if self._index < 0:
            empty = self._begin("text", {"type": "text", "text": ""})
        why = stopped(ended, called, self._stops)
        last = _event("message_delta", delta=why, usage=usage(ended))
        return empty + self._close() + last + _event("message_stop")

    def _in(self, kind: str, block: dict[str, Any], delta: dict[str, Any]) -> bytes:
        begun = b"" if self._open == kind else self._begin(kind, block)
        head = b'{"type":"content_block_delta","index":%d,"delta":' % self._index
        return begun + written(head + _encode(delta) + b"}", "content_block_delta")

    def _begin(self, kind: str, block: dict[str, Any]) -> bytes:
        closed = self._close()
        self._index, self._open = self._index + 1, kind
        return closed + _event("content_block_start", index=self._index, content_block=block)

    def _close(self) -> bytes:
        if not self._open:
            return b""
        signed = b""
        if self._open == "thought":
            delta = {"type": "signature_delta", "signature": ""}
            signed = _event("content_block_delta", index=self._index, delta=delta)
        self._open = ""
        return signed + _event("content_block_stop", index=self._index)


def _event(name: str, **data: Any) -> bytes:
    return event({"type": name, **data}, name)


_PING = _event("ping")


async def send_events(call: Call, answer: Answer, events: Events) -> None:
    """Sends an answer piece by piece."""
    async with answer, call.stream(ping=_PING) as out:
        await out.send(events.begin(len(answer.begun.prompt)) + _PING)
        async for said in answer:
            if said.deltas:
                await out.send(b"".join(map(events.delta, said.deltas)))
        await out.send(events.end(answer.ended, answer.called))
