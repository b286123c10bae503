"""The scheduler: admits waiting requests to slots, schedules slots in batches, finishes
requests."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ...errors import Busy, Error
from ...kvcache import Cache
from .batches import Batches, Chunk
from .guessing import Speculation
from .inputs import InputTable
from .slots import Slot, Slots
from .step import verify

if TYPE_CHECKING:
    from .request import Request
    from .reuse import Placer

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
