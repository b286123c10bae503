"""Steps: batches planned, placed in cells, computed, and committed or rolled back whole.

Most steps of a generation differ from the one before in their tokens and positions alone. Laying
such a step out anew costs more than everything else that Python does for a token.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ...errors import Error, KvCacheFull
from ...kvcache import Cache
from ...model import Step
from .graphs import Graphs
from .inputs import Histories, InputTable
from .sequences import Slot, Slots

if TYPE_CHECKING:
    from .sequences import Request

_NONE: Mapping[Slot, list[int]] = {}


class Chunk(NamedTuple):
    """Some pending inputs of a sequence, in one batch.

    Attributes:
        start: the position of its first input.
        numbers: the inputs; see `InputTable`.
        last: no inputs are pending behind it, so its last input has an output.
        drafted: how many of the last numbers are draft tokens; each has an output, too.
    """

    slot: Slot
    start: int
    numbers: list[int]
    last: bool
    drafted: int = 0

    @property
    def outputs(self) -> int:
        """Number of outputs."""
        return 1 + self.drafted if self.last else 0

    @property
    def guesses(self) -> list[int]:
        return self.numbers[-self.drafted :] if self.drafted else []

    @property
    def certain(self) -> Chunk:
        """The chunk without its draft tokens."""
        known = self.numbers[: len(self.numbers) - self.drafted]
        return Chunk(self.slot, self.start, known, self.last)


class Batches:
    """Puts batches together.

    Args:
        size: the most inputs in a batch.
        most: hard limit, for a group that cannot be split.
        rows: the most rows of whole images in a batch; a single image may have more.
        histories: of the sequences; None for models without positions of their own.
        after_items: whether a sequence's last image or other item ends its part of a batch: states
            that are kept only where a part ended serve the next question about it, too.
    """

    def __init__(
        self,
        inputs: InputTable,
        size: int,
        most: int,
        rows: int,
        histories: Histories | None = None,
        after_items: bool = False,
    ):
        self.inputs, self.size, self.most, self.rows = inputs, size, most, rows
        self.histories, self.after_items = histories, after_items

    def plan(
        self,
        pending: Sequence[tuple[Slot, int, list[int]]],
        first: int = 0,
        drafts: Mapping[Slot, list[int]] = _NONE,
    ) -> list[Chunk]:
        """The next batch: single tokens first, then prompts in turn as far as there is room.

        Args:
            pending: for each sequence its slot, its length and its pending inputs.
            first: the sequence whose turn it is; later ones follow, then earlier ones.
            drafts: draft tokens for sequences with a single pending token; the batch has space for
                them.
        """
        singles: list[Chunk] = []
        for slot, start, numbers in pending:
            if len(numbers) > 1 or numbers[0] < 0:
                break
            guesses = drafts.get(slot, [])
            singles.append(Chunk(slot, start, numbers + guesses, True, len(guesses)))
        if len(singles) == len(pending) <= self.size:
            return singles
        # If single tokens alone would fill every batch, prompts take turns with them.
        crowded = sum(len(numbers) == 1 for _, _, numbers in pending) >= self.size
        order = sorted(
            pending,
            key=lambda one: (
                not crowded and len(one[2]) > 1,
                one[0].sequence < first,
                one[0].sequence,
            ),
        )
        chunks: list[Chunk] = []
        used = rows = 0
        for slot, start, numbers in order:
            n = self._fitting(numbers, used, rows)
            if self.after_items:
                n = self._after_last_item(numbers, n)
            if n:
                chunks.append(Chunk(slot, start, numbers[:n], n == len(numbers)))
                used, rows = used + n, rows + self.inputs.whole_rows(numbers[:n])
        return chunks

    def _fitting(self, numbers: Sequence[int], used: int, rows: int) -> int:
        """How many inputs fit a batch that has `used` inputs and `rows` of whole images."""
        n = self._before_too_many_rows(numbers, min(len(numbers), self.size - used), used, rows)
        if n <= 0:
            return 0
        n = self.inputs.before(numbers, n)
        if n == 0:
            group = self.inputs.after(numbers, 1)
            n = group if used + group <= self.most else 0
        return n

    def _before_too_many_rows(self, numbers: Sequence[int], n: int, used: int, rows: int) -> int:
        if self.inputs.whole:
            for i in range(n):
                rows += self.inputs.whole_rows(numbers[i : i + 1])
                if numbers[i] < 0 and rows > self.rows and used + i > 0:
                    return i
        return n

    def _after_last_item(self, numbers: Sequence[int], n: int) -> int:
        """n, or less: the inputs up to the last row of the last item."""
        behind = next((i for i, number in enumerate(reversed(numbers)) if number < 0), 0)
        return min(n, len(numbers) - behind)

    def split(self, numbers: Sequence[int]) -> Iterator[tuple[int, int]]:
        """The bounds of batches for a single sequence."""
        lo = 0
        while lo < len(numbers):
            n = self._fitting(numbers[lo : lo + self.size + 1], 0, 0)
            yield lo, lo + n
            lo += n

    def step(self, chunks: Sequence[Chunk]) -> Step:
        """The batch of these chunks."""
        numbers: list[int] = []
        positions: list[int] = []
        sequences: list[int] = []
        outputs: list[int] = []
        for slot, start, piece, last, drafted in chunks:
            numbers += piece
            positions += range(start, start + len(piece))
            sequences += [slot.sequence] * len(piece)
            if last:
                outputs += range(len(numbers) - 1 - drafted, len(numbers))
        return self.step_of(numbers, positions, sequences, outputs)

    def step_of(
        self,
        numbers: Sequence[int],
        positions: Sequence[int],
        sequences: Sequence[int],
        outputs: Sequence[int],
    ) -> Step:
        """The batch of these inputs; arguments are named like the attributes of `Step`."""
        n, p, s, o = (np.array(x, np.int32) for x in (numbers, positions, sequences, outputs))
        tokens, groups, spans = self.inputs.resolve(n, p)
        step = Step(tokens, p, s, o, groups, spans=spans)
        if self.histories is not None:
            step.components = self.histories.components(n, p, s)
        return step


class Placer:
    """Gives batches their cells in a cache.

    A batch is placed, computed, and then either `computed` or `roll_back` is called. `cancel` comes
    before any other change to the cache.
    """

    def __init__(self, cache: Cache, slots: Slots, batches: Batches):
        self._cache, self._slots, self._batches = cache, slots, batches
        # The latest batch that was computed, as long as it can be moved on.
        self._chunks: Sequence[Chunk] = ()
        self._step: Step | None = None
        # The next batch, placed while the latest was computed. Its tokens are not known.
        self._next: tuple[Sequence[Chunk], Step] | None = None

    def place(self, chunks: Sequence[Chunk]) -> Step:
        """The batch of these chunks, placed in the cache.

        Raises:
            KvCacheFull: no room, although free slots were emptied.
        """
        if self._next is None:
            step = self._moved_on(chunks)
            if step is not None:
                return step
        step = self._batches.step(chunks)
        if self._next is not None and _alike(self._next[0], chunks):
            step.placed, self._next = self._next[1].placed, None
            return step
        self.cancel()
        try:
            self._cache.start_forward(step)
        except KvCacheFull:
            for slot in self._slots.all:
                if slot.free:
                    self._slots.cut(slot, 0)
            self._cache.start_forward(step)
        return step

    def _moved_on(self, chunks: Sequence[Chunk]) -> Step | None:
        """The latest step, one position further; None unless the chunks are one token each of the
        same slots, and the cache has room next to the last cells."""
        step, before = self._step, self._chunks
        if step is None or len(chunks) != len(before):
            return None
        tokens = []
        for now, then in zip(chunks, before, strict=True):
            one_further = now.slot is then.slot and now.start == then.start + 1
            if not one_further or len(now.numbers) != 1 or now.numbers[0] < 0 or not now.last:
                return None
            tokens += now.numbers
        self._step, placed = None, dict(step.placed)
        step.tokens, step.begun = np.array(tokens, np.int32), False
        step.positions += 1
        try:
            if not self._cache.advance(step):
                return None
            histories = self._batches.histories
            if histories is not None:
                step.components = histories.components(step.tokens, step.positions, step.sequences)
            return step
        except BaseException:  # some of several caches may have moved
            for cache, at in placed.items():
                if step.placed.get(cache) is not at:
                    cache.undo(step)
            raise

    def computed(self, chunks: Sequence[Chunk], step: Step) -> None:
        """Keeps a computed step, to be moved on."""
        single = len(chunks) == len(step.tokens) == len(step.outputs) and not step.spans
        self._chunks, self._step = chunks, step if single and self._cache.advances else None

    def roll_back(self, step: Step) -> None:
        """Takes a placed step back; it was not computed, or that failed."""
        self.cancel()
        self._step = None
        self._cache.undo(step)

    def prepare(self, chunks: Sequence[Chunk]) -> None:
        """Places the batch that probably comes next. A failure shows when the batch is needed."""
        if not chunks:
            return
        try:  # positions of a model's own may refuse an input, too
            step = self._batches.step(chunks)
            self._cache.start_forward(step)
        except Error:
            return
        self._next = chunks, step

    def cancel(self) -> None:
        """Takes back the prepared batch: the cache is about to change otherwise."""
        if self._next is not None:
            self._cache.undo(self._next[1])
            self._next = None


def _alike(planned: Sequence[Chunk], chunks: Sequence[Chunk]) -> bool:
    """Whether the batches are the same but for their tokens."""
    return len(chunks) == len(planned) and all(
        a.slot is b.slot
        and a.start == b.start
        and a.last == b.last
        and len(a.numbers) == len(b.numbers)
        for a, b in zip(chunks, planned, strict=True)
    )


Result = tuple[Chunk, np.ndarray | Exception | None]


class StepRunner:
    """Computes the chunks of one engine.

    Args:
        upcoming: the chunks that come after these, if all sequences go on.
        masks_exactly: the attention skips masked cells, as the fused one does. The plain one
            multiplies them by zero, which NaN survives.
    """

    def __init__(
        self,
        cache: Cache,
        slots: Slots,
        batches: Batches,
        graphs: Graphs,
        upcoming: Callable[[Sequence[Chunk]], Sequence[Chunk]],
        masks_exactly: bool,
    ):
        self._cache, self._slots, self._batches, self._graphs = cache, slots, batches, graphs
        self._upcoming, self._masks_exactly = upcoming, masks_exactly
        self.placer = Placer(cache, slots, batches)

    def results(self, chunks: list[Chunk]) -> list[Result]:
        """For each chunk that is the last of its sequence: logits float32 [1 + drafted,
        vocabulary], or the error. The next step may overwrite them."""
        results = self._compute(chunks)
        if not self._masks_exactly and self._poisoned(results):
            return self._each_anew()
        return results

    def _compute(self, chunks: list[Chunk]) -> list[Result]:
        """A batch that fails is computed without draft tokens, then each sequence alone: only those
        fail that do so alone."""
        try:
            rows = self._run(chunks)
        except Exception as error:
            if any(one.drafted for one in chunks):
                return self._compute([one.certain for one in chunks])
            if len(chunks) == 1:
                return [(chunks[0], error)]
            return [(one, self._alone(one)) for one in chunks]
        results, end = list[Result](), 0
        for one in chunks:
            begin, end = end, end + one.outputs
            results.append((one, rows[begin:end] if one.last else None))
        return results

    def _alone(self, chunk: Chunk) -> np.ndarray | Exception | None:
        """The result of one chunk in a batch of its own; a copy."""
        ((_, result),) = self._compute([chunk])
        return result.copy() if isinstance(result, np.ndarray) else result

    def _run(self, chunks: list[Chunk]) -> np.ndarray:
        """Logits float32 [outputs, vocabulary]. The slots then hold the tokens, less drafts; if
        anything raises, slots and cache are as before."""
        step = self.placer.place(chunks)
        try:
            rows = self._graphs.run(step, lambda: self.placer.prepare(self._upcoming(chunks)))
            self.placer.computed(chunks, step)
        except BaseException:
            self.placer.roll_back(step)
            raise
        for one in chunks:
            known = len(one.numbers) - one.drafted
            one.slot.tokens += one.numbers[:known]
            del one.slot.pending[:known]
        return rows

    def _poisoned(self, results: list[Result]) -> bool:
        """Whether NaN of one sequence may have reached others."""
        if len(self._slots.working) < 2:
            return False
        return any(np.isnan(r).any() for _, r in results if isinstance(r, np.ndarray))

    def _each_anew(self) -> list[Result]:
        """Every sequence from its beginning, one after the other. The cache holds nothing else but
        the sequences before it that went well."""
        self.placer.cancel()
        working = self._slots.working
        for slot in self._slots.all:
            slot.start_over([] if slot.request is None else slot.tokens + slot.pending)
            self._cache.wipe(slot.sequence)
        results = []
        for slot in working:
            while True:
                (chunk,) = self._batches.plan([(slot, len(slot.tokens), slot.pending)])
                result = self._alone(chunk)
                self.placer.cancel()
                if result is not None:
                    break
            if isinstance(result, Exception) or np.isnan(result).any():
                self._cache.wipe(slot.sequence)
            results.append((chunk, result))
        return results


def verify(
    slot: Slot, request: Request, rows: Iterable[np.ndarray], guesses: Sequence[int]
) -> None:
    """Passes a request the logits after its latest token, then those after each draft token, as
    long as the request samples that token. Notes in the slot what is computed and what comes next.

    Each token is thus sampled from its own logits, with draft tokens or without.

    Args:
        rows: float32 [1 + guesses, vocabulary].
    """
    request.drafted += len(guesses)
    for logits, guess in zip(rows, (*guesses, None), strict=True):
        token = request.accept(logits)
        if token is None:
            return
        if token != guess:
            slot.pending = [token]
            return
        slot.tokens.append(token)
        request.accepted += 1
