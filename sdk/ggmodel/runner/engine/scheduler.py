"""The scheduler: admits requests to slots, schedules batches and draft tokens, finishes requests.

Speculative decoding by prompt lookup: draft tokens are those that followed an earlier occurrence of
the last tokens. Rejected ones are rolled back, so the answer is the same.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ...errors import Busy, Error
from ...kvcache import Cache
from .inputs import InputTable
from .sequences import Lookup, Slot, Slots
from .step import Batches, Chunk, verify

if TYPE_CHECKING:
    from .sequences import Request
    from .step import Placer

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
_PATIENCE = 1.25
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

    def known(self, size: int) -> bool:
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

    def drafts(self, ready: Sequence[Slot]) -> dict[Slot, list[int]]:
        """Draft tokens to compute in the next batch; none during prefill, whose tokens are
        certain. Starts a clock that `computed` stops."""
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

    def computed(self, chunks: Sequence[Chunk], recorded: int) -> None:
        """Accounts for the batch of the latest `drafts`, whose requests have their logits.

        Args:
            recorded: count of recorded graphs so far.
        """
        if not self._began or any(len(one.slot.tokens) < one.start for one in chunks):
            return  # or one has failed
        seconds, self._began = time.perf_counter() - self._began, 0.0
        size = sum(len(one.numbers) for one in chunks)
        if recorded == self._recorded:
            self.costs.note(size, seconds)
            seconds = self.costs.of(size)  # without a disturbance of this one
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


_UNKNOWN = 0  # stands for a token that is yet to be sampled
_ROOM = 512  # tokens of an answer that are expected, if it may be longer


class Scheduler:
    """The requests of one engine. All of it runs in the engine's thread.

    Attributes:
        waiting: requests without a slot, first come, first served.
        placer: set by the engine.
    """

    placer: Placer

    def __init__(
        self,
        cache: Cache,
        slots: Slots,
        inputs: InputTable,
        batches: Batches,
        speculation: Speculation,
        context_length: int,
    ):
        self._cache, self._slots, self._inputs = cache, slots, inputs
        self._batches, self._speculation = batches, speculation
        self._context_length = context_length
        self.waiting: deque[Request] = deque()
        self._turn = 0

    def sweep(self) -> bool:
        """Frees the slots of requests that are done, and gives free ones to those that wait.

        Returns:
            Whether a request got a slot.
        """
        for slot in self._slots.all:
            request = slot.request
            if request is not None and (request.done or request.cancelled):
                self._free(slot, request)
        for request in [one for one in self.waiting if one.done or one.cancelled]:
            self.waiting.remove(request)
            request.release()
        served = False
        while self.waiting and any(slot.free for slot in self._slots.all):
            self._serve(self.waiting.popleft())
            served = True
        return served

    def _free(self, slot: Slot, request: Request) -> None:
        try:
            self.placer.cancel()
            if request.failed:
                slot.start_over()
                self._cache.wipe(slot.sequence)
        except Error:
            pass  # the device is lost, say: whoever asks next is told
        finally:
            self._slots.release(slot)
            self._cache.expect(slot.sequence, 0)
            request.release()

    def _serve(self, request: Request) -> None:
        """Gives a request a free slot; if that fails, the request does."""
        try:
            self.placer.cancel()
            slot = self._slots.take(request.prompt.tolist())
            assert slot is not None
            slot.request, request.reused = request, len(slot.tokens)
            request.seated = time.perf_counter()
            self._cache.expect(slot.sequence, len(request.prompt) + int(min(request.left, _ROOM)))
        except Error as error:
            request.fail(error)
            request.release()

    def collect(self) -> list[Chunk]:
        """The chunks of the next batch; empty if no request wants more."""
        ready, pending = list[Slot](), list[tuple[Slot, int, list[int]]]()
        for slot in self._slots.all:
            request = slot.request
            if request is None or not request.wants_more:
                continue
            if len(slot.tokens) < self._context_length or self._made_room(slot, request):
                ready.append(slot)
                pending.append((slot, len(slot.tokens), slot.pending))
        if not pending:
            return []
        self._turn += 1  # who comes first
        drafts = self._speculation.drafts(ready)
        return self._batches.plan(pending, self._turn % len(self._slots.all), drafts)

    def upcoming(self, chunks: Sequence[Chunk]) -> list[Chunk]:
        """The batch after these chunks, its new tokens unknown; empty where that is uncertain."""
        if any(one.drafted for one in chunks):
            return []
        now = {one.slot: one for one in chunks}
        pending = []
        for slot in self._slots.working:
            if slot.request is None or not slot.request.wants_more:
                continue
            done = len(now[slot].numbers) if slot in now else 0
            length, rest = len(slot.tokens) + done, slot.pending[done:] or [_UNKNOWN]
            if length >= self._context_length:
                return []  # it ends, or is shifted
            pending.append((slot, length, rest))
        return self._batches.plan(pending, (self._turn + 1) % len(self._slots.all))

    def take(self, chunk: Chunk, result: np.ndarray | Exception | None) -> None:
        """Hands a request its logits, and notes what it wants computed next."""
        slot, request = chunk.slot, chunk.slot.request
        assert request is not None
        if isinstance(result, Exception):
            request.fail(result)
        elif result is not None:
            try:
                verify(slot, request, result, chunk.guesses)
            except BaseException as error:  # of a sampler that is not ours, say
                request.fail(error)
            finally:
                if len(slot.tokens) < chunk.start + len(chunk.numbers):
                    self._slots.rewind(slot, len(slot.tokens))

    def refuse_stuck(self) -> bool:
        """Ends a request that waits for a slot if every slot waits for a consumer that itself waits
        for a slot. That consumer then goes on.

        Returns:
            Whether a request got a slot.
        """
        holders = {slot.holder for slot in self._slots.all}
        stuck = {one.consumer for one in self.waiting} - {None}
        if stuck and holders <= stuck:
            request = next(one for one in self.waiting if one.consumer in holders)
            request.fail(
                Busy(
                    f"all {len(self._slots.all)} sequences are in use by streams that were begun "
                    "here and not finished; finish or close one, or load the model with a larger "
                    "parallel"
                )
            )
        return self.sweep()

    def fail_all(self, error: BaseException) -> None:
        """Ends every request with an error; they are told, whatever else fails."""
        requests = [*self.waiting, *(slot.request for slot in self._slots.working)]
        for request in requests:
            if request is not None:
                request.fail(error)
        try:
            self.sweep()
        finally:
            for request in requests:
                if request is not None:
                    request.release()

    def _made_room(self, slot: Slot, request: Request) -> bool:
        """A full context is shifted, or ends its request."""
        if not request.context_shift:
            request.finish("length")
            return False
        try:
            self._shift(slot, request.num_keep)
        except Exception as error:
            request.fail(error)
            return False
        return True

    def _shift(self, slot: Slot, keep: int) -> None:
        """Drops the older half of the positions after the first `keep`."""
        self.placer.cancel()
        keep = self._inputs.before_image(slot.tokens, min(keep, self._context_length - 1))
        half = keep + max(1, (len(slot.tokens) - keep) // 2)
        self._slots.forget(slot, keep, self._inputs.after_image(slot.tokens, half))
