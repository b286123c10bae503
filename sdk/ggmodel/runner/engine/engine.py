"""One loaded model serving many requests at once: sequences in a cache, batches through graphs."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

from ...errors import Busy, Error, GraphError, KvCacheFull, PromptError, TensorError, Unsupported
from ...kvcache import Cache, CacheSpec, new_cache
from ...ml import Backend, DType
from ...model import Model, Step
from ..loading.reservation import Reservation
from .batches import Batches, Prepared, Work
from .graphs import Forward, Graphs
from .guessing import Speculation, verify
from .inputs import MultimodalStore, Places
from .reuse import Steady
from .slots import Slot, Slots
from .turns import Turns

if TYPE_CHECKING:
    from ..requests.generation import Generation

_UNKNOWN = 0  # stands for a token that is yet to be sampled

Result = tuple[Work, np.ndarray | Exception | None]


class Engine:
    """Computes sequences of tokens.

    Args:
        context_length: positions a sequence may have.
        batch_size: the most tokens computed at once.
        parallel: how many sequences there may be at a time.

    Attributes:
        vocabulary: token ids are below this.
        single_step: a text has to be computed in one batch; nothing can be generated.
        can_rewind: the latest positions of a sequence can be taken back.
        images, places: what is known of images, and of the inputs that stand for them.
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
        specs = self._declared_caches()
        self.single_step = any(s.single_step for s in specs)
        self.can_rewind = all(s.can_rewind for s in specs)
        self.turns = Turns(self._step, self._refusal)
        self.images = MultimodalStore(model, backend, self._computing)
        self.places = Places(any(s.stores_images for s in specs), model.bidirectional_images)
        self.worst = Reservation(model, backend, self.images, self.places)
        self.places.forget(())
        # A group of an image and a token of every other sequence fit together.
        most = max(batch_size, self.worst.largest_group + parallel - 1)
        self._batches = Batches(self.places, batch_size, most, self.worst.rows)
        self.cache = self._new_cache(parallel, context_length, most)
        self.graphs = Graphs(model, backend, self.cache)
        self._steady = Steady(self.cache)
        self.speculation = Speculation(context_length, batch_size)
        self.vocabulary = 0
        self.slots = Slots(self.cache, self.places, parallel)
        self._waiting: deque[Generation] = deque()
        self._prepared: Prepared | None = None
        self._turn = 0
        self._midway = False  # slots and cache may disagree: the next step looks
        self._closed = False

    def _new_cache(self, sequences: int, capacity: int, max_batch: int) -> Cache:
        return new_cache(
            self.backend,
            self._declared_caches(),
            dtype=self.kv_type,
            sequences=sequences,
            capacity=capacity,
            max_batch=max_batch,
        )

    def _declared_caches(self) -> Sequence[CacheSpec]:
        layers = self.model.caches()
        if not isinstance(layers, list):
            raise TensorError(
                f"{type(self.model).__name__}.caches() returned {type(layers).__name__}; it must "
                "return a list with one entry a layer"
            )
        return layers

    # preparation

    def dry_trace(self) -> None:
        """Traces the graphs that need most memory; nothing is allocated.

        Raises:
            TensorError: an op refuses its operands, or output and input do not fit each other.
        """
        self.vocabulary = self.worst.trace(self.cache, len(self.slots.all))

    def allocate(self) -> None:
        """Allocates weights and cache, placed by the ops that read them."""
        self.backend.allocate(*self.worst.graphs)

    @contextmanager
    def _computing(self) -> Iterator[None]:
        """Nobody else computes: around what is computed on behalf of a step, or apart from any."""
        if self.turns.mine:
            yield
            return
        with self.turns.alone():
            if self._closed:
                raise GraphError("this model is closed; load it again")
            yield

    # requests

    def submit(self, request: Generation) -> None:
        """Takes a request in; it is served as soon as a slot is free, first come, first served."""
        group = self.places.largest_group(request.prompt.tolist())
        if group > self._batches.most:
            raise PromptError(
                f"{group} inputs of the prompt must be computed together, and a batch has at most "
                f"{self._batches.most}; load the model with a larger batch_size"
            )
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
            if self._midway:
                self._recover()
            self._midway = True
            self._sweep()
            work = self._collect()
        results = self._compute(work)
        if not self.backend.flash_attention and self._poisoned(results):
            results = self._compute_apart()
        for piece, result in results:
            self._take(piece, result)
        self.speculation.computed(work, self.graphs.recorded)
        with self.turns.lock:
            self._sweep()
        self._midway = False
        return bool(work)

    def _recover(self) -> None:
        """Makes what slots know and what the cache holds agree, wherever Ctrl-C came; also where it
        comes again here."""
        self._retract()
        for slot in self.slots.working:
            request, length = slot.request, len(slot.tokens)
            assert request is not None
            if request.noting:
                request.fail(
                    Error("Ctrl-C came while a token of this text was noted; ask for it again")
                )
            elif self.cache.length(slot.sequence) > length:
                self.slots.rewind(slot, length)
            elif not self.cache.can_resume(slot.sequence, length):
                self._start_over(slot, slot.tokens + slot.pending)

    def _sweep(self) -> None:
        """Frees the slots of requests that are done, and gives free ones to those that wait."""
        for slot in self.slots.all:
            request = slot.request
            if request is not None and (request.done or request.cancelled):
                self._retract()
                if request.failed:
                    self.cache.wipe(slot.sequence)
                    slot.start_over()
                self.slots.release(slot)
        if not self._waiting:
            return
        self._waiting = deque(r for r in self._waiting if not r.cancelled)
        while self._waiting and any(slot.free for slot in self.slots.all):
            self._retract()
            slot = self.slots.take(self._waiting[0].prompt.tolist())
            if slot is None:
                return
            slot.request = self._waiting[0]  # first, or Ctrl-C as it is popped would lose it
            self._waiting.popleft()

    def _collect(self) -> list[Work]:
        """What goes into the next batch."""
        ready, pending = list[Slot](), list[tuple[Slot, int, list[int]]]()
        for slot in self.slots.all:
            request = slot.request
            if request is None or not request.wants_more:
                continue
            goes_on = slot.pending and len(slot.tokens) < self.context_length
            if goes_on or self._made_ready(slot):
                ready.append(slot)
                pending.append((slot, len(slot.tokens), slot.pending))
        self._turn += 1  # who comes first
        drafts = self.speculation.drafts(ready)
        return self._batches.plan(pending, self._turn % len(self.slots.all), drafts)

    def _prepare(self, work: list[Work]) -> None:
        """While a batch is computed: finds room for the one that comes after it, if all go on."""
        if any(one.drafted for one in work):
            return  # where it begins is not known
        now = {one.slot: one for one in work}
        pending = []
        for slot in self.slots.working:
            if slot.request is None or not slot.request.wants_more:
                continue
            done = len(now[slot].numbers) if slot in now else 0
            length, rest = len(slot.tokens) + done, slot.pending[done:] or [_UNKNOWN]
            if length >= self.context_length:
                return  # it ends, or is shifted
            pending.append((slot, length, rest))
        planned = self._batches.plan(pending, (self._turn + 1) % len(self.slots.all))
        if planned:
            step = self._batches.step(planned)
            self._prepared = Prepared(planned, step)
            try:
                self.cache.start_forward(step)
            except Error:  # whatever it is shows when the batch is needed
                self._prepared = None

    def _retract(self) -> None:
        """Takes back what was prepared, or was to be computed when Ctrl-C came: the cache is about
        to change otherwise."""
        self._midway = True
        if self._prepared is not None:
            self.cache.undo(self._prepared.step)
            self._prepared = None
        self._steady.undo()

    def _made_ready(self, slot: Slot) -> bool:
        """Whether something of the slot can be computed; one where that fails ends alone."""
        try:
            if not self._room(slot):
                return False
            if not slot.pending:  # Ctrl-C or the like came between logits and their request
                self._retract()
                self.slots.rewind(slot, len(slot.tokens) - 1)
            return True
        except Exception as error:
            assert slot.request is not None
            slot.request.fail(error)
            return False

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
        self._retract()
        keep = self.places.before(slot.tokens, min(keep, self.context_length - 1))
        end = self.places.after(slot.tokens, keep + max(1, (len(slot.tokens) - keep) // 2))
        rest = slot.tokens[:keep] + slot.tokens[end:]
        slot.exact = min(slot.exact, keep)
        try:
            self.cache.remove(slot.sequence, keep, end)
            if self.cache.can_resume(slot.sequence, len(rest)):
                slot.tokens = rest
                return
        except Error:
            pass  # its cells are shared, or its cache cannot move
        except BaseException:  # Ctrl-C: how much has moved is not known
            self._start_over(slot, rest + slot.pending)
            raise
        self._start_over(slot, rest + slot.pending)

    def _start_over(self, slot: Slot, pending: list[int]) -> None:
        slot.start_over(pending)
        self.cache.remove(slot.sequence, 0, None)

    def _compute(self, work: list[Work]) -> list[Result]:
        """For each piece its logits float32 [1 + drafted, vocabulary] where it is the last of what
        is pending.

        Where a batch fails it is computed without guesses; where one of several fails, each alone:
        only those fail that do so then.
        What comes out of a single batch lies in memory that the next one overwrites.
        """
        if not work:
            return []
        try:
            rows = self._run(work)
        except Exception as error:
            if any(one.drafted for one in work):
                return self._compute([one.certain for one in work])
            if len(work) == 1:
                return [(work[0], error)]
            return [(one, self._by_itself(one)) for one in work]
        results, end = list[Result](), 0
        for one in work:
            begin, end = end, end + one.outputs
            results.append((one, rows[begin:end] if one.last else None))
        return results

    def _by_itself(self, work: Work) -> np.ndarray | Exception | None:
        """What one piece gives, computed in a batch of its own; to be kept."""
        ((_, result),) = self._compute([work])
        return result.copy() if isinstance(result, np.ndarray) else result

    def _run(self, work: list[Work]) -> np.ndarray:
        """Logits float32 [outputs, vocabulary]; the slots then hold the tokens, less guesses."""
        step = None
        try:
            if self._prepared is None:
                step = self._steady.next(work)
            if step is None:
                step = self._batches.step(work)
                self._place(step, work)
            rows = self.graphs.run(step, lambda: self._prepare(work))
            self._steady.keep(work, step)
        except BaseException:
            self._retract()
            if step is not None:
                self.cache.undo(step)
            raise
        for one in work:
            known = len(one.numbers) - one.drafted
            one.slot.tokens += one.numbers[:known]
            del one.slot.pending[:known]
        return rows

    def _place(self, step: Step, work: list[Work]) -> None:
        """Gives a step of this work its room in the cache."""
        if self._prepared is not None and self._prepared.serves(work):
            step.placed, self._prepared = self._prepared.step.placed, None
            return
        self._retract()
        try:
            self.cache.start_forward(step)
        except KvCacheFull:
            # What free slots remember may make room.
            for slot in self.slots.all:
                if slot.free:
                    self.slots.cut(slot, 0)
            self.cache.start_forward(step)

    def _poisoned(self, results: list[Result]) -> bool:
        """Whether NaN of one sequence may have reached others.

        The fused attention skips masked cells; the plain one multiplies them by zero, which NaN
        survives.
        """
        if len(self.slots.working) < 2:
            return False
        return not all(np.isfinite(r).all() for _, r in results if isinstance(r, np.ndarray))

    def _compute_apart(self) -> list[Result]:
        """Everything of every request anew, each in a cache that is empty but for those that went
        well before it."""
        self._retract()
        working = self.slots.working
        for slot in self.slots.all:
            slot.start_over(slot.tokens + slot.pending)
            self.cache.wipe(slot.sequence)
        results = []
        for slot in working:
            while True:
                (piece,) = self._batches.plan([(slot, len(slot.tokens), slot.pending)])
                result = self._by_itself(piece)
                self._retract()
                if result is not None:
                    break
            if isinstance(result, Exception) or not np.isfinite(result).all():
                self.cache.wipe(slot.sequence)
            results.append((piece, result))
        return results

    def _take(self, work: Work, result: np.ndarray | Exception | None) -> None:
        """Hands a request its logits, and notes what it wants computed next."""
        slot, request = work.slot, work.slot.request
        assert request is not None
        if isinstance(result, Exception):
            request.fail(result)
        elif result is not None:
            try:
                verify(slot, request, result, work.guesses)
            except Exception as error:  # also of a sampler that is not ours
                request.fail(error)
            finally:
                if len(slot.tokens) < work.start + len(work.numbers):
                    self.slots.rewind(slot, len(slot.tokens))

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Nobody else uses the cache in the meantime, and nothing is prepared in it."""
        with self.turns.alone():
            self._retract()
            yield

    @contextmanager
    def slot(self) -> Iterator[int]:
        """An empty sequence of one's own for the length of the block.

        Raises:
            Busy: all are in use.
        """
        slot = None
        try:
            with self._alone():
                slot = self.slots.take()
                if slot is None:
                    raise Busy(
                        f"all {len(self.slots.all)} sequences are in use; finish or close a "
                        "stream, or load the model with a larger parallel"
                    )
                slot.owner = threading.get_ident()
            yield slot.sequence
        finally:
            if slot is not None:
                slot.owner = None  # even if Ctrl-C ends the wait for the others
                with self._alone():
                    if slot.free:
                        self.slots.cut(slot, 0)

    def extend(self, sequence: int, tokens: np.ndarray, start: int) -> np.ndarray:
        """Appends tokens int32 [n] at positions start, start + 1, … to a sequence of one's own.

        Returns:
            The logits after the last token, float32 [vocabulary]; a copy.
        """
        with self._alone():
            *_, rows = self.batches(self.graphs, sequence, tokens, start, len(tokens) - 1)
            logits = rows[0]
            if not (self.backend.flash_attention or np.isfinite(logits).all()):
                self.cache.wipe(sequence)
            return logits

    def all_logits(self, tokens: np.ndarray) -> np.ndarray:
        """Logits after every token, float32 [n, vocabulary], in a cache of their own."""
        return np.concatenate(list(self.every_logits(tokens)))

    def every_logits(self, tokens: np.ndarray) -> Iterator[np.ndarray]:
        """`all_logits` batch by batch."""
        if self.model.only_embeds:
            raise Unsupported("this model gives no logits, it only embeds: use embed")
        group = self.places.largest_group(tokens.tolist())
        with self.apart(self.model, 1, len(tokens), group) as graphs:
            yield from self.batches(graphs, 0, tokens, 0)

    @contextmanager
    def apart(
        self, forward: Forward, sequences: int, capacity: int, group: int = 1
    ) -> Iterator[Graphs]:
        """Graphs of a forward on a cache of their own; nobody else computes in the meantime.

        Args:
            group: as many inputs may have to be computed together.
        """
        with self.turns.alone():
            cache = self._new_cache(sequences, capacity, max(self.batch_size, group))
            graphs = Graphs(forward, self.backend, cache)
            try:
                yield graphs
            finally:
                graphs.close()
                cache.close()

    def batches(
        self, graphs: Graphs, sequence: int, tokens: np.ndarray, start: int, first: int = 0
    ) -> Iterator[np.ndarray]:
        """Appends tokens int32 [n] at positions start, start + 1, … to a sequence.

        Returns:
            Batch by batch the results of `tokens[first:]`, float32 [.., width].
        """
        most = graphs.cache.max_batch
        batches = Batches(self.places, self.batch_size, most, self.worst.rows)
        for lo, hi in batches.split(tokens.tolist()):
            step = batches.step_of(
                tokens[lo:hi].tolist(),
                range(start + lo, start + hi),
                [sequence] * (hi - lo),
                range(max(0, min(hi, first) - lo), hi - lo),
            )
            graphs.cache.start_forward(step)
            yield graphs.run(step).copy()  # the next run overwrites it

    def close(self) -> None:
        """Frees graphs and cache, after a step under way has ended; requests that are not done
        fail. Idempotent."""
        with self._alone():
            self._closed = True
            closed = GraphError("the model was closed while it generated")
            for request in (*self._waiting, *(s.request for s in self.slots.working)):
                if request is not None:
                    request.fail(closed)
            self._waiting.clear()
            self.graphs.close()
            self.cache.close()
