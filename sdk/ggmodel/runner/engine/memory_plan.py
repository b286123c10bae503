"""The memory plan: the graphs that need most memory, traced before weights are placed.

They are reserved before any runs. Logits are computed some rows at a time: those of a
whole batch would take more memory than the rest of its graph.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field

import numpy as np

from ...errors import TensorError
from ...ml import Backend, Context, DType, Tensor
from ...ml.executable import fewest_rows
from ...ml.graph import Graph
from ...ml.node import Weight
from ...model import Batch, Input, Model, MultimodalEmbedding, Span, Step
from ...model.cache import Cache
from .adapters import Strengths
from .graphs import Forward, Graphs, Trace, trace
from .images import Encoded, MultimodalStore
from .inputs import InputTable


@dataclass
class HeadStep(Step):
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
        step = HeadStep.blank(n, 0, self._model.own_components(), states=states)
        step.outputs = np.arange(n, dtype=np.int32)
        return step

    def largest(self) -> Step:
        """A step of the most rows."""
        return self.step(np.zeros((self.at_once, self._width), np.float32))

    def logits(
        self,
        backend: Backend,
        cache: Cache,
        batches: Iterator[np.ndarray],
        adapters: Strengths = (),
    ) -> Iterator[np.ndarray]:
        """Logits float32 [≤ at_once, vocabulary], piece by piece, of batches of hidden states; the
        next piece overwrites them."""
        with closing(Graphs(self.forward, backend, cache)) as graphs:
            for states in batches:
                for begin in range(0, len(states), self.at_once):
                    step = self.step(states[begin : begin + self.at_once]).adapt(adapters)
                    cache.start_forward(step, reserve=True)  # stores nothing
                    yield graphs.run(step)


_FEWEST_SCORED = 32  # rows whose logits are computed at once: fewer would slow products down


@dataclass(frozen=True)
class EncoderMemory:
    """Bytes that images take, or another kind of items.

    Attributes:
        weights: weights of the encoder's graph; counted in the devices' weights, too.
        rows: rows of the largest item, in system memory as long as the item is kept.
    """

    weights: int
    rows: int


class MemoryPlan:
    """Traces of the largest batches and of the largest item of each kind.

    Attributes:
        encoders: memory of the latter, by kind; empty for models of text.
        rows: rows of the largest item that belongs to one input; 0 if rows take an input each.
        largest_group: the most inputs that must be computed together because of an item; 1 without
            items.
        width: of the model's output. states_width: of its hidden states; 0 where it has none.
        head: computes logits of many rows; None for models that compute them in one with all else.
        scored: tokens in a batch with logits for all of them, where there is no head.
    """

    width: int
    states_width: int = 0
    head: Head | None = None
    scored: int = 0

    def __init__(self, model: Model, backend: Backend, images: MultimodalStore, inputs: InputTable):
        self.model, self.backend = model, backend
        self._traces: list[Trace] = []
        self._items: list[Encoded] = []
        self._whole, self.largest_group, self.rows = inputs.whole, 1, 0
        self.encoders: dict[str, EncoderMemory] = {}
        for kind in model.modalities():
            item = images.largest(kind)
            self._items.append(item)
            expanded = images.expand([Input(0), item.embeddings])
            numbers = inputs.number([Input(0) if isinstance(x, str) else x for x in expanded])
            self.largest_group = max(self.largest_group, inputs.largest_group(numbers))
            self.rows = max(self.rows, inputs.whole_rows(numbers))
            assert item.ctx is not None
            names = _weights_of([item.ctx.graph])
            weights = sum(backend.source.tensors[name].nbytes for name in names)
            self.encoders[kind] = EncoderMemory(weights, item.size)
            inputs.widths |= {(e.width, *e.widths) for e in item.embeddings if len(e)}

    def trace(self, cache: Cache, sequences: int) -> int:
        """Traces the batches, the largest first; nothing is allocated.

        Returns:
            The size of the vocabulary.

        Raises:
            TensorError: an op refuses its operands, or output and input do not fit each other.
        """
        largest = cache.max_batch
        for item in self._items:
            if item.size:  # not of data alone
                self.trace_step(cache, self._step(largest, sequences, self._span(item, largest)))
        graph = self.trace_step(cache, self._step(largest, sequences))
        for n in self.backend.batches_to_reserve(largest):
            self.trace_step(cache, self._step(n, sequences))
        self.width = width = self._traces[0].output.dim(0)
        states = self._traces[0].states
        self.states_width = 0 if states is None else states.dim(0)
        if not self.model.only_embeds:
            self._trace_scoring(cache, graph)
        tables = [fewest_rows(t.ctx.graph, t.inputs) for t in self._traces]
        vocabulary = min((n for n in tables if n is not None), default=width)
        if width > vocabulary and not self.model.only_embeds:
            raise TensorError(
                f"the model gives logits for {width} tokens but takes only {vocabulary}: its "
                "output and its token embedding do not belong together"
            )
        return vocabulary

    def _trace_scoring(self, cache: Cache, graph: Graph) -> None:
        """Traces the graphs for logits of all rows. At once are computed those of as many rows as
        take no more memory than a result in the largest batch.

        Args:
            graph: the largest batch's.
        """
        largest = max(node.nbytes for node in graph.schedule) // (4 * self.width)
        rows = min(max(_FEWEST_SCORED, largest), cache.max_batch)
        states, output = self._traces[-1].states, self._traces[-1].output
        if states is None or states is output:
            self.scored = rows
            self.trace_step(cache, self._step(rows, rows))
            return
        self.trace_step(cache, self._step(cache.max_batch, cache.max_batch), self.model.states)
        self.head = Head(self.model, states.dim(0), rows)
        self.trace_step(cache, self.head.largest(), self.head.forward)

    def trace_step(self, cache: Cache, step: Step, forward: Forward | None = None) -> Graph:
        """Traces one more graph."""
        cache.start_forward(step, reserve=True)
        self._traces.append(trace(forward or self.forward, self.backend, cache, step))
        return self._traces[-1].ctx.graph

    def _step(self, n: int, sequences: int, *spans: Span) -> Step:
        outputs = n if self.model.only_embeds else min(n, sequences)
        return Step.blank(n, outputs, self.model.own_components(), spans=spans)

    def _span(self, item: Encoded, n: int) -> Span:
        """A whole item if it belongs to one input; else a row for each of n inputs."""
        one = max(item.embeddings, key=len)
        if self._whole:
            return Span(0, one, 0, len(one) if one.used is None else one.used)
        rows = MultimodalEmbedding(
            lambda: np.zeros((n, one.width)),
            shape=(n, one.width),
            key=b"reserved",
            parts=lambda: [np.zeros((n, width)) for width in one.widths],
            widths=one.widths,
        )
        return Span(0, rows, 0, n)

    def forward(self, ctx: Context, batch: Batch) -> Tensor:
        """The forward that reads every weight."""
        if not self.model.only_embeds:
            return self.model(ctx, batch)
        return self.model.embeddings(ctx, self.model.states(ctx, batch))

    @property
    def graphs(self) -> list[Graph]:
        """The traced graphs, until they are reserved."""
        contexts = [t.ctx for t in self._traces]
        contexts += [item.ctx for item in self._items if item.ctx is not None]
        return [ctx.graph for ctx in contexts]

    def weights_read(self) -> set[str]:
        """Names of the weights that the traced graphs read."""
        return _weights_of(self.graphs)

    def reserve(self) -> None:
        """Allocates the compute buffers that these graphs need."""
        for graph in self.graphs:
            self.backend.reserve(graph)
        self.close()

    def close(self) -> None:
        """Drops the traces; idempotent."""
        for t in self._traces:
            t.close()
        self._traces = []
        for item in self._items:
            item.close()
        self._items = []


def _weights_of(graphs: Iterable[Graph]) -> set[str]:
    return {
        source.name
        for graph in graphs
        for op in graph.schedule
        for source in op.sources
        if source is not None and isinstance(source.storage, Weight)
    }
