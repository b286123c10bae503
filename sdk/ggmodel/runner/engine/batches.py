"""Plans batches: decode tokens and prefill chunks of several sequences (continuous batching)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from ...model import Step
from .inputs import InputTable
from .positions import Histories
from .slots import Slot

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
