"""Logits from hidden states, some rows at a time.

Logits of a whole batch would take more memory than the rest of its graph.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field

import numpy as np

from ...ml import Backend, Context, DType, Tensor
from ...model import Batch, Model, Step
from ...model.cache import Cache
from .graphs import Graphs


@dataclass
class Known(Step):
    """A step whose hidden states are known.

    Attributes:
        states: float32 [n, width].
    """

    states: np.ndarray = field(kw_only=True)


class Head:
    """The part of a model's `forward` that follows its `hidden`, as graphs of its own.

    Args:
        width: of hidden states.
        at_once: the most rows computed together.
    """

    def __init__(self, model: Model, width: int, at_once: int):
        self._model, self._width, self.at_once = model, width, at_once

    def forward(self, ctx: Context, batch: Batch) -> Tensor:
        """Logits F32 [vocabulary, n] of the hidden states that the step brings along."""
        batch.states = ctx.feed(
            lambda step: step.states, DType.F32, self._width, batch.size, name="states"
        )
        return self._model(ctx, batch)

    def step(self, states: np.ndarray) -> Step:
        """The step of these states, float32 [n, width], in no sequence."""
        n = len(states)
        step = Known.blank(n, 0, self._model.own_components(), states=states)
        step.outputs = np.arange(n, dtype=np.int32)
        return step

    def largest(self) -> Step:
        """A step of the most rows."""
        return self.step(np.zeros((self.at_once, self._width), np.float32))

    def logits(
        self, backend: Backend, cache: Cache, batches: Iterator[np.ndarray]
    ) -> Iterator[np.ndarray]:
        """Logits float32 [≤ at_once, vocabulary], piece by piece, of batches of hidden states; the
        next piece overwrites them."""
        with closing(Graphs(self.forward, backend, cache)) as graphs:
            for states in batches:
                for begin in range(0, len(states), self.at_once):
                    step = self.step(states[begin : begin + self.at_once])
                    cache.start_forward(step, reserve=True)  # stores nothing
                    yield graphs.run(step)
