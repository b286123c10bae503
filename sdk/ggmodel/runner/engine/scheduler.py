"""The scheduler: admits requests to sequences, schedules batches and drafts, finishes requests.

Speculative decoding by prompt lookup: draft tokens are those that followed an earlier occurrence of
the last tokens. Rejected ones are rolled back, so the answer is the same.
"""

from __future__ import annotations

import math
import time
from collections import deque

from ...errors import Busy, Error
from .inputs import InputTable
from .sequences import Lookup, Request, Sequence, Sequences
from .step import BatchPlanner, Chunk

# The sizes of batches with draft tokens: few, so that few graphs are recorded.
SIZES = (2, 3, 4, 6, 8, 12, 16, 24, 32)
# Cost of each further token of a batch size never measured, as a part of one token.
_SLOPE = 0.3
# Decay of old measurements, so that a size is tried again.
_FORGET = 0.999
_SAMPLES = 5
# Budget for unprofitable drafts: this many batches, and this share of all time.
_CREDIT, _ALLOWANCE = 4, 0.02
# Slowdown allowed to requests without lookup in a batch with draft tokens of others.
_SLOWDOWN = 1.25
# A smaller gain is within the error of measurement.
_WORTHWHILE = 1.05


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
        """Seconds of a batch of this size; a smaller one must have been measured."""
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
        """The largest measured size."""
        return max(self._medians, default=0)


class Speculation:
    """Decides how many tokens are drafted: the number with the most expected tokens a second, by
    the measured costs of batches and the acceptance rates.

    Expectations may be wrong, and a batch of a new size needs a graph. So the time saved and lost
    is accounted for, and nothing is drafted while the account is overdrawn.
    """

    def __init__(self, context_length: int, batch_size: int):
        self.costs = Costs()
        self._context_length, self._batch_size = context_length, batch_size
        self._began, self._recorded = 0.0, 0
        self._balance: float | None = None  # seconds

    def drafts(self, ready: list[Sequence]) -> dict[Sequence, list[int]]:
        """Draft tokens to compute in the next batch; none during prefill, whose tokens are
        certain. Starts a clock that `computed` stops."""
        drafts: dict[Sequence, list[int]] = {}
        self._began = 0.0
        if any(len(one.pending) > 1 for one in ready):
            return drafts
        self._began = time.perf_counter()
        size, gained = len(ready), float(len(ready))
        if not self.costs.measured(size) or (self._balance or 0.0) < 0:
            return drafts
        everyone = all(one.request is not None and one.request.lookup is not None for one in ready)
        longest = math.inf if everyone else _SLOWDOWN * self.costs.of(size)
        for sequence in ready:
            request = sequence.request
            if request is None or request.lookup is None or not request.lookup.alike:
                continue
            room = min(
                request.left - 1,
                self._context_length - len(sequence.tokens) - 1,
                self._batch_size - size,
            )
            n, gained = self._length(request.lookup, room, size, gained, longest)
            if n:
                drafts[sequence] = request.lookup.draft(n)
                size += len(drafts[sequence])
        return drafts

    def _length(
        self, lookup: Lookup, room: float, size: int, gained: float, longest: float
    ) -> tuple[int, float]:
        """The number of draft tokens to add to a batch of `size` tokens, of which `gained` are
        expected to be accepted, and the new expectation; the batch may take `longest` seconds."""
        best, rate = (0, gained), _WORTHWHILE * gained / self.costs.of(size)
        n, chance, chances = 0, 1.0, lookup.chances()
        # Not much larger than known sizes: the extrapolation may be far off.
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

    def computed(self, chunks: list[Chunk], recorded: int) -> None:
        """Accounts for the batch of the latest `drafts`, whose requests have their logits.

        Args:
            recorded: count of recorded graphs so far.
        """
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
            drafted = [one for one in chunks if one.drafted]
            accepted = sum(len(one.sequence.tokens) - one.start - 1 for one in drafted)
            saved = max(-most, plain * (1 + accepted / len(chunks)) - seconds)
        balance = most if self._balance is None else self._balance
        self._balance = min(most, balance + saved + _ALLOWANCE * seconds)


_UNKNOWN = 0  # stands for a token that is yet to be sampled
_GROWTH = 512  # tokens of an answer that cells are allocated for, if it may be longer


