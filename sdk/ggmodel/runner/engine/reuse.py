"""One token after the other: the step of single tokens, used again one position further.

Most steps of a generation differ from the one before in their tokens and in where these go. Laying
such a step out anew costs more than all the rest that Python does for a token.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...kvcache import Cache
from ...model import Step
from .batches import Work


class Steady:
    """The latest step, as long as it can be used again.

    Args:
        cache: in which it is placed.
    """

    def __init__(self, cache: Cache):
        self._cache = cache
        self._work: Sequence[Work] = ()
        self._step: Step | None = None
        self._computed: dict[Any, Any] = {}  # where the step was when it was computed
        self._moving = False  # it is no longer there, or not much longer

    def keep(self, work: Sequence[Work], step: Step) -> None:
        """Notes a step that was computed."""
        single = len(work) == len(step.tokens) == len(step.outputs) and not step.spans
        self._work, self._step = work, step if single and self._cache.advances else None
        self._computed, self._moving = dict(step.placed), False

    def next(self, work: Sequence[Work]) -> Step | None:
        """The step of this work, placed; None where it is not the kept one's, a position further,
        or the cache has to look for room."""
        if self._moving:
            self.undo()  # what Ctrl-C left of the latest one
        step, before = self._step, self._work
        if step is None or len(work) != len(before):
            return None
        tokens = []
        for now, then in zip(work, before, strict=True):
            one_further = now.slot is then.slot and now.start == then.start + 1
            if not one_further or len(now.numbers) != 1 or now.numbers[0] < 0 or not now.last:
                return None
            tokens += now.numbers
        self._moving = True
        step.tokens, step.begun = np.array(tokens, np.int32), False
        step.positions += 1
        if self._cache.advance(step):
            return step
        self._step, self._moving = None, False
        return None

    def undo(self) -> None:
        """Takes back `next`, however far it came; without effect once its step was computed."""
        step = self._step
        if not self._moving or step is None:
            return
        for cache, at in self._computed.items():
            if step.placed.get(cache) is not at:
                cache.undo(step)
        self._step, self._moving = None, False
