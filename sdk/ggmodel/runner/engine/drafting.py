"""Drafters of speculative decoding: they propose how sequences go on, and the model verifies it.

Each token of the answer is sampled from the model's own logits, with draft tokens or without; one
that equals its draft has saved a batch. So drafters may be wrong, or fail: the answer is the same.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import repeat
from typing import Protocol

from .lookup import Lookup
from .sequences import Request, Sequence

# Cost of each further token of a batch size never measured, as a part of one token.
_SLOPE = 0.3
# Decay of old measurements, so that a size is tried again.
_FORGET = 0.999
_SAMPLES = 5


class Costs:
    """Seconds of a batch by its number of tokens, as measured lately."""

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

    def measured(self, size: int) -> bool:
        """Whether this size was measured often enough for comparisons."""
        return len(self._samples.get(size, ())) >= 3

    def of(self, size: int) -> float:
        """Seconds of a batch of this size; another one must have been measured."""
        if size in self._medians:
            return self._at(size)
        below = sorted(s for s in self._medians if s < size)
        above = min((s for s in self._medians if s > size), default=0)
        if not below:
            return self._at(above)
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
        """The largest measured size."""
        return max(self._medians, default=0)


class Drafter(Protocol):
    """Proposes how sequences go on. All of it runs in the engine's thread."""

    def chances(self, sequence: Sequence, /) -> Iterator[float] | None:
        """For each further draft token: the chance of acceptance if those before are accepted. None
        where it cannot draft."""
        ...

    def seconds(self, lengths: Collection[int], /) -> float:
        """The time to draft so many tokens for each of some sequences."""
        ...

    def draft(self, lengths: Mapping[Sequence, int], /) -> dict[Sequence, list[int]]:
        """Draft tokens, at most as many as asked for."""
        ...

    def learn(self, sequence: Sequence, drafted: int, /) -> None:
        """Notes that so many draft tokens were computed; `Sequence.accepted` were accepted."""
        ...


class PromptLookup:
    """Drafts by the `Lookup` of each request: repetitions of prompt and answer."""

    def chances(self, sequence: Sequence) -> Iterator[float] | None:
        request = sequence.request
        lookup = None if request is None else request.lookup
        return lookup.chances() if lookup is not None and lookup.alike else None

    def seconds(self, lengths: Collection[int]) -> float:
        return 0.0

    def draft(self, lengths: Mapping[Sequence, int]) -> dict[Sequence, list[int]]:
        return {s: self._lookup(s).draft(n) for s, n in lengths.items()}

    def learn(self, sequence: Sequence, drafted: int) -> None:
        """Nothing: a lookup learns from the text."""

    def _lookup(self, sequence: Sequence) -> Lookup:
        assert sequence.request is not None and sequence.request.lookup is not None
        return sequence.request.lookup


_FIRST_RATE = 0.8  # acceptance rate that a request begins with
_RATE_WEIGHT = 12  # draft tokens that a rate counts as
_RECOVERY = 1 / 64  # share by which a rate nears the first one in each batch without drafts


@dataclass
class _Rate:
    """The acceptance rate of one request."""

    request: Request | None
    rate: float = _FIRST_RATE


class Rated:
    """Measures the acceptance rate of each request, which is that of its chances."""

    def __init__(self, sequences: int):
        self._rates = [_Rate(None) for _ in range(sequences)]

    def chances(self, sequence: Sequence) -> Iterator[float] | None:
        """See `Drafter`."""
        rate = self._rate(sequence)
        rate.rate += (_FIRST_RATE - rate.rate) * _RECOVERY
        room = self._room(sequence)
        return repeat(rate.rate, room) if room else None

    def _room(self, sequence: Sequence) -> int:
        """How many tokens can be drafted."""
        raise NotImplementedError

    def _rate(self, sequence: Sequence) -> _Rate:
        rate = self._rates[sequence.number]
        if rate.request is not sequence.request:
            rate = self._rates[sequence.number] = _Rate(sequence.request)
        return rate

    def learn(self, sequence: Sequence, drafted: int) -> None:
        """See `Drafter`."""
        rate, accepted = self._rate(sequence), sequence.accepted
        for right in [1] * accepted + [0] * (accepted < drafted):
            rate.rate += (right - rate.rate) / _RATE_WEIGHT
