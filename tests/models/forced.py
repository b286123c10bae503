"""Requests whose tokens are given: their logits can be compared where two tokens nearly tie."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from ggmodel.runner import LoadedModel
from ggmodel.runner.engine.lookup import Lookup

DEADLINE = 60  # seconds


@dataclass(eq=False)
class Forced:
    """A `Request` that goes on with these tokens, whatever its logits are.

    Attributes:
        tokens: what follows the prompt.
        rows: the logits after the prompt and after each token, float32 [vocabulary].
    """

    prompt: np.ndarray
    tokens: Sequence[int]
    context_shift: bool = False
    num_keep: int = 0
    consumer: object = None
    slot: int | None = None
    cancelled: bool = False
    lookup: Lookup | None = None
    probe: Any = None
    adapters: Any = ()
    seated: float = 0.0
    reused: int = 0
    drafts: int = 0
    drafted: int = 0
    accepted: int = 0
    watches_prefill: bool = False
    rows: list[np.ndarray] = field(default_factory=list)
    error: BaseException | None = None
    ended: threading.Event = field(default_factory=threading.Event)

    def prefilled(self, inputs: int) -> None:
        pass

    @property
    def done(self) -> bool:
        return self.error is not None or len(self.rows) > len(self.tokens)

    @property
    def failed(self) -> bool:
        return self.error is not None

    @property
    def wants_more(self) -> bool:
        return not self.done

    @property
    def left(self) -> float:
        return len(self.tokens) + 1 - len(self.rows)

    def accept(self, logits: np.ndarray, /) -> int | None:
        self.rows.append(logits.copy())
        return None if self.done else self.tokens[len(self.rows) - 1]

    def foresee(self) -> Callable[[np.ndarray], int | None]:
        ahead = iter(self.tokens[len(self.rows) :])
        return lambda logits: next(ahead, None)

    def finish(self, reason: Literal["stop", "length"], /) -> None:
        self.fail(AssertionError(f"ended early: {reason}"))

    def fail(self, error: BaseException, /) -> None:
        self.error = error

    def release(self) -> None:
        self.ended.set()


def answers(
    model: LoadedModel, asked: Sequence[tuple[list[Any], Sequence[int]]], **options: Any
) -> list[np.ndarray]:
    """The logits after each prompt and after each of its given tokens, float32 [1 + tokens,
    vocabulary], of requests that come at once.

    Args:
        asked: prompts as `generate` takes them, and tokens.
        options: further attributes of the requests.
    """
    requests = [Forced(model.prompts.read(prompt), tokens, **options) for prompt, tokens in asked]
    for request in requests:
        model.engine.submit(request)
    for request in requests:
        assert request.ended.wait(DEADLINE)
        if request.error is not None:
            raise request.error
    return [np.stack(request.rows) for request in requests]
