"""A request, as the engine sees it, and the tokens that it drafts (prompt lookup)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    import numpy as np

# Acceptance rate after 2 to 7, 8, 16 and 32 equal tokens, measured on stories, programs,
# documents and edited versions of them. Each request starts from these and learns.
_RATES = (0.0, 0.0, 0.3, 0.5, 0.6, 0.65, 0.7, 0.75, 0.85, 0.9, 0.97)
_WEIGHT = 8  # draft tokens that a prior rate counts as


class Lookup:
    """Drafts the tokens that followed the latest earlier occurrence of the last two tokens.

    Trigrams match too rarely, single tokens too loosely. A match is followed as long as the text
    agrees with it: that drafts 95 of 100 tokens of edited texts right, a new search after each 83.

    Args:
        tokens: the text so far; negative ones stand for images and are never drafted.

    Attributes:
        alike: how many tokens before the end equal those before the draft; 0 without a draft.
    """

    def __init__(self, tokens: Sequence[int]):
        self._tokens = list(tokens[:-1])
        pairs = zip(self._tokens, self._tokens[1:], strict=False)
        self._ends = dict(zip(pairs, range(2, len(tokens)), strict=False))  # the latest of each
        self._rates = list(_RATES)
        self._source, self.alike = 0, 0
        self.push(tokens[-1])

    def push(self, token: int) -> None:
        """Notes how the text went on."""
        tokens = self._tokens
        if self.alike:
            self._learn(tokens[self._source] == token)
        tokens.append(token)
        end, pair = len(tokens), (tokens[-2] if len(tokens) > 1 else -1, token)
        if self.alike:
            self._source, self.alike = self._source + 1, self.alike + 1
        elif pair in self._ends:
            self._source, self.alike = self._ends[pair], 2
        self._ends[pair] = end

    def _learn(self, right: bool) -> None:
        at = _bucket(self.alike)
        self._rates[at] += (right - self._rates[at]) / _WEIGHT
        if not right:
            self.alike = 0

    def chances(self) -> Iterator[float]:
        """For each further draft token: the chance of acceptance if those before are accepted."""
        alike = self.alike
        while True:
            yield self._rates[_bucket(alike)]
            alike += 1

    def draft(self, n: int) -> list[int]:
        """Draft tokens for the next n; fewer before an image, none without a match."""
        if not self.alike:
            return []
        period = len(self._tokens) - self._source  # the repetition may reach into the draft
        guess = [self._tokens[self._source + i % period] for i in range(n)]
        return guess[: next((i for i, token in enumerate(guess) if token < 0), n)]


def _bucket(alike: int) -> int:
    return alike if alike < 8 else min(4 + alike.bit_length(), len(_RATES) - 1)


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
