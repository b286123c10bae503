"""Speculation without a second model: an answer that repeats itself or its prompt is guessed ahead.

Prompt lookup: where the last tokens came before, the text may go on as it did then. Computing the
next token and some guesses in one batch takes less time than one after the other; guesses that turn
out wrong are taken back, so that the answer is the same and only its speed differs.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .batches import Chunk
    from .slots import Slot

# How often a guess is right after so many tokens alike (2 to 7, from 8, 16 and 32 on), in stories,
# programs and documents and in edited versions of them; each request goes on from there.
_RATES = (0.0, 0.0, 0.3, 0.5, 0.6, 0.65, 0.7, 0.75, 0.85, 0.9, 0.97)
_WEIGHT = 8  # of these, in guesses

# The sizes of batches with guesses: few, so that few graphs are recorded.
SIZES = (2, 3, 4, 6, 8, 12, 16, 24, 32)
# A batch that was never computed is taken to cost, for each token more, this part of one token...
_SLOPE = 0.3
# ... and one that was not for some time less than it did, so that it is tried again.
_FORGET = 0.999
_SAMPLES = 5
# What guesses may cost more than they save: so many batches, and this part of all time.
_CREDIT, _ALLOWANCE = 4, 0.02
# How much longer those who asked for no guesses may wait for a batch that has others'.
_PATIENCE = 1.25
# Below this gain, errors of measurement would decide.
_WORTHWHILE = 1.05


class Lookup:
    """Guesses how one text goes on: as it did where its last two tokens came before, latest.

    Looking for three would find less; for one, mostly what does not go on alike. A place that was
    found is followed as long as the text goes on like there: of edited texts that guesses 95 tokens
    of 100 rightly, looking anew after each token 83.

    Args:
        tokens: what there is of it; negative ones stand for images and are never guessed.

    Attributes:
        alike: so many tokens before the end are the same as those before the guess; 0 without one.
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
        """For each further token how likely its guess is right, given that those before are."""
        alike = self.alike
        while True:
            yield self._rates[_bucket(alike)]
            alike += 1

    def draft(self, n: int) -> list[int]:
        """The next n tokens as guessed; fewer where they would be images, or nothing is known."""
        if not self.alike:
            return []
        period = len(self._tokens) - self._source  # what is repeated may reach into the guess
        guess = [self._tokens[self._source + i % period] for i in range(n)]
        return guess[: next((i for i, token in enumerate(guess) if token < 0), n)]


def _bucket(alike: int) -> int:
    return alike if alike < 8 else min(4 + alike.bit_length(), len(_RATES) - 1)


