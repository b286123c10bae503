"""Recorded graphs, replayed for every step of their shape."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ...closing import closed_on_error
from ...ml import Backend, Context, Executable, Tensor
from ...model import Batch, Step
from .positions import Histories

if TYPE_CHECKING:
    from ...kvcache import Cache

# Each kept graph has a description, some 500 bytes an op. Inputs and results share their memory.
_MOST_GRAPHS = 32


Forward = Callable[[Context, Batch], Tensor]
Key = tuple[Hashable, Hashable]  # shape of the step, and `Cache.shape_key`


@dataclass
class Trace:
    """The recording of a `forward`.

    Attributes:
        inputs: the tensor of token ids.
        states: [width, outputs], the hidden states that the output is made of; None if it is made
            without.
        output: [width, outputs], such as logits.
    """

    ctx: Context
    inputs: Tensor
    output: Tensor
    states: Tensor | None

    def close(self) -> None:
        self.ctx.close()


def trace(forward: Forward, backend: Backend, cache: Cache, step: Step) -> Trace:
    """Records a forward for steps of this shape.

    A step without outputs is computed for its cache entries alone: only these are scheduled.
    """
    ctx = backend.new_context().set_batch_size(len(step.tokens))
    with ctx.trace():
        tokens, outputs, embedded = step.shape
        k = 0 if step.components is None else len(step.components)
        batch = Batch(ctx, tokens, outputs, cache.layers(ctx, step), embedded, k)
        output = forward(ctx, batch)
    if len(step.outputs):
        ctx.forward(output)
    return Trace(ctx, batch.inputs, output, batch.states)


class _Entry:
    """A compiled graph; the recording itself, which takes more memory, is dropped."""

    def __init__(self, trace: Trace, executable: Executable, outputs: tuple[Tensor, ...]):
        self.trace, self.executable = trace, executable
        self.replayable = trace.ctx.graph.replayable
        executable.keep_only(outputs)
        trace.ctx.graph.forget()

    def close(self) -> None:
        self.executable.close()
        self.trace.close()


class Graphs:
    """Runs steps of a model on a cache; a new shape is recorded once.

    Args:
        forward: the model, or a part of it with a result F32 [width, outputs].
        histories: of the sequences of the cache; None for models without positions of their own.

    Attributes:
        usual: how many graphs are kept of a text that fills the cache.
        recorded, replayed: counts of steps with a new graph, and with a known one.
    """

    def __init__(
        self,
        forward: Forward,
        backend: Backend,
        cache: Cache,
        histories: Histories | None = None,
    ):
        self.forward, self.backend, self.cache = forward, backend, cache
        self.histories = histories
        self.usual = min(_MOST_GRAPHS, 1 + cache.ranges)
        self._entries: OrderedDict[Key, _Entry] = OrderedDict()
        self.recorded = self.replayed = 0

    def run(self, step: Step, meanwhile: Callable[[], None] | None = None) -> np.ndarray:
        """Computes a step that the cache has placed.

        Args:
            meanwhile: see `Executable.run`.

        Returns:
            float32 [outputs, width]; the next run of any graph may overwrite it.
        """
        if step.spans:
            step.compute_images()  # now: their graphs share memory with this one
        key = (step.shape, self.cache.shape_key(step))
        entry = self._entries.get(key)
        if entry is not None and not entry.executable.valid:
            self._drop(key)
            entry = None
        if entry is None:
            entry = self._record(step)
            if entry.replayable:
                self._keep(key, entry)
        else:
            self.replayed += 1
            self._entries.move_to_end(key)
        step.begun = True
        try:
            entry.executable.run(step, meanwhile)
            if not len(step.outputs):
                return np.empty((0, entry.trace.output.dim(0)), np.float32)
            rows = entry.executable.value(entry.trace.output).reshape(len(step.outputs), -1)
            return rows if key in self._entries else rows.copy()
        finally:
            if key not in self._entries:
                entry.close()

    def _record(self, step: Step) -> _Entry:
        self.recorded += 1
        traced = trace(self.forward, self.backend, self.cache, step)
        outputs = (traced.output,) if len(step.outputs) else ()
        with closed_on_error(traced):
            return _Entry(traced, self.backend.compile(traced.ctx.graph, outputs), outputs)

    def _keep(self, key: Key, entry: _Entry) -> None:
        self._entries[key] = entry
        while len(self._entries) > _MOST_GRAPHS:
            self._drop(next(iter(self._entries)))

    def _drop(self, key: Key) -> None:
        self._entries.pop(key).close()

    def close(self) -> None:
        """Frees all graphs; idempotent."""
        for key in list(self._entries):
            self._drop(key)
