"""Scoring outside of the scheduler: logits, embeddings, measurements."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Protocol

import numpy as np

from ...errors import Busy, ComputeError, Error, GraphError, Unsupported
from ...kvcache import Cache
from ...model import Step
from .adapters import Strengths
from .engine import Engine
from .graphs import Forward, Graphs
from .inputs import Histories
from .probes import Probe, Probed
from .sequences import Sequence
from .step import BatchPlanner


class Runs(Protocol):
    """Computes steps that a cache has placed, as `Graphs` does."""

    cache: Cache
    histories: Histories | None

    def run(self, step: Step, /) -> np.ndarray: ...


class Scoring:
    """Computes for callers who do the bookkeeping of positions themselves.

    Args:
        adapters: those to compute with; None takes those of requests that do not choose.
    """

    def __init__(self, engine: Engine, adapters: Strengths | None = None):
        self._engine = engine
        self._adapters = engine.adapters if adapters is None else adapters

    # from any thread

    @contextmanager
    def sequence(self) -> Iterator[int]:
        """An empty sequence of one's own for the length of the block.

        Raises:
            Busy: all are in use.
        """
        me, taken = threading.get_ident(), list[Sequence]()
        try:
            self._engine.call(lambda: taken.append(self._take(me)))
            yield taken[0].number
        finally:  # also if Ctrl-C comes as it has just been taken
            self._engine.post(lambda: [_release(one) for one in taken])

    def _take(self, owner: int) -> Sequence:
        sequences = self._engine.sequences
        taken = sequences.take()
        if taken is None:
            raise Busy(
                f"all {len(sequences.all)} sequences are in use; finish or close a stream, or load "
                "the model with a larger parallel"
            )
        taken.owner = owner
        return taken

    def extend(self, sequence: int, tokens: np.ndarray, start: int) -> np.ndarray:
        """Appends tokens int32 [n] at positions start, start + 1, … to a sequence of one's own.

        Returns:
            The logits after the last token, float32 [vocabulary]; a copy.

        Raises:
            ComputeError: the cache does not hold the positions before, because NaN of another
                sequence had reached it.
        """
        engine = self._engine

        def extend() -> np.ndarray:
            with engine.sequences.change() as cache:
                if cache.length(sequence) != start:
                    held = cache.length(sequence)
                    raise ComputeError(
                        f"the sequence holds {held} positions, not {start}: begin anew"
                    )
                *_, rows = self.batches(engine.graphs, sequence, tokens, start, len(tokens) - 1)
                if not (engine.backend.flash_attention or np.isfinite(rows[0]).all()):
                    cache.wipe(sequence)
            return rows[0]

        return engine.call(extend)

    def all_logits(self, tokens: np.ndarray, probe: Probe | None = None) -> np.ndarray:
        """Logits after every token, float32 [n, vocabulary], in a cache of their own."""
        logits = np.empty((len(tokens), self._engine.memory_plan.width), np.float32)
        done = 0

        def take(rows: np.ndarray) -> None:
            nonlocal done
            logits[done : done + len(rows)] = rows
            done += len(rows)

        self.each_logits(tokens, take, probe=probe)
        return logits

    def each_logits(
        self,
        tokens: np.ndarray,
        take: Callable[[np.ndarray], object],
        first: int = 0,
        probe: Probe | None = None,
    ) -> None:
        """Calls `take` with the logits after `tokens[first:]`, float32 [.., vocabulary], piece by
        piece; the next piece overwrites them.

        Raises:
            Unsupported: the model gives no logits.
        """
        engine = self._engine
        if engine.model.only_embeds:
            raise Unsupported("this model gives no logits, it only embeds: use embed")
        engine.call(lambda: self._each_logits(tokens, take, first, probe))

    def _each_logits(
        self,
        tokens: np.ndarray,
        take: Callable[[np.ndarray], object],
        first: int,
        probe: Probe | None,
    ) -> None:
        engine, head = self._engine, self._engine.memory_plan.head
        group = engine.inputs.largest_group(tokens.tolist())
        size = engine.memory_plan.scored if head is None else engine.batch_size
        if head is not None and probe is not None and probe.within("head"):
            size, head = head.at_once, None
        forward = engine.model if head is None else engine.model.states
        with self.graphs(forward, 1, len(tokens), group) as graphs:
            results = self.batches(graphs, 0, tokens, 0, first, size, probe)
            if head is not None:
                results = head.logits(engine.backend, graphs.cache, results, self._adapters)
            for rows in results:
                take(rows)

    # in the engine's thread, that is within `Engine.call`

    @contextmanager
    def graphs(
        self, forward: Forward, sequences: int, capacity: int, group: int = 1
    ) -> Iterator[Graphs]:
        """Graphs of a forward on a cache of their own.

        Args:
            group: so many inputs may have to be computed together.

        Raises:
            GraphError: the calling thread is not the engine's.
        """
        engine = self._engine
        if not engine.here:
            raise GraphError("graphs belong to the engine's thread: wrap this in Engine.call")
        cache = engine.new_cache(sequences, capacity, max(engine.batch_size, group))
        graphs = Graphs(forward, engine.backend, cache, Histories.of(engine.model, engine.inputs))
        try:
            yield graphs
        finally:
            graphs.close()
            cache.close()

    def batches(
        self,
        graphs: Runs,
        sequence: int,
        tokens: np.ndarray,
        start: int,
        first: int = 0,
        size: int | None = None,
        probe: Probe | None = None,
    ) -> Iterator[np.ndarray]:
        """Appends tokens int32 [n] at positions start, start + 1, … to a sequence.

        Args:
            size: the most tokens in a batch, unless more must be computed together.

        Returns:
            Batch by batch the results of `tokens[first:]`, float32 [.., width].

        Raises:
            Cancelled: the caller waits no longer.
        """
        engine = self._engine
        most, histories = graphs.cache.max_batch, graphs.histories
        size = size or engine.batch_size
        planner = BatchPlanner(engine.inputs, size, most, engine.memory_plan.rows, histories)
        for lo, hi in planner.split(tokens.tolist()):
            engine.check_abandoned()
            step = planner.step_of(
                tokens[lo:hi].tolist(),
                range(start + lo, start + hi),
                [sequence] * (hi - lo),
                range(max(0, min(hi, first) - lo), hi - lo),
            )
            if probe is not None:
                places = np.arange(hi - lo), np.arange(len(step.outputs))
                step.probes = (Probed(probe, *places),)
            step.adapt(self._adapters)
            graphs.cache.start_forward(step)
            rows = graphs.run(step).copy()  # the next run overwrites it
            engine.count_step(1)
            yield rows


def _release(sequence: Sequence) -> None:
    with suppress(Error):  # of a lost device: who comes next gets the error
        sequence.release()
        sequence.cut(0)
