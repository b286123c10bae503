"""A request, as the engine sees it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    import numpy as np

    from .guessing import Lookup


class Request(Protocol):
    """A sequence of tokens that grows by what its owner chooses from logits.

    The engine's thread calls the methods and writes `seated`, `reused`, `drafted` and `accepted`.
    Another thread may set `cancelled` at any time, and wakes the engine afterwards.

    Attributes:
        prompt: int32 [n], numbered by the engine's `InputTable`.
        context_shift: when the context is full, its older half is dropped.
        num_keep: inputs at the beginning that are never dropped.
        consumer: the thread or task that takes the results, or None.
        cancelled: no more is wanted.
        done: nothing more will come. failed: because of an error.
        lookup: drafts tokens; None without prompt lookup.
        seated: when it got a slot, by `time.perf_counter`; 0 before.
        reused: inputs of the prompt that a slot already held.
        drafted, accepted: draft tokens computed, and those that were accepted.
    """

    prompt: np.ndarray
    context_shift: bool
    num_keep: int
    consumer: object
    cancelled: bool
    lookup: Lookup | None
    seated: float
    reused: int
    drafted: int
    accepted: int

    @property
    def done(self) -> bool: ...

    @property
    def failed(self) -> bool: ...

    @property
    def wants_more(self) -> bool:
        """Whether another token is welcome now."""
        ...

    @property
    def left(self) -> float:
        """How many tokens may still come."""
        ...

    def accept(self, logits: np.ndarray, /) -> int | None:
        """Takes the logits float32 [vocabulary] after the latest token; the next step overwrites
        them. Returns the chosen token, or None at the end."""
        ...

    def finish(self, reason: Literal["stop", "length"], /) -> None:
        """Ends the request."""
        ...

    def fail(self, error: BaseException, /) -> None:
        """Ends the request with an error."""
        ...

    def release(self) -> None:
        """The request is done and has no slot: its owner may be told."""
        ...
