"""Requests that tests make."""

from __future__ import annotations

from typing import Any

from ggmodel.serve.requests import ChatParams, Event, Finished, Request, Runner, Started, TokenEvent

Answer = tuple[Started, list[TokenEvent], Finished]
PROMPT = "Once upon a time"
GREETING = ChatParams([{"role": "user", "content": "Tell me a story."}])


def generate(prompt: Any = PROMPT, **options: Any) -> Request:
    """A request for likeliest tokens."""
    own = {n: options.pop(n) for n in ("special", "grammar", "prompt_logprobs") if n in options}
    return Request(prompt, {"temperature": 0.0, "max_tokens": 16} | options, **own)


async def answered(runner: Runner, request: Request) -> Answer:
    """The events of a whole answer."""
    events: list[Event] = [event async for event in runner.generate(request)]
    begun, *pieces, ended = events
    assert isinstance(begun, Started) and isinstance(ended, Finished)
    assert all(isinstance(piece, TokenEvent) for piece in pieces)
    return begun, [piece for piece in pieces if isinstance(piece, TokenEvent)], ended


def text_of(pieces: list[TokenEvent]) -> str:
    return "".join(piece.text for piece in pieces)
