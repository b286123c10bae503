"""The scheduler: admits requests to sequences, schedules batches, finishes requests."""

from __future__ import annotations

import time
from collections import deque
from itertools import islice

from ...errors import Busy, ConfigError, Error
from .inputs import InputTable
from .prefix_store import PrefixStore
from .saved import SavedPrefix
from .sequences import Request, Sequence, Sequences
from .speculation import Speculation
from .step import BatchPlanner, Chunk

_UNKNOWN = 0  # stands for a token that is yet to be sampled
_GROWTH = 512  # tokens of an answer that cells are allocated for, if it may be longer


class Scheduler:
    """The requests of one engine. All of it runs in the engine's thread.

    Attributes:
        waiting: requests without a sequence, first come, first served, but for those whose prefix
            is being read.
        store: of prefixes on disk; None without.
        speculates: the batch scheduled last has requests with a drafter.
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
        self.store: PrefixStore | None = None
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
            self._prefix(request)
            request.release()
        admitted = False
        while self.waiting and (request := self._next()) is not None:
            self.waiting.remove(request)
            self._begin(request)
            admitted = True
        return admitted

    def _next(self) -> Request | None:
        """The request that gets a sequence now."""
        free = {one.number for one in self._sequences.all if one.free}
        able = (one for one in self.waiting if free and (one.slot is None or one.slot in free))
        if self.store is None:
            return next(able, None)
        first = [*islice(able, len(free) + 1)]  # one more is read ahead
        for request in first:
            self.store.prepare(request)
        return next((one for one in first[: len(free)] if self.store.ready(one)), None)

    def _prefix(self, request: Request) -> SavedPrefix | None:
        """The prefix that was read for a request, which waits no longer."""
        return None if self.store is None else self.store.taken(request)

    def _finish(self, sequence: Sequence, request: Request) -> None:
        try:
            if request.failed:
                sequence.wipe()
            elif self.store is not None:
                self.store.ended(sequence)
        except Error:
            pass  # the device is lost, say: who comes next gets the error
        finally:
            try:
                sequence.release()
            finally:
                request.release()

    def _begin(self, request: Request) -> None:
        """Gives a request a free sequence; if that fails, the request does."""
        stored = self._prefix(request)
        try:
            if any(adapter.closed for adapter, _ in request.adapters):
                raise ConfigError("an adapter of the request was removed before it began")
            prompt = request.prompt.tolist()
            sequence = self._sequences.take(
                prompt, request.probe, request.adapters, stored, request.slot
            )
            assert sequence is not None
            sequence.request, request.reused = request, len(sequence.tokens)
            request.seated = time.perf_counter()
            if request.watches_prefill:
                request.prefilled(request.reused)
            sequence.allocate(len(request.prompt) + int(min(request.left, _GROWTH)))
        except BaseException as error:
            request.fail(error)  # nobody else knows it now
            request.release()
            if not isinstance(error, Error):
                raise

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
                self.speculates |= self._speculation.applies(request)
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
