"""Recorded graphs of steps, replayed for every step of their shape."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

import numpy as np

from ...ml import Backend, Context, Executable, Tensor
from ...ml.executable import run_for
from ...model import Batch, Step
from ...resources import closed_on_error
from .adapters import Changes
from .inputs import Histories
from .probes import Tap

if TYPE_CHECKING:
    from ...kvcache import Cache


Forward = Callable[[Context, Batch], Tensor]
T = TypeVar("T")
# Shape of the step, its changes by adapters, `Cache.shape_key`, and keys of its probes.
Key = tuple[Hashable, ...]


@dataclass
class Trace:
    """The recording of a `forward`.

    Attributes:
        inputs: the tensor of token ids.
        states: [width, outputs], the hidden states that the output is made of; None if it is made
            without.
        output: [width, outputs], such as logits.
        changes: those by adapters; None without.
        tap: acts for the probes of the step; None without any. probed: the results that it keeps.
    """

    ctx: Context
    inputs: Tensor
    output: Tensor
    states: Tensor | None
    changes: Changes | None = None
    tap: Tap | None = None
    probed: tuple[Tensor, ...] = ()

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
        changes = Changes(ctx, step, batch.outputs) if step.adapted else None
        ctx.graph.changed = changes
        if step.probes:
            batch.whole, ctx.graph.tap = True, Tap(ctx, step)
        output = forward(ctx, batch)
    if len(step.outputs):
        ctx.forward(output)
    tap = ctx.graph.tap
    if not isinstance(tap, Tap):
        return Trace(ctx, batch.inputs, output, batch.states, changes)
    return Trace(ctx, batch.inputs, output, batch.states, changes, tap, tap.finish())


class Compiled(Generic[T]):
    """A compiled graph; the recording itself, which takes more memory, is dropped.

    Args:
        outputs: the tensors that are computed.
        result: one of them, or all, as the caller reads them.
        states: another one, or None.
        tap: see `Trace`.
    """

    def __init__(
        self,
        ctx: Context,
        outputs: Iterable[Tensor],
        result: T,
        states: Tensor | None = None,
        tap: Tap | None = None,
    ):
        self.states, self.tap = states, tap
        self.ctx, self.result, graph, outputs = ctx, result, ctx.graph, tuple(outputs)
        self.replayable = graph.replayable
        self.executable: Executable = graph.backend.compile(graph, outputs)
        self.executable.keep_only(outputs)
        graph.forget()

    def close(self) -> None:
        self.executable.close()
        self.ctx.close()


class Graphs:
    """Runs steps of a model on a cache; a new shape is recorded once.

    Args:
        forward: the model, or a part of it with a result F32 [width, outputs].
        histories: of the sequences of the cache; None for models without positions of their own.
        keeps_states: the hidden states behind the results are results, too.
        most: so many graphs are kept, each with a description of some 500 bytes an op. Inputs and
            results share their memory.

    Attributes:
        states: those of the latest run, float32 [outputs, width]; None without.
        usual: how many graphs are kept of a text that fills the cache.
        recorded, replayed: counts of steps with a new graph, and with a known one.
    """

    def __init__(
        self,
        forward: Forward,
        backend: Backend,
        cache: Cache,
        histories: Histories | None = None,
        keeps_states: bool = False,
        most: int = 32,
    ):
        self.forward, self.backend, self.cache = forward, backend, cache
        self.histories, self.keeps_states = histories, keeps_states
        self.states: np.ndarray | None = None
        self._most = most
        self.usual = min(most, 1 + cache.ranges)
        self._entries: OrderedDict[Key, Compiled[Tensor]] = OrderedDict()
        # A step that can be advanced, and the graph that it runs each time.
        self._latest: tuple[Step | None, Compiled[Tensor] | None] = (None, None)
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
        latest, entry = self._latest
        if entry is None or latest is not step or not entry.executable.valid:
            entry = self._entry(step)
        else:  # it was advanced
            self.replayed += 1
        step.begun, output = True, entry.result
        try:
            if entry.tap is not None:
                entry.tap.run(entry.executable, step)
            elif not len(step.outputs):
                entry.executable.run(step, meanwhile)
            if not len(step.outputs):
                return np.empty((0, output.dim(0)), np.float32)
            if entry.tap is not None:
                rows = entry.executable.value(output)
            else:
                rows = run_for(entry.executable, output, step, meanwhile)
            rows = rows.reshape(len(step.outputs), -1)
            if entry.states is not None:
                states = entry.executable.value(entry.states)
                self.states = states.reshape(len(step.outputs), -1)
            return rows if entry.replayable else rows.copy()
        finally:
            if not entry.replayable:
                entry.close()

    def _entry(self, step: Step) -> Compiled[Tensor]:
        """The graph for steps of this shape."""
        probes = tuple(one.key for one in step.probes)
        key = (step.shape, step.adapted_key, self.cache.shape_key(step), probes)
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
        # Its arrays stay in memory: those of few tokens are small.
        kept = entry.replayable and len(step.outputs) == len(step.tokens) and not step.spans
        kept = kept and self.cache.advances
        self._latest = (step, entry) if kept else (None, None)
        return entry

    def _record(self, step: Step) -> Compiled[Tensor]:
        self.recorded += 1
        traced = trace(self.forward, self.backend, self.cache, step)
        outputs = (traced.output,) if len(step.outputs) else ()
        states = traced.states if self.keeps_states and outputs else None
        with closed_on_error(traced):
            kept = outputs if states is None else (*outputs, states)
            kept = (*kept, *traced.probed)
            return Compiled(traced.ctx, kept, traced.output, states, traced.tap)

    def _keep(self, key: Key, entry: Compiled[Tensor]) -> None:
        self._entries[key] = entry
        while len(self._entries) > self._most:
            self._drop(next(iter(self._entries)))

    def _drop(self, key: Key) -> None:
        self._entries.pop(key).close()

    def close(self) -> None:
        """Frees all graphs; idempotent."""
        self._latest = (None, None)
        for key in list(self._entries):
            self._drop(key)
