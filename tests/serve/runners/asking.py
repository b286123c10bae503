"""Requests that tests make."""

from __future__ import annotations

from typing import Any

from ggmodel.serve.requests import Begun, ChatParams, Ended, Event, Piece, Request, Runner

Answer = tuple[Begun, list[Piece], Ended]
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
    assert isinstance(begun, Begun) and isinstance(ended, Ended)
    assert all(isinstance(piece, Piece) for piece in pieces)
    return begun, [piece for piece in pieces if isinstance(piece, Piece)], ended


def text_of(pieces: list[Piece]) -> str:
    return "".join(piece.text for piece in pieces)