class Costs:
    """Seconds that batches of so many tokens take, as measured lately."""

    def __init__(self):
        self._samples: dict[int, deque[float]] = {}
        self._medians: dict[int, tuple[float, int]] = {}  # and when
        self._clock = 0

    def note(self, size: int, seconds: float) -> None:
        """Notes a measurement."""
        self._clock += 1
        samples = self._samples.setdefault(size, deque(maxlen=_SAMPLES))
        samples.append(seconds)
        self._medians[size] = sorted(samples)[(len(samples) - 1) // 2], self._clock

    def known(self, size: int) -> bool:
        """Whether a batch of this size was measured often enough to compare others with it."""
        return len(self._samples.get(size, ())) >= 3

    def of(self, size: int) -> float:
        """Seconds for a batch of this size; at least a smaller one has been measured."""
        if size in self._medians:
            return self._at(size)
        below = sorted(s for s in self._medians if s < size)
        above = min((s for s in self._medians if s > size), default=0)
        if above:
            a, b = below[-1], above
        elif len(below) > 1:
            a, b = below[-2:]
        else:
            return self._at(below[0]) * (1 + _SLOPE * (size / below[0] - 1))
        at = self._at(a)
        return at + max(0.0, self._at(b) - at) * (size - a) / (b - a)

    def _at(self, size: int) -> float:
        median, when = self._medians[size]
        return median * _FORGET ** (self._clock - when)

    @property
    def largest(self) -> int:
        """Of the sizes that were measured."""
        return max(self._medians, default=0)


class Speculation:
    """Decides, for one engine, how much is guessed: as much as gives most tokens a second, by what
    batches have taken and by how often guesses have been right.

    Both may turn out otherwise, and a batch of a new size needs a graph: so accounts are kept of
    the time that guesses have saved and cost, and nothing is guessed while they are overdrawn.
    """

    def __init__(self, context_length: int, batch_size: int):
        self.costs = Costs()
        self._context_length, self._batch_size = context_length, batch_size
        self._began, self._recorded = 0.0, 0
        self._balance: float | None = None  # seconds

    def drafts(self, ready: Sequence[Slot]) -> dict[Slot, list[int]]:
        """Guesses to compute in the next batch. None while a prompt is read: its tokens are sure to
        be of use.

        A clock starts, which `computed` stops.
        """
        drafts: dict[Slot, list[int]] = {}
        self._began = 0.0
        for slot in ready:
            if slot.request is not None and slot.request.lookup is not None:
                break
        else:
            return drafts
        if any(len(slot.pending) > 1 for slot in ready):
            return drafts
        self._began = time.perf_counter()
        size, gained = len(ready), float(len(ready))
        if not self.costs.known(size) or (self._balance or 0.0) < 0:
            return drafts
        asked = all(slot.request is not None and slot.request.lookup is not None for slot in ready)
        longest = math.inf if asked else _PATIENCE * self.costs.of(size)
        for slot in ready:
            request = slot.request
            if request is None or request.lookup is None or not request.lookup.alike:
                continue
            room = min(
                request.left - 1,
                self._context_length - len(slot.tokens) - 1,
                self._batch_size - size,
            )
            n, gained = self._length(request.lookup, room, size, gained, longest)
            if n:
                drafts[slot] = request.lookup.draft(n)
                size += len(drafts[slot])
        return drafts

    def _length(
        self, lookup: Lookup, room: float, size: int, gained: float, longest: float
    ) -> tuple[int, float]:
        """How many guesses to add to a batch of `size` tokens, of which `gained` are expected to
        come true, and how many are with them; such that it takes `longest` seconds at most."""
        best, rate = (0, gained), _WORTHWHILE * gained / self.costs.of(size)
        n, chance, chances = 0, 1.0, lookup.chances()
        # Not much larger than what is known, for that may be far from what is expected.
        room = min(room, 2 * self.costs.largest - size)
        for larger in SIZES:
            if larger <= size:
                continue
            if larger - size > room or self.costs.of(larger) > longest:
                break
            while n < larger - size:
                chance *= next(chances)
                n, gained = n + 1, gained + chance
            if n and gained / self.costs.of(larger) > rate:
                best, rate = (n, gained), gained / self.costs.of(larger)
        return best

    def computed(self, chunks: Sequence[Chunk], recorded: int) -> None:
        """The batch of the latest `drafts` was computed, and its requests have what they wanted.

        Args:
            recorded: how many graphs there have been.
        """
        if not self._began or any(len(one.slot.tokens) < one.start for one in chunks):
            return  # or one has failed
        seconds, self._began = time.perf_counter() - self._began, 0.0
        size = sum(len(one.numbers) for one in chunks)
        if recorded == self._recorded:
            self.costs.note(size, seconds)
            seconds = self.costs.of(size)  # without what happened to disturb this one
        self._recorded = recorded
        if not self.costs.known(len(chunks)):
            return
        plain = self.costs.of(len(chunks))
        most, saved = _CREDIT * plain, 0.0
        if size > len(chunks):
            right = sum(len(one.slot.tokens) - one.start - 1 for one in chunks if one.drafted)
            saved = max(-most, plain * (1 + right / len(chunks)) - seconds)
        balance = most if self._balance is None else self._balance
        self._balance = min(most, balance + saved + _ALLOWANCE * seconds)
