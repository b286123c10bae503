"""One loaded model serving many requests at once: sequences in a cache, batches through graphs."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

from ..errors import Busy, Error, GraphError, KvCacheFull, PromptError, TensorError
from ..kvcache import Cache, Remembers, new_cache
from ..ml import Backend, DType
from ..ml.indices import fewest_rows
from ..ml.storage import Weight
from ..model import Model, Step
from .graphs import Graphs, Trace, trace
from .slots import Slot, Slots
from .turns import Turns

if TYPE_CHECKING:
    from .generation import Generation

Ids = Sequence[int]
Work = tuple[Slot, list[int]]  # a piece of what is pending of a slot


class Engine:
    """Computes sequences of tokens.

    Args:
        context_length: positions a sequence may have.
        batch_size: the most tokens computed at once.
        parallel: how many sequences there may be at a time.

    Attributes:
        vocabulary: token ids are below this.
    """

    def __init__(
        self,
        model: Model,
        backend: Backend,
        *,
        kv_type: DType,
        context_length: int,
        batch_size: int,
        parallel: int,
    ):
        self.model, self.backend, self.kv_type = model, backend, kv_type
        self.context_length, self.batch_size = context_length, batch_size
        self.cache = self._new_cache(parallel, context_length)
        self.graphs = Graphs(model, backend, self.cache)
        self.vocabulary = 0
        self._worst: list[Trace] = []
        self.slots = Slots(self.cache, parallel)
        self._waiting: deque[Generation] = deque()
        self._turn = 0
        self._closed = False
        self.turns = Turns(self._step, self._refusal)

    def _new_cache(self, sequences: int, capacity: int) -> Cache:
        return new_cache(
            self.backend,
            self._declared_caches(),
            dtype=self.kv_type,
            sequences=sequences,
            capacity=capacity,
            max_batch=self.batch_size,
        )

    def _declared_caches(self) -> Sequence[Remembers]:
        layers = self.model.caches()
        if not isinstance(layers, list):
            raise TensorError(
                f"{type(self.model).__name__}.caches() returned {type(layers).__name__}; it must "
                "return a list with one entry a layer"
            )
        return layers

    # preparation

    def dry_trace(self) -> None:
        """Traces the batches that need most memory, the largest first; nothing is allocated.

        Raises:
            TensorError: an op refuses its operands, or output and input do not fit each other.
        """
        largest = self.cache.max_batch
        sizes = dict.fromkeys(self.backend.batches_to_reserve(largest))
        self._worst = [self._trace_reserved(n) for n in sizes]
        width = self._worst[0].output.dim(0)
        tables = [fewest_rows(t.ctx.graph, t.inputs) for t in self._worst]
        self.vocabulary = min((n for n in tables if n is not None), default=width)
        if width > self.vocabulary:
            raise TensorError(
                f"the model gives logits for {width} tokens but takes only {self.vocabulary}: its "
                "output and its token embedding do not belong together"
            )

    def weights_read(self) -> set[str]:
        """Names of the weights that the traced forwards read; between `dry_trace` and `reserve`."""
        return {
            source.name
            for t in self._worst
            for op in t.ctx.graph.schedule
            for source in op.sources
            if source is not None and isinstance(source.storage, Weight)
        }

    def allocate(self) -> None:
        """Allocates weights and cache, placed by the ops that read them."""
        self.backend.allocate(*(t.ctx.graph for t in self._worst))

    def reserve(self) -> None:
        """Allocates the compute buffers that these batches need."""
        for t in self._worst:
            self.backend.reserve(t.ctx.graph)
            t.close()
        self._worst = []

    def _trace_reserved(self, n: int) -> Trace:
        zeros = np.zeros(n, np.int32)
        step = Step(zeros, zeros, zeros, zeros[: min(n, len(self.slots.all))])
        self.cache.start_forward(step, reserve=True)
        return trace(self.model, self.backend, self.cache, step)

    def check_prompt(self, ids: Ids) -> np.ndarray:
        """The prompt as int32 [n].

        Raises:
            PromptError: empty, an id out of range, or no room for it.
        """
        if not len(ids):
            raise PromptError("the prompt is empty; give at least one token")
        array = np.asarray(ids)
        if array.min() < 0 or array.max() >= self.vocabulary:
            bad = next(i for i in ids if not 0 <= i < self.vocabulary)
            raise PromptError(f"token id {bad} is not in the vocabulary of {self.vocabulary}")
        if len(array) > self.context_length:
            raise PromptError(
                f"the prompt has {len(array)} tokens, the context {self.context_length}; "
                "load the model with a larger context_length, or shorten the prompt"
            )
        return array.astype(np.int32)

    # requests

    def submit(self, request: Generation) -> None:
        """Takes a request in; it is served as soon as a slot is free, first come, first served."""
        with self.turns.lock:
            if self._closed:
                raise GraphError("this model is closed; load it again")
            self._waiting.append(request)
            self.turns.changed()

    def cancel(self, request: Generation) -> None:
        """Ends a request, and frees its slot unless a step is under way, which then does; one that
        is done stays so."""
        with self.turns.lock:
            request.cancelled = True
            if not self.turns.stepping:
                self._sweep()
            self.turns.leave(request)

    def _refusal(self, request: Generation) -> Busy | None:
        """For a request that waits for a slot while all have requests of its own consumer."""
        if request not in self._waiting:
            return None
        if any(slot.holder != request.consumer for slot in self.slots.all):
            return None
        return Busy(
            f"all {len(self.slots.all)} sequences are in use by streams that were begun here and "
            "not finished; finish or close one, or load the model with a larger parallel"
        )

    def _step(self) -> bool:
        """One batch; False if there was nothing to compute."""
        with self.turns.lock:
            self._sweep()
            work = self._collect()
        results = self._compute(work)
        if self._poisoned([r for _, r in results if isinstance(r, np.ndarray)]):
            results = self._compute_apart()
        for slot, result in results:
            request = slot.request
            assert request is not None
            if isinstance(result, Exception):
                request.fail(result)
            elif result is not None:
                self._take(slot, request, result)
        with self.turns.lock:
            self._sweep()
        return bool(work)

    def _sweep(self) -> None:
        """Frees the slots of requests that are done, and gives free ones to those that wait."""
        for slot in self.slots.working:
            request = slot.request
            assert request is not None
            if request.done or request.cancelled:
                if request.failed:
                    self.cache.wipe(slot.sequence)
                    slot.tokens.clear()
                self.slots.release(slot)
        self._waiting = deque(r for r in self._waiting if not r.cancelled)
        while self._waiting:
            slot = self.slots.take(self._waiting[0].prompt.tolist())
            if slot is None:
                return
            slot.request = self._waiting.popleft()

    def _collect(self) -> list[Work]:
        """What goes into the next batch: single tokens first, then prompts in turn as far as there
        is room; one that had none goes first next time."""
        ready = [s for s in self.slots.working if s.request is not None and s.request.wants_more]
        self._turn += 1
        ready = sorted(
            (s for s in ready if self._room(s)),
            key=lambda s: (len(s.pending) > 1, (s.sequence - self._turn) % len(self.slots.all)),
        )
        work, room = [], self.batch_size
        for slot in ready:
            if not slot.pending:
                self._compute_last_again(slot)
            piece = slot.pending[:room]
            if len(piece):
                work.append((slot, piece))
                room -= len(piece)
        return work

    def _compute_last_again(self, slot: Slot) -> None:
        """Something like Ctrl-C came between the logits and the request they were for."""
        held = slot.tokens.copy()
        self.slots.cut(slot, len(held) - 1)
        slot.pending = held[len(slot.tokens) :]

    def _room(self, slot: Slot) -> bool:
        """Whether the context has a position left; else the sequence is shifted, or ends."""
        if len(slot.tokens) < self.context_length:
            return True
        request = slot.request
        assert request is not None
        if not request.context_shift:
            request.finish("length")
            return False
        self._shift(slot, request.num_keep)
        return True

    def _shift(self, slot: Slot, keep: int) -> None:
        """Forgets half of what need not be kept, the oldest."""
        keep = min(keep, self.context_length - 1)
        end = keep + max(1, (len(slot.tokens) - keep) // 2)
        rest = slot.tokens[:keep] + slot.tokens[end:]
        try:
            self.cache.remove(slot.sequence, keep, end)
        except Error:  # its cells are shared, or its cache cannot move
            self.cache.remove(slot.sequence, 0, None)
        if self.cache.can_resume(slot.sequence, len(rest)):
            slot.tokens = rest
        else:
            self.cache.remove(slot.sequence, 0, None)
            slot.tokens, slot.pending = [], rest + slot.pending

    def _compute(self, work: list[Work]) -> list[tuple[Slot, np.ndarray | Exception | None]]:
        """For each piece its logits float32 [vocabulary] where it is the last of what is pending.

        Where a batch of several fails each is computed alone: only those fail that do so then.
        """
        if not work:
            return []
        last = [len(piece) == len(slot.pending) for slot, piece in work]
        try:
            rows = iter(self._run(work))
        except Exception as error:
            if len(work) == 1:
                return [(work[0][0], error)]
            return [result for one in work for result in self._compute([one])]
        return [
            (slot, next(rows) if ends else None) for (slot, _), ends in zip(work, last, strict=True)
        ]

    def _run(self, work: list[Work]) -> np.ndarray:
        """Logits float32 [pieces that are last, vocabulary]; the slots then hold the tokens."""
        step = _step_of(work)
        try:
            self.cache.start_forward(step)
        except KvCacheFull:
            # What free slots remember may make room.
            for slot in self.slots.all:
                if slot.free:
                    self.slots.cut(slot, 0)
            self.cache.start_forward(step)
        try:
            rows = self.graphs.run(step)
        except BaseException:
            self.cache.undo(step)
            raise
        for slot, piece in work:
            slot.tokens += piece
            del slot.pending[: len(piece)]
        return rows

    def _poisoned(self, logits: list[np.ndarray]) -> bool:
        """Whether NaN of one sequence may have reached others.

        The fused attention skips masked cells; the plain one multiplies them by zero, which NaN
        survives.
        """
        shared = len(self.slots.working) > 1 and not self.backend.flash_attention
        return shared and not all(np.isfinite(row).all() for row in logits)

    def _compute_apart(self) -> list[tuple[Slot, np.ndarray | Exception | None]]:
        """Everything of every request anew, each in a cache that is empty but for those that went
        well before it."""
        working = self.slots.working
        for slot in self.slots.all:
            slot.tokens, slot.pending = [], slot.tokens + slot.pending
            self.cache.wipe(slot.sequence)
        results = []
        for slot in working:
            result = None
            while result is None:
                ((_, result),) = self._compute([(slot, slot.pending[: self.batch_size])])
            if isinstance(result, Exception) or not np.isfinite(result).all():
                self.cache.wipe(slot.sequence)
            results.append((slot, result))
        return results

    def _take(self, slot: Slot, request: Generation, logits: np.ndarray) -> None:
        """Hands a request its logits, and notes what it wants computed next."""
        try:
            token = request.accept(logits)
        except Exception as error:  # also of a sampler that is not ours
            request.fail(error)
            return
        if token is not None:
            slot.pending = [token]

    @contextmanager
    def slot(self) -> Iterator[int]:
        """An empty sequence of one's own for the length of the block.

        Raises:
            Busy: all are in use.
        """
        with self.turns.alone():
            slot = self.slots.take()
            if slot is None:
                raise Busy(
                    f"all {len(self.slots.all)} sequences are in use; finish or close a stream, or "
                    "load the model with a larger parallel"
                )
            slot.owner = threading.get_ident()
        try:
            yield slot.sequence
        finally:
            with self.turns.alone():
                self.slots.cut(slot, 0)
                self.slots.release(slot)

    def extend(self, sequence: int, tokens: np.ndarray, start: int) -> np.ndarray:
        """Appends tokens int32 [n] at positions start, start + 1, … to a sequence of one's own.

        Returns:
            The logits after the last token, float32 [vocabulary]; a copy.
        """
        with self.turns.alone():
            *_, rows = self._batches(self.graphs, sequence, tokens, start, every=False)
            logits = rows[0]
            if not (self.backend.flash_attention or np.isfinite(logits).all()):
                self.cache.wipe(sequence)
            return logits

    def all_logits(self, tokens: np.ndarray) -> np.ndarray:
        """Logits after every token, float32 [n, vocabulary], in a cache of their own."""
        return np.concatenate(list(self.every_logits(tokens)))

    def every_logits(self, tokens: np.ndarray) -> Iterator[np.ndarray]:
        """`all_logits` batch by batch."""
        with self.turns.alone():
            cache = self._new_cache(1, len(tokens))
            graphs = Graphs(self.model, self.backend, cache)
            try:
                yield from self._batches(graphs, 0, tokens, 0, every=True)
            finally:
                graphs.close()
                cache.close()

    def _batches(
        self, graphs: Graphs, sequence: int, tokens: np.ndarray, start: int, every: bool
    ) -> Iterator[np.ndarray]:
        for lo in range(0, len(tokens), self.batch_size):
            piece = tokens[lo : lo + self.batch_size]
            n = len(piece)
            last = lo + n == len(tokens)
            wanted = np.arange(n) if every else np.arange(n - 1, n) if last else np.arange(0)
            step = Step(
                piece,
                np.arange(start + lo, start + lo + n, dtype=np.int32),
                np.full(n, sequence, np.int32),
                wanted.astype(np.int32),
            )
            graphs.cache.start_forward(step)
            yield graphs.run(step)

    def close(self) -> None:
        """Frees graphs and cache, after a step under way has ended; requests that are not done
        fail. Idempotent."""
        with self.turns.alone():
            self._closed = True
            closed = GraphError("the model was closed while it generated")
            for request in (*self._waiting, *(s.request for s in self.slots.working)):
                if request is not None:
                    request.fail(closed)
            self._waiting.clear()
            self.graphs.close()
            self.cache.close()


def _step_of(work: list[Work]) -> Step:
    """The batch of several pieces; outputs are wanted of those that end what is pending."""
    tokens: list[int] = []
    positions: list[int] = []
    sequences: list[int] = []
    outputs: list[int] = []
    for slot, piece in work:
        start, n = len(slot.tokens), len(piece)
        tokens += piece
        positions += range(start, start + n)
        sequences += [slot.sequence] * n
        if n == len(slot.pending):
            outputs.append(len(tokens) - 1)
    return Step(*(np.array(x, np.int32) for x in (tokens, positions, sequences, outputs)))
