"""Speculative decoding: how many tokens are drafted for the next batch, by what and for whom.

Draft tokens are computed with those that are certain. Rejected ones are rolled back, so the answer
is the same.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from functools import partial

from .drafting import Costs, Drafter, PromptLookup
from .sequences import Request, Sequence
from .step import Chunk

# The sizes of batches with draft tokens: few, so that few graphs are recorded.
SIZES = (2, 3, 4, 6, 8, 12, 16, 24, 32)
# Budget for unprofitable drafts: this many batches, and this share of all time.
_CREDIT, _ALLOWANCE = 4, 0.02
# Slowdown allowed to requests without a drafter in a batch with draft tokens of others.
_SLOWDOWN = 1.25
# A smaller gain is within the error of measurement.
_WORTHWHILE = 1.05


class Speculation:
    """Decides how many tokens are drafted: the number with the most expected tokens a second, by
    the measured costs of batches and the acceptance rates.

    Expectations may be wrong, and a batch of a new size needs a graph. So the time saved and lost
    is accounted for, and nothing is drafted while the account is overdrawn.
    """

    def __init__(self, context_length: int, batch_size: int):
        self.costs = Costs()
        self.drafters: list[Drafter] = [PromptLookup()]
        self._context_length, self._batch_size = context_length, batch_size
        self._began, self._recorded = 0.0, 0
        self._drafting = 0.0  # seconds of the latest drafts, as far as they are known
        self._used: dict[Sequence, Drafter] = {}
        self._balance: float | None = None  # seconds

    def applies(self, request: Request) -> bool:
        """Whether a request has a drafter."""
        return len(self.drafters) > 1 or request.lookup is not None

    def drafts(self, ready: list[Sequence]) -> dict[Sequence, list[int]]:
        """Draft tokens to compute in the next batch; none during prefill, whose tokens are
        certain. Starts a clock that `computed` stops."""
        self._used, self._began, self._drafting = {}, 0.0, 0.0
        if any(len(one.pending) > 1 + one.replayed for one in ready):
            return {}
        drafts: dict[Sequence, list[int]] = {}
        for drafter, lengths in self._lengths(ready).items():
            drafted = {one: tokens for one, tokens in drafter.draft(lengths).items() if tokens}
            self._drafting += drafter.seconds([len(tokens) for tokens in drafted.values()])
            self._used |= dict.fromkeys(drafted, drafter)
            drafts |= drafted
        self._began = time.perf_counter()
        return drafts

    def _lengths(self, ready: list[Sequence]) -> dict[Drafter, dict[Sequence, int]]:
        """How many tokens each drafter is to draft."""
        lengths: dict[Drafter, dict[Sequence, int]] = {}
        size, gained = sum(len(one.pending) for one in ready), float(len(ready))
        if not self.costs.measured(len(ready)) or (self._balance or 0.0) < 0:
            return lengths
        everyone = all(one.request is not None and self.applies(one.request) for one in ready)
        longest = math.inf if everyone else _SLOWDOWN * self.costs.of(size)
        spent = 0.0  # seconds of the drafters before
        for sequence in ready:
            drafter, chances = self._drafter(sequence)
            if drafter is None or sequence.request is None:
                continue
            room = min(
                sequence.request.left - 1,
                self._context_length - len(sequence.tokens) - len(sequence.pending),
                self._batch_size - size,
            )
            own = lengths.get(drafter, {})
            drafted = tuple(own.values())
            spent -= drafter.seconds(drafted)
            drafting = partial(_seconds_of, drafter, spent, drafted)
            n, gained = self._length(chances, room, size, gained, longest, drafting)
            spent = drafting(n)
            if n:
                lengths[drafter] = {**own, sequence: n}
                size += n
        return lengths

    def _drafter(self, sequence: Sequence) -> tuple[Drafter | None, Iterator[float]]:
        """The first drafter that can draft for it, and its chances."""
        for drafter in self.drafters:
            chances = drafter.chances(sequence)
            if chances is not None:
                return drafter, chances
        return None, iter(())

    def _length(
        self,
        chances: Iterator[float],
        room: float,
        size: int,
        gained: float,
        longest: float,
        drafting: Callable[[int], float],
    ) -> tuple[int, float]:
        """The number of draft tokens to add to a batch of `size` tokens, of which `gained` are
        expected to be accepted, and the new expectation; the batch may take `longest` seconds, and
        `drafting` is the time of all drafts with so many more."""
        best = (0, gained)
        rate = _WORTHWHILE * gained / (self.costs.of(size) + drafting(0))
        n, chance = 0, 1.0
        # Not much larger than known sizes: the extrapolation may be far off.
        room = min(room, 2 * self.costs.largest - size)
        for larger in SIZES:
            if larger <= size:
                continue
            if larger - size > room or self.costs.of(larger) > longest:
                break
            while n < larger - size:
                chance *= next(chances, 0.0)
                n, gained = n + 1, gained + chance
            if not chance:
                break
            this = gained / (self.costs.of(larger) + drafting(n))
            if n and this > rate:
                best, rate = (n, gained), this
        return best

    def computed(self, chunks: list[Chunk], recorded: int) -> None:
        """Accounts for the batch of the latest `drafts`, whose requests have their logits.

        Args:
            recorded: count of recorded graphs so far.
        """
        for one in chunks:
            if one.drafted and one.sequence in self._used:
                self._used[one.sequence].learn(one.sequence, one.drafted)
        if not self._began or any(len(one.sequence.tokens) < one.start for one in chunks):
            return  # or one has failed
        seconds, self._began = time.perf_counter() - self._began, 0.0
        size = sum(len(one.numbers) for one in chunks)
        if recorded == self._recorded:
            self.costs.note(size, seconds)
            seconds = self.costs.of(size)  # without a disturbance of this one
        self._recorded = recorded
        if not self.costs.measured(len(chunks)):
            return
        plain = self.costs.of(len(chunks))
        most, saved = _CREDIT * plain, 0.0
        if size > len(chunks):
            accepted = sum(one.sequence.accepted for one in chunks if one.drafted)
            gained = plain * (1 + accepted / len(chunks))
            saved = max(-most, gained - seconds - self._drafting)
        balance = most if self._balance is None else self._balance
        self._balance = min(most, balance + saved + _ALLOWANCE * (seconds + self._drafting))


def _seconds_of(drafter: Drafter, spent: float, lengths: tuple[int, ...], n: int) -> float:
    """`spent`, and the time of a drafter for so many tokens each, and n of another sequence."""
    return spent + drafter.seconds((*lengths, n) if n else lengths)
