"""Shortens conversations to the context."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from .messages import Message

M = TypeVar("M", bound=Message)


def fitting(messages: Sequence[M], fits: Callable[[list[M]], bool]) -> list[M]:
    """Drops the oldest turns until the messages fit.

    A turn is a user's message and all that follows it up to the next one. Messages before the first
    turn (the system's) stay, and so does the last turn, even if it does not fit.
    """
    turns = [i for i, message in enumerate(messages) if message.get("role") == "user"]
    kept = list(messages)
    for start in turns[1:]:
        if fits(kept):
            break
        kept = [*messages[: turns[0]], *messages[start:]]
    return kept
