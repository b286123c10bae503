"""Steps: batches planned, placed in cells, computed, and committed or rolled back whole.

Most steps of decoding differ from the one before in their tokens and positions alone. Placing such
a step anew costs more than everything else that Python does for a token.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

import numpy as np

from ...errors import Error, KvCacheFull
from ...model import Step
from ...model.batch import Adapted
from .graphs import Graphs
from .inputs import Histories, InputTable
from .probes import Probed
from .sequences import Sequence, Sequences

_NONE: Mapping[Sequence, list[int]] = {}


class Chunk(NamedTuple):
    """Some pending inputs of a sequence, in one batch.

    Attributes:
        start: the position of its first input.
        numbers: the inputs; see `InputTable`.
        last: no inputs are pending behind it, so its last input has an output.
        drafted: how many of the last numbers are draft tokens; each has an output, too.
    """

    sequence: Sequence
    start: int
    numbers: list[int]
    last: bool
    drafted: int = 0

    @property
    def drafts(self) -> list[int]:
        """The draft tokens."""
        return self.numbers[len(self.numbers) - self.drafted :]

    @property
    def certain(self) -> Chunk:
        """The chunk without its draft tokens."""
        numbers = self.numbers[: len(self.numbers) - self.drafted]
        return Chunk(self.sequence, self.start, numbers, self.last)


class BatchPlanner:
    """Plans batches.

    Args:
        size: the most inputs in a batch.
        most: hard limit, for a group that cannot be split.
        rows: the most rows of whole images in a batch; a single image may have more.
        histories: of the sequences; None for models without positions of their own.
        after_items: whether a sequence's last image or other item ends its part of a batch: states
            that are kept only where a part ended serve the next question about it, too.
        checkpoints: whether `Sequence.stable` ends a part, for the same reason.

    Attributes:
        block: inputs of a block of a `PrefixStore`; where there are checkpoints, a part of a prompt
            that is not short ends with a block, and one before its last input. 0 is none.
    """

    block = 0

    def __init__(
        self,
        inputs: InputTable,
        size: int,
        most: int,
        rows: int,
        histories: Histories | None = None,
        after_items: bool = False,
        checkpoints: bool = False,
    ):
        self.inputs, self.size, self.most, self.rows = inputs, size, most, rows
        self.histories, self.after_items = histories, after_items
        self.checkpoints = checkpoints

    def plan(
        self,
        pending: list[tuple[Sequence, int, list[int]]],
        first: int = 0,
        drafts: Mapping[Sequence, list[int]] = _NONE,
    ) -> list[Chunk]:
        """The next batch: single tokens first, then prompts in turn as far as there is room.

        Args:
            pending: each sequence with its length and its pending inputs.
            first: number of the sequence whose turn it is; later ones follow, then earlier ones.
            drafts: draft tokens for sequences with a single pending token, but for those that they
                compute again; the batch has space for them.
        """
        singles: list[Chunk] = []
        for sequence, start, numbers in pending:
            if len(numbers) > 1 + sequence.replayed or min(numbers) < 0:
                break
            draft = drafts.get(sequence, [])
            singles.append(Chunk(sequence, start, numbers + draft, True, len(draft)))
        if len(singles) == len(pending) and sum(len(s.numbers) for s in singles) <= self.size:
            return singles
        # If single tokens alone would fill every batch, prompts take turns with them.
        crowded = sum(len(numbers) == 1 for _, _, numbers in pending) >= self.size
        order = sorted(
            pending,
            key=lambda one: (
                not crowded and len(one[2]) > 1,
                one[0].number < first,
                one[0].number,
            ),
        )
        chunks: list[Chunk] = []
        used = rows = 0
        for sequence, start, numbers in order:
            n = self._fitting(numbers, used, rows)
            if self.checkpoints:
                n = self._to_checkpoint(sequence, start, numbers, n)
            if self.after_items:
                n = self._after_last_item(numbers, n)
            if n:
                chunks.append(Chunk(sequence, start, numbers[:n], n == len(numbers)))
                used, rows = used + n, rows + self.inputs.whole_rows(numbers[:n])
        return chunks

    def _to_checkpoint(self, sequence: Sequence, start: int, numbers: list[int], n: int) -> int:
        """n, or less: the inputs up to where the states are to be kept."""
        stops = [sequence.stable]
        if self.block and start < sequence.prompted and sequence.prompted > self.block // 2:
            stops += [sequence.prompted - 1, (start + n) // self.block * self.block]
        inside = [stop for stop in stops if start < stop < start + n]
        return self.inputs.before(numbers, min(inside) - start) or n if inside else n

    def _fitting(self, numbers: list[int], used: int, rows: int) -> int:
        """How many inputs fit a batch that has `used` inputs and `rows` of whole images."""
        n = self._before_too_many_rows(numbers, min(len(numbers), self.size - used), used, rows)
        if n <= 0:
            return 0
        n = self.inputs.before(numbers, n)
        if n == 0:
            group = self.inputs.after(numbers, 1)
            n = group if used + group <= self.most else 0
        return n

    def _before_too_many_rows(self, numbers: list[int], n: int, used: int, rows: int) -> int:
        if self.inputs.whole:
            for i in range(n):
                rows += self.inputs.whole_rows(numbers[i : i + 1])
                if numbers[i] < 0 and rows > self.rows and used + i > 0:
                    return i
        return n

    def _after_last_item(self, numbers: list[int], n: int) -> int:
        """n, or less: the inputs up to the last row of the last item."""
        behind = next((i for i, number in enumerate(reversed(numbers)) if number < 0), 0)
        return min(n, len(numbers) - behind)

    def split(self, numbers: list[int]) -> Iterator[tuple[int, int]]:
        """The bounds of batches for a single sequence."""
        lo = 0
        while lo < len(numbers):
            n = self._fitting(numbers[lo : lo + self.size + 1], 0, 0)
            yield lo, lo + n
            lo += n

    def step(self, chunks: list[Chunk]) -> Step:
        """The batch of these chunks."""
        numbers: list[int] = []
        positions: list[int] = []
        sequences: list[int] = []
        outputs: list[int] = []
        probes: list[Probed] = []
        for sequence, start, piece, last, drafted in chunks:
            begin, count = len(numbers), len(outputs)
            numbers += piece
            positions += range(start, start + len(piece))
            sequences += [sequence.number] * len(piece)
            if last:
                outputs += range(len(numbers) - 1 - drafted, len(numbers))
            if sequence.probe is not None:
                bounds = (begin, len(numbers)), (count, len(outputs))
                probes.append(Probed(sequence.probe, *(np.arange(*one) for one in bounds)))
        step = self.step_of(numbers, positions, sequences, outputs)
        step.probes = tuple(probes)
        step.adapted = _adapted(chunks)
        tentative = (one for one in chunks if one.drafted or one.sequence.replayed)
        step.tentative = frozenset(one.sequence.number for one in tentative)
        return step

    def step_of(
        self,
        numbers: Iterable[int],
        positions: Iterable[int],
        sequences: Iterable[int],
        outputs: Iterable[int],
    ) -> Step:
        """The batch of these inputs; arguments are named like the attributes of `Step`."""
        n, p, s, o = (np.array(x, np.int32) for x in (numbers, positions, sequences, outputs))
        tokens, groups, spans = self.inputs.resolve(n, p)
        step = Step(tokens, p, s, o, groups, spans=spans)
        if self.histories is not None:
            step.components = self.histories.components(n, p, s)
        return step


def _adapted(chunks: list[Chunk]) -> tuple[Adapted, ...]:
    """The rows of a batch that adapters change."""
    each = [dict(one.sequence.adapters) for one in chunks]
    lengths = [len(one.numbers) for one in chunks]
    adapters = sorted({a for strengths in each for a in strengths}, key=lambda a: a.number)
    return tuple(
        Adapted(one, np.repeat(np.array([s.get(one, 0.0) for s in each], np.float32), lengths))
        for one in adapters
    )


def _alike(planned: list[Chunk], chunks: list[Chunk]) -> bool:
    """Whether the batches are the same but for their tokens."""
    return len(chunks) == len(planned) and all(
        a.sequence is b.sequence
        and a.start == b.start
        and a.last == b.last
        and len(a.numbers) == len(b.numbers)
        for a, b in zip(chunks, planned, strict=True)
    )


Result = tuple[Chunk, np.ndarray | Exception | None]


class StepRunner:
    """Places batches in the cache and computes them: each is committed whole, or rolled back.

    Args:
        upcoming: the chunks that come after these, if all sequences go on.
        masks_exactly: the attention skips masked cells, as the fused one does. The plain one
            multiplies them by zero, which NaN survives.

    Attributes:
        states: sequence → its hidden states in the latest `results`, where the graphs keep them.
        steps: that went well. in_steps: the sequences in them, added up.
    """

    def __init__(
        self,
        sequences: Sequences,
        planner: BatchPlanner,
        graphs: Graphs,
        upcoming: Callable[[list[Chunk]], list[Chunk]],
        masks_exactly: bool,
    ):
        self._sequences, self._planner, self._graphs = sequences, planner, graphs
        self._upcoming, self._masks_exactly = upcoming, masks_exactly
        self.steps = self.in_steps = 0
        self.states: dict[Sequence, np.ndarray] = {}
        # The latest batch that was computed, as long as it can be advanced.
        self._chunks: list[Chunk] = []
        self._requests: list[object] = []  # of its sequences
        self._step: Step | None = None
        self._next: list[Chunk] = []  # those of `Sequences.prepared`; their tokens are not known

    def results(self, chunks: list[Chunk]) -> list[Result]:
        """For each chunk that is the last of its sequence: logits float32 [1 + drafted,
        vocabulary], or the error. The next step may overwrite them."""
        self.states = {}
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
            begin = end
            if one.last:
                end += 1 + one.drafted
                if (states := self._graphs.states) is not None:
                    self.states[one.sequence] = states[begin:end].copy()
            results.append((one, rows[begin:end] if one.last else None))
        return results

    def _alone(self, chunk: Chunk) -> np.ndarray | Exception | None:
        """The result of one chunk in a batch of its own; a copy."""
        ((_, result),) = self._compute([chunk])
        return result.copy() if isinstance(result, np.ndarray) else result

    def _run(self, chunks: list[Chunk]) -> np.ndarray:
        """Logits float32 [outputs, vocabulary]. The sequences then hold the tokens, less drafts; if
        anything raises, they and the cache are as before."""
        step = self.place(chunks)
        try:
            rows = self._graphs.run(step, lambda: self.prepare(self._upcoming(chunks)))
            self._keep(chunks, step)
        except BaseException:
            self._step = None
            with self._sequences.change() as cache:
                cache.undo(step)
            raise
        self.steps += 1
        self.in_steps += len(chunks)
        for one in chunks:
            one.sequence.commit(len(one.numbers) - one.drafted)
        return rows

    def place(self, chunks: list[Chunk]) -> Step:
        """The batch of these chunks, placed in the cache.

        Raises:
            KvCacheFull: no room, although free sequences were emptied.
        """
        prepared = self._sequences.prepared
        if prepared is None and (step := self._advanced(chunks)) is not None:
            return step
        step = self._planner.step(chunks)
        if prepared is not None and _alike(self._next, chunks):
            step.placed, self._sequences.prepared = prepared.placed, None
            return step
        with self._sequences.change() as cache:
            try:
                cache.start_forward(step)
            except KvCacheFull:
                for one in self._sequences.all:
                    if one.free:
                        one.save()
                        one.cut(0)
                cache.start_forward(step)
        return step

    def _advanced(self, chunks: list[Chunk]) -> Step | None:
        """The latest step, one position further; None unless the chunks are one token each of the
        same sequences, and the cache has room next to the last cells."""
        step, before = self._step, self._chunks
        if step is None or len(chunks) != len(before):
            return None
        if self._requests != [one.sequence.request for one in chunks]:
            return None
        tokens = []
        for now, then in zip(chunks, before, strict=True):
            one_further = now.sequence is then.sequence and now.start == then.start + 1
            if not one_further or len(now.numbers) != 1 or now.numbers[0] < 0 or not now.last:
                return None
            tokens += now.numbers
        cache, histories = self._sequences.cache, self._planner.histories
        self._step, placed = None, dict(step.placed)
        step.tokens, step.begun = np.array(tokens, np.int32), False
        step.positions += 1
        try:
            if not cache.advance(step):
                return None
            if histories is not None:
                step.components = histories.components(step.tokens, step.positions, step.sequences)
            return step
        except BaseException:  # some of several caches may have moved
            for part, at in placed.items():
                if step.placed.get(part) is not at:
                    part.undo(step)
            raise

    def _keep(self, chunks: list[Chunk], step: Step) -> None:
        """Keeps a computed step, to be advanced."""
        single = len(chunks) == len(step.tokens) == len(step.outputs) and not step.spans
        advances = single and self._sequences.cache.advances
        self._chunks, self._step = chunks, step if advances else None
        self._requests = [one.sequence.request for one in chunks]

    def prepare(self, chunks: list[Chunk]) -> None:
        """Places the batch that probably comes next. A failure shows when the batch is needed."""
        if not chunks:
            return
        try:  # positions of a model's own may refuse an input, too
            self._sequences.prepare(self._planner.step(chunks))
        except Error:
            return
        self._next = chunks

    def _poisoned(self, results: list[Result]) -> bool:
        """Whether NaN of one sequence may have reached others."""
        if len(self._sequences.working) < 2:
            return False
        return any(np.isnan(r).any() for _, r in results if isinstance(r, np.ndarray))

    def _each_anew(self) -> list[Result]:
        """Every sequence from its beginning, one after the other. The cache holds nothing else but
        the sequences before it that went well."""
        for one in self._sequences.all:
            one.wipe([] if one.request is None else one.tokens + one.pending)
        results = []
        for one in self._sequences.working:
            result = None
            while result is None:
                (chunk,) = self._planner.plan([(one, len(one.tokens), one.pending)])
                result = self._alone(chunk)
            if isinstance(result, Exception) or np.isnan(result).any():
                with self._sequences.change() as cache:
                    cache.wipe(one.number)
            results.append((chunk, result))
        return results
