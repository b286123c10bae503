"""The KV cache cells of each batch: those of the batch before, advanced; prepared ones; or new
ones.

Most steps of a generation differ from the one before in their tokens and positions alone. Laying
such a step out anew costs more than everything else that Python does for a token.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...errors import Error, KvCacheFull
from ...kvcache import Cache
from ...model import Step
from .batches import Batches, Chunk
from .slots import Slots


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
