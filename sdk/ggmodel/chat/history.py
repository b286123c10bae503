"""Conversations that grow beyond the context."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from ggmodel.chat.messages import Message

M = TypeVar("M", bound=Message)


def fitting(messages: Sequence[M], fits: Callable[[list[M]], bool]) -> list[M]:
    """The messages without as many of the oldest turns as it takes.

    A turn is what follows a user's message up to the next. What stands before the first turn (the
    system's message) stays, and so does the last turn, even if it does not fit.
    """
    turns = [i for i, message in enumerate(messages) if message.get("role") == "user"]
    kept = list(messages)
    for start in turns[1:]:
        if fits(kept):
            break
        kept = [*messages[: turns[0]], *messages[start:]]
    return kept
