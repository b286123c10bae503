"""Answers under way, each in a slot of its model."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import count
from typing import Any


@dataclass(eq=False)
class RunningAnswer:
    """An answer whose prompt has been read, as far as it has come.

    Attributes:
        number: of the answer since the server's start.
        prompt_tokens: positions of the prompt. prefilled: those that are computed, as far as is
            known. decoded: tokens of the answer so far.
        options: of the request, as runners take them.
        slot: None while it waits for a free one.
    """

    number: int
    prompt_tokens: int
    options: Mapping[str, Any]
    prefilled: int = 0
    decoded: int = 0
    slot: int | None = None


class UnderWay:
    """The answers of all models that are not complete."""

    def __init__(self) -> None:
        self._answers: defaultdict[str, list[RunningAnswer]] = defaultdict(list)
        self._numbers = count()

    def begin(self, model: str, prompt_tokens: int, options: Mapping[str, Any]) -> RunningAnswer:
        """Notes an answer of a model; `end` it."""
        answer = RunningAnswer(next(self._numbers), prompt_tokens, options)
        self._answers[model].append(answer)
        return answer

    def end(self, model: str, answer: RunningAnswer) -> None:
        """Forgets an answer."""
        self._answers[model].remove(answer)
        if not self._answers[model]:
            del self._answers[model]

    def slots(self, model: str, parallel: int) -> list[RunningAnswer | None]:
        """The answer in each slot of a model. The oldest answers have the slots, and keep them."""
        slots: list[RunningAnswer | None] = [None] * parallel
        running = self._answers.get(model, [])[:parallel]
        for answer in running:
            if answer.slot is not None:
                slots[answer.slot] = answer
        for answer in running:
            if answer.slot is None:
                answer.slot = slots.index(None)
                slots[answer.slot] = answer
        return slots

    def positions(self, model: str, parallel: int) -> int:
        """Positions of the KV cache that the answers in slots take."""
        taken = [one for one in self.slots(model, parallel) if one is not None]
        return sum(one.prompt_tokens + one.decoded for one in taken)
