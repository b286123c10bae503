"""/v1/chat/completions piece by piece."""

from __future__ import annotations

from typing import Any

import msgspec

from ....chat.replies import CallArguments, CallBegun, Content, Delta, Reasoning
from ...answers import Answer, Said
from ...endpoint import Call
from ...requests import Ended, State
from ...streaming import Stream, event, together, written
from .shapes import head, logprobs, timings, usage

_encode = msgspec.json.Encoder().encode


class Chunks:
    """The chunks of a stream. Parts that all of them share are written once."""

    def __init__(self, model: str, state: State, with_usage: bool, with_logprobs: bool):
        self.with_usage, self._with_logprobs = with_usage, with_logprobs
        self._common = head("chatcmpl-", "chat.completion.chunk", model, state)
        first = _encode(self._common)[:-1] + b',"choices":[{"index":'
        self._head = b"data: " + first
        self._tail = b',"finish_reason":null}]}\n\n'
        if with_usage:
            self._tail = b',"finish_reason":null}],"usage":null}\n\n'

    def delta(self, index: int, delta: Any, tokens: bytes = b"null") -> bytes:
        """A chunk that adds something to a choice."""
        return b'%s%d,"delta":%s,"logprobs":%s%s' % (
            self._head,
            index,
            _encode(delta),
            tokens,
            self._tail,
        )

    def said(self, index: int, said: Said) -> bytes:
        """The chunks of what a token added."""
        tokens = b"null"
        if self._with_logprobs and said.token is not None:
            tokens = _encode(logprobs([said.token]))
        deltas = [_delta(one) for one in said.deltas] or [{}]
        first = self.delta(index, deltas[0], tokens)
        return b"".join([first, *(self.delta(index, one) for one in deltas[1:])])

    def end(self, index: int, reason: str, ended: Ended) -> bytes:
        """The last chunk of a choice."""
        choice = {"index": index, "delta": {}, "logprobs": None, "finish_reason": reason}
        found = {**self._common, "choices": [choice], "timings": timings(ended)}
        return event({**found, "usage": None} if self.with_usage else found)

    def usage(self, ended: list[Ended]) -> bytes:
        """The chunk with the counts of all choices."""
        counts = usage(ended, ended[0].prompt_tokens)
        return event({**self._common, "choices": [], "usage": counts})


async def send_chunks(call: Call, answers: list[Answer], chunks: Chunks) -> None:
    """Sends answers piece by piece."""
    ended: list[Ended] = []

    async def tell(index: int, out: Stream) -> None:
        async with answers[index] as answer:
            await out.send(chunks.delta(index, {"role": "assistant", "content": ""}))
            async for said in answer:
                await out.send(chunks.said(index, said))
            reason: str = answer.ended.reason
            if answer.called and reason == "stop":
                reason = "tool_calls"
            ended.append(answer.ended)
            await out.send(chunks.end(index, reason, answer.ended))

    async with call.stream() as out:
        await together(tell(index, out) for index in range(len(answers)))
        if chunks.with_usage:
            await out.send(chunks.usage(ended))
        await out.send(written(b"[DONE]"))


def _delta(delta: Delta) -> dict[str, Any]:
    if isinstance(delta, Content):
        return {"content": delta.text}
    if isinstance(delta, Reasoning):
        return {"reasoning_content": delta.text}
    if isinstance(delta, CallBegun):
        function = {"name": delta.name, "arguments": ""}
        call = {"index": delta.index, "id": delta.id, "type": "function", "function": function}
        return {"tool_calls": [call]}
    assert isinstance(delta, CallArguments)
    return {"tool_calls": [{"index": delta.index, "function": {"arguments": delta.text}}]}
