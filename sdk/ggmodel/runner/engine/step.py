"""A step: chunks of several sequences are placed, computed, and committed or rolled back whole."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ...kvcache import Cache
from .batches import Batches, Chunk
from .graphs import Graphs
from .reuse import Placer
from .slots import Slot, Slots

if TYPE_CHECKING:
    from .request import Request

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
