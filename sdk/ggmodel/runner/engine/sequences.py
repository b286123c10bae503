"""Sequences: a request as the engine sees it, and its slot with cells, tokens and drafts."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol

from ...errors import Error

if TYPE_CHECKING:
    import numpy as np

    from ...kvcache import Cache
    from .inputs import Histories, InputTable

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


@dataclass(eq=False)
class Slot:
    """One sequence of the cache.

    Attributes:
        tokens: the inputs in the cache, by position, numbered by the `InputTable`. They stay when
            a request ends.
        exact: number of leading tokens that a new computation would reproduce. Later ones remain
            from a context shift: their states have seen forgotten tokens.
        pending: inputs to compute next.
        request: the request it serves. owner: the thread that uses it without a request.
        used: time it was last taken; larger is later.
    """

    sequence: int
    tokens: list[int] = field(default_factory=list)
    exact: float = math.inf
    pending: list[int] = field(default_factory=list)
    request: Request | None = None
    owner: object = None
    used: int = 0

    def start_over(self, pending: Sequence[int] = ()) -> None:
        """Notes that the cache holds nothing of it."""
        self.tokens, self.pending, self.exact = [], list(pending), math.inf

    @property
    def free(self) -> bool:
        """Whether it can be given to a request."""
        return self.request is None and self.owner is None

    @property
    def holder(self) -> object:
        """The thread or task that has to act before the slot becomes free; None if it is free."""
        return self.owner if self.request is None else self.request.consumer


class Slots:
    """All slots of a cache.

    Args:
        histories: of their sequences; None for models without positions of their own.
    """

    def __init__(
        self, cache: Cache, inputs: InputTable, count: int, histories: Histories | None = None
    ):
        self._cache, self._inputs, self._histories = cache, inputs, histories
        self.all = [Slot(n) for n in range(count)]
        self._clock = 0

    @property
    def working(self) -> list[Slot]:
        """The slots that serve a request."""
        return [slot for slot in self.all if slot.request is not None]

    def take(self, prompt: Sequence[int] = ()) -> Slot | None:
        """A free slot with as much of the prompt as possible; None if all are in use. The rest of
        the prompt is in `pending`: at least one token, for there must be an output.

        The longest common prefix decides. A longer one in a busy slot is shared, at the cost of the
        free slot that was used least recently.
        """
        free = [slot for slot in self.all if slot.free]
        if not free:
            return None
        wanted = list(prompt[:-1])
        held_by = {s: self._held(s, wanted) for s in self.all}
        slot = max(free, key=lambda s: (held_by[s], -s.used))
        source = max(self.all, key=lambda s: held_by[s])
        held, shared = held_by[slot], held_by[source]
        if shared > held:
            slot = min(free, key=lambda s: s.used)
            slot.start_over()
            self._cache.copy_prefix(source.sequence, slot.sequence, shared)
            slot.tokens = source.tokens[:shared]
            if self._histories is not None:
                self._histories.copy(source.sequence, slot.sequence, shared)
        else:
            self.cut(slot, held)
        self._clock += 1
        slot.used = self._clock
        slot.pending = list(prompt[len(slot.tokens) :])
        return slot

    def cut(self, slot: Slot, length: int) -> None:
        """Forgets all positions from `length` on, and earlier ones as far as going on requires."""
        length = self._cut_at(slot, length)
        self._cache.remove(slot.sequence, length, None)
        del slot.tokens[length:]
        if length <= slot.exact:
            slot.exact = math.inf

    def forget(self, slot: Slot, begin: int, end: int) -> None:
        """Forgets the positions from begin to end; later ones move down. If they cannot, or too
        little is left to go on from, all of them are pending again."""
        rest, histories = slot.tokens[:begin] + slot.tokens[end:], self._histories
        slot.exact = min(slot.exact, begin)
        made = moves = None
        if histories is not None:
            made, moves = histories.shifted(slot.sequence, begin, end, slot.tokens[end:])
        try:
            # Caches of other packages may know no positions but places.
            self._cache.remove(slot.sequence, begin, end, *(() if moves is None else (moves,)))
            if self._cache.can_resume(slot.sequence, len(rest)):
                slot.tokens = rest
                if histories is not None and made is not None:
                    histories.place(slot.sequence, begin, made)
                return
        except Error:
            pass  # the cells are shared, or the cache cannot move them
        slot.start_over(rest + slot.pending)
        self._cache.remove(slot.sequence, 0, None)

    def _cut_at(self, slot: Slot, length: int) -> int:
        if length < self._cache.length(slot.sequence):
            return self._resumed(slot, length)
        return length

    def rewind(self, slot: Slot, length: int) -> None:
        """`cut`, but the forgotten tokens are pending again."""
        at = self._cut_at(slot, length)
        slot.tokens, slot.pending = slot.tokens[:at], slot.tokens[at:] + slot.pending
        self.cut(slot, at)

    def _held(self, slot: Slot, prompt: Sequence[int]) -> int:
        """The length of a prompt's prefix that a slot has."""
        n = min(common_prefix(slot.tokens, prompt), slot.exact)
        return self._resumed(slot, int(n))

    def _resumed(self, slot: Slot, length: int) -> int:
        """The latest position up to `length` from which the slot can continue otherwise."""
        return self._cache.resume_point(slot.sequence, self._inputs.before(slot.tokens, length))

    def release(self, slot: Slot) -> None:
        """Frees the slot; its tokens stay for a request that begins alike."""
        slot.request, slot.owner, slot.pending = None, None, []


def common_prefix(a: Sequence[object], b: Sequence[object]) -> int:
    """The length of the longest common prefix."""
    n = min(len(a), len(b))
    if a[:n] == b[:n]:
        return n
    return next(i for i in range(n) if a[i] != b[i])