class Scheduler:
    """The requests of one engine. All of it runs in the engine's thread.

    Attributes:
        waiting: requests without a sequence, first come, first served.
        speculates: the batch scheduled last has requests with prompt lookup.
    """

    def __init__(
        self,
        sequences: Sequences,
        inputs: InputTable,
        planner: BatchPlanner,
        speculation: Speculation,
        context_length: int,
    ):
        self._sequences, self._inputs = sequences, inputs
        self._planner, self._speculation = planner, speculation
        self._context_length = context_length
        self.waiting: deque[Request] = deque()
        self.speculates = False
        self._turn = 0

    def admit(self) -> bool:
        """Frees the sequences of requests that are done, and gives free ones to those that wait.

        Returns:
            Whether a request got a sequence.
        """
        for sequence in self._sequences.all:
            request = sequence.request
            if request is not None and (request.done or request.cancelled):
                self._finish(sequence, request)
        for request in [one for one in self.waiting if one.done or one.cancelled]:
            self.waiting.remove(request)
            request.release()
        admitted = False
        while self.waiting and any(one.free for one in self._sequences.all):
            self._begin(self.waiting.popleft())
            admitted = True
        return admitted

    def _finish(self, sequence: Sequence, request: Request) -> None:
        try:
            if request.failed:
                sequence.wipe()
        except Error:
            pass  # the device is lost, say: who comes next gets the error
        finally:
            try:
                sequence.release()
            finally:
                request.release()

    def _begin(self, request: Request) -> None:
        """Gives a request a free sequence; if that fails, the request does."""
        try:
            sequence = self._sequences.take(request.prompt.tolist())
            assert sequence is not None
            sequence.request, request.reused = request, len(sequence.tokens)
            request.seated = time.perf_counter()
            if request.watches_prefill:
                request.prefilled(request.reused)
            sequence.allocate(len(request.prompt) + int(min(request.left, _GROWTH)))
        except Error as error:
            request.fail(error)
            request.release()

    def schedule(self) -> list[Chunk]:
        """The chunks of the next batch; empty if no request wants more."""
        ready, pending = list[Sequence](), list[tuple[Sequence, int, list[int]]]()
        self.speculates = False
        for sequence in self._sequences.all:
            request = sequence.request
            if request is None or not request.wants_more:
                continue
            if len(sequence.tokens) < self._context_length or self._made_room(sequence, request):
                ready.append(sequence)
                pending.append((sequence, len(sequence.tokens), sequence.pending))
                self.speculates |= request.lookup is not None
        if not pending:
            return []
        self._turn += 1  # who comes first
        drafts = self._speculation.drafts(ready) if self.speculates else {}
        return self._planner.plan(pending, self._turn % len(self._sequences.all), drafts)

    def upcoming(self, chunks: list[Chunk]) -> list[Chunk]:
        """The batch after these chunks, its new tokens unknown; empty where that is uncertain."""
        if any(one.drafted for one in chunks):
            return []
        now = {one.sequence: len(one.numbers) for one in chunks}
        pending = []
        for sequence in self._sequences.working:
            if sequence.request is None or not sequence.request.wants_more:
                continue
            done = now.get(sequence, 0)
            length, rest = len(sequence.tokens) + done, sequence.pending[done:] or [_UNKNOWN]
            if length >= self._context_length:
                return []  # it ends, or is shifted
            pending.append((sequence, length, rest))
        return self._planner.plan(pending, (self._turn + 1) % len(self._sequences.all))

    def refuse_stuck(self) -> bool:
        """Ends a request that waits for a sequence if each belongs to a consumer that itself waits
        for one. That consumer then goes on.

        Returns:
            Whether a request got a sequence.
        """
        holders = {one.holder for one in self._sequences.all}
        stuck = {one.consumer for one in self.waiting} - {None}
        if stuck and holders <= stuck:
            request = next(one for one in self.waiting if one.consumer in holders)
            request.fail(
                Busy(
                    f"all {len(self._sequences.all)} sequences are in use by streams that were "
                    "begun here and not finished; finish or close one, or load the model with a "
                    "larger parallel"
                )
            )
        return self.admit()

    def fail_all(self, error: BaseException) -> None:
        """Ends every request with an error; all are released, whatever else fails."""
        requests = [*self.waiting, *(one.request for one in self._sequences.working)]
        for request in requests:
            if request is not None:
                request.fail(error)
        try:
            self.admit()
        finally:
            for request in requests:
                if request is not None:
                    request.release()

    def _made_room(self, sequence: Sequence, request: Request) -> bool:
        """A full context is shifted, or ends its request."""
        if not request.context_shift:
            request.finish("length")
            return False
        try:
            self._shift(sequence, request.num_keep)
        except Exception as error:
            request.fail(error)
            return False
        return True

    def _shift(self, sequence: Sequence, keep: int) -> None:
        """Drops the older half of the positions after the first `keep`."""
        tokens = sequence.tokens
        keep = self._inputs.before_image(tokens, min(keep, self._context_length - 1))
        half = keep + max(1, (len(tokens) - keep) // 2)
        sequence.forget(keep, self._inputs.after_image(tokens, half))
