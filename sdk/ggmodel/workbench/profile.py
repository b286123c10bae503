"""Where the time of a step goes: op by op, and what each op moves and computes.

The step is the one that generation computes, its graph recorded and laid out in the same way. To
time an op it is computed alone, after the one before it has ended. That costs something, which is
measured on an op that has nothing to do and taken off each; and the whole graph is timed at once
as well, so that both can be compared.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import numpy as np

from ..errors import ConfigError, Unsupported
from ..gguf_file.types import DType
from ..ml.ggml import peaks
from ..ml.ggml.ggml_backend import GGMLBackend
from ..ml.ggml.lowering import GGMLExecutable
from ..ml.graph import Graph
from ..ml.node import Node
from ..ml.storage import Weight
from ..model import Step
from ..runner import LoadedModel
from ..runner.engine.graphs import Forward, Graphs, trace
from .modules import folded, layer_of, module_of
from .traffic import VIEWS, Traffic, traffic

_SEED = 0


@dataclass(frozen=True)
class Work:
    """What is profiled.

    Attributes:
        prompt: tokens of a prompt; 0 is one token that is decoded.
        depth: tokens before.
        image: the graph that encodes an image, rather than tokens.
    """

    prompt: int = 0
    depth: int = 0
    image: bool = False

    @property
    def name(self) -> str:
        """ "pp512", "tg1 @ d2048", "image"."""
        if self.image:
            return "image"
        what = f"pp{self.prompt}" if self.prompt else "tg1"
        return what + (f" @ d{self.depth}" if self.depth else "")


@dataclass(frozen=True)
class TimedOp:
    """An op of the graph.

    Attributes:
        name: of its result. module: the path of the module it was recorded in.
        weight: the name of the weight it reads, the largest of several; "" for none.
        weight_type: its dtype where the op is a product of it; None otherwise.
        seconds: the median of the repetitions, without what computing it alone costs.
    """

    name: str
    op: str
    module: str
    dtype: str
    shape: tuple[int, ...]
    weight: str
    weight_type: str | None
    traffic: Traffic
    seconds: float

    @property
    def nbytes(self) -> int:
        """All that it moves."""
        return self.traffic.weights + self.traffic.activations

    @property
    def kind(self) -> str:
        """The op, of a product with the type of its weights: "mulmat Q8_0"."""
        return f"{self.op} {self.weight_type}" if self.weight_type else self.op


@dataclass(frozen=True)
class Row:
    """Ops that have something in common.

    Attributes:
        ops: how many. computed: so many of them take time. seconds: of all of them.
    """

    name: str
    ops: int
    computed: int
    seconds: float
    weights: int
    activations: int
    flops: int

    @property
    def nbytes(self) -> int:
        """All that they move."""
        return self.weights + self.activations

    @property
    def bandwidth(self) -> float:
        """Bytes a second; 0 where they take no time."""
        return self.nbytes / self.seconds if self.seconds else 0.0

    @property
    def flop_rate(self) -> float:
        """Operations of products a second; 0 where they take no time."""
        return self.flops / self.seconds if self.seconds else 0.0


@dataclass(frozen=True)
class Peaks:
    """What this machine reaches at most with the threads of the model.

    Attributes:
        bandwidth: bytes a second read of memory beyond the caches; None where that is not known.
        flops: by the type of weights: operations a second of products in the caches.
    """

    bandwidth: float | None = None
    flops: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Profile:
    """A profiled step.

    Attributes:
        ops: all that were recorded, in the order of execution.
        seconds: of the graph as it is computed otherwise, at once; the median.
        seconds_apart: of all ops, one by one and with what that costs; the median.
        overhead: seconds that it costs an op to be computed alone.
        threads: of the CPU.
    """

    work: Work
    ops: list[TimedOp]
    seconds: float
    seconds_apart: float
    overhead: float
    threads: int
    repetitions: int
    peaks: Peaks

    @property
    def seconds_of_ops(self) -> float:
        """What the ops took, without what it costs to compute them one by one."""
        return sum(op.seconds for op in self.ops)

    def by_op(self) -> list[Row]:
        """By what is computed, the longest first."""
        return self._by(lambda op: op.kind)

    def by_module(self) -> list[Row]:
        """By module, all layers together, the longest first. What a module does itself counts,
        not what modules in it do."""
        return self._by(lambda op: folded(op.module))

    def by_layer(self) -> list[Row]:
        """By layer and what is outside of layers, in the order of execution."""
        return _rows(self.ops, lambda op: layer_of(op.module))

    def _by(self, key: Callable[[TimedOp], str]) -> list[Row]:
        return sorted(_rows(self.ops, key), key=lambda row: -row.seconds)


def _rows(ops: Sequence[TimedOp], key: Callable[[TimedOp], str]) -> list[Row]:
    groups: dict[str, list[TimedOp]] = {}
    for op in ops:
        groups.setdefault(key(op), []).append(op)
    return [
        Row(
            name,
            len(group),
            sum(op.op not in VIEWS for op in group),
            sum(op.seconds for op in group),
            *(sum(column) for column in zip(*(op.traffic for op in group), strict=True)),
        )
        for name, group in groups.items()
    ]


def profile(model: LoadedModel, works: Sequence[Work], repetitions: int = 5) -> Iterator[Profile]:
    """Profiles steps of a model, one sequence each.

    Raises:
        ConfigError: no repetitions, or more tokens than a batch or the context has.
        Unsupported: ggml computes in another process, or not at all; or the model does not do what
            is asked for.
    """
    backend = model.backend
    if not isinstance(backend, GGMLBackend):
        raise Unsupported(
            "a profile needs ggml in this process: leave out rpc, and take the backend 'ggml'"
        )
    if repetitions < 1:
        raise ConfigError(f"{repetitions} repetitions; there must be at least 1")
    for work in works:
        _refuse(model, work)
    alone = not backend.hardware.gpus  # of other devices neither costs nor peaks are known
    call = model.engine.call
    overhead = call(lambda: peaks.op_overhead(backend.hardware)) if alone else 0.0
    bandwidth = call(lambda: peaks.read_bandwidth(backend.hardware)) if alone else None
    rates: dict[str, float] = {}

    def run(work: Work) -> Profile:
        with _graph(model, work) as (graph, step), ExitStack() as undo:
            executable = cast(GGMLExecutable, backend.compile(graph, ()))
            undo.callback(executable.close)
            if alone:
                _measure_rates(backend, graph, rates)
            whole, apart = _time(backend, executable, step, repetitions)
        seconds = np.maximum(np.median(apart, 0) - overhead, 0)
        return Profile(
            work,
            [_timed(node, s) for node, s in zip(graph.schedule, seconds.tolist(), strict=True)],
            statistics.median(whole),
            float(np.median(apart.sum(1))),
            overhead,
            backend.hardware.threads.n,
            repetitions,
            Peaks(bandwidth, rates),
        )

    for work in works:
        yield call(partial(run, work))


def _refuse(model: LoadedModel, work: Work) -> None:
    engine = model.engine
    if work.image:
        engine.images.need_sight()
        return
    if work.prompt < 0 or work.depth < 0:
        raise ConfigError(f"{work.name}: prompts and depths are 0 or more")
    if model.model.only_embeds and not work.prompt:
        raise Unsupported(f"{model.source.name} generates nothing, it only embeds: give a prompt")
    if engine.single_step and work.depth:
        raise Unsupported(f"{model.source.name} reads a text at once: there is nothing before it")
    if work.prompt > engine.batch_size:
        raise ConfigError(
            f"a prompt of {work.prompt} tokens is computed in batches of {engine.batch_size}: "
            "profile one of them, at a depth, or give a larger batch size"
        )
    needed = work.depth + max(1, work.prompt)
    if needed > engine.context_length:
        raise ConfigError(f"{work.name} needs {needed} positions of {engine.context_length}")


@contextmanager
def _graph(model: LoadedModel, work: Work) -> Iterator[tuple[Graph, Step | None]]:
    """The graph of a step, and the step; in the engine's thread."""
    engine = model.engine
    if work.image:
        image = engine.images.largest()
        try:
            assert image.ctx is not None
            yield image.ctx.graph, None
        finally:
            image.close()
        return
    random = np.random.default_rng(_SEED)
    count = max(1, work.prompt)
    tokens = random.integers(0, engine.vocabulary, work.depth + count, np.int32)
    with engine.apart.graphs(_forward(model), 1, len(tokens)) as graphs:
        if work.depth:
            for _ in engine.apart.batches(graphs, 0, tokens[: work.depth], 0, work.depth - 1):
                pass
        step = _step(tokens[work.depth :], work.depth, model.model.only_embeds)
        with _traced(graphs, step) as graph:
            yield graph, step


def _forward(model: LoadedModel) -> Forward:
    return model.model.states if model.model.only_embeds else model.model


def _step(tokens: np.ndarray, start: int, every_output: bool) -> Step:
    n = len(tokens)
    positions = np.arange(start, start + n, dtype=np.int32)
    outputs = np.arange(0 if every_output else n - 1, n, dtype=np.int32)
    return Step(tokens, positions, np.zeros(n, np.int32), outputs)


@contextmanager
def _traced(graphs: Graphs, step: Step) -> Iterator[Graph]:
    graphs.cache.start_forward(step)
    traced = trace(graphs.forward, graphs.backend, graphs.cache, step)
    try:
        yield traced.ctx.graph
    finally:
        traced.close()


def _time(
    backend: GGMLBackend, executable: GGMLExecutable, step: Any, repetitions: int
) -> tuple[list[float], np.ndarray]:
    """Seconds of the whole graph [repetitions], and of each op [repetitions, ops]; the two in turn,
    so that what else the machine does meets both. A first time of each does not count."""
    whole, apart = [], []
    for _ in range(repetitions + 1):
        before = backend.compute_seconds
        executable.run(step)
        whole.append(backend.compute_seconds - before)
        apart.append(executable.run_apart(step))
    return whole[1:], np.array(apart[1:]).reshape(repetitions, -1)


def _measure_rates(backend: GGMLBackend, graph: Graph, known: dict[str, float]) -> None:
    """Adds the peaks of products with weights of dtypes that are not known: those of the fastest
    arrangement there is."""
    for node in graph.schedule:
        dtype = _product_type(node)
        if dtype is None or dtype.name in known:
            continue
        places = (None, *backend.extra_buffer_types)
        known[dtype.name] = max(peaks.product_rate(backend.hardware, dtype, p) for p in places)


def _product_type(node: Node) -> DType | None:
    """The dtype of the weight that is multiplied with, in a product."""
    assert node.op is not None
    weight = node.sources[0] if node.op.name in ("mulmat", "mulmat_id") else None
    return weight.dtype if weight is not None and isinstance(weight.storage, Weight) else None


def _timed(node: Node, seconds: float) -> TimedOp:
    assert node.op is not None
    read = [x for x in node.sources if x is not None and isinstance(x.storage, Weight)]
    dtype = _product_type(node)
    return TimedOp(
        node.name,
        node.op.name,
        module_of(node),
        node.dtype.name,
        node.shape,
        max(read, key=lambda x: x.nbytes).name if read else "",
        None if dtype is None else dtype.name,
        traffic(node),
        0.0 if node.op.name in VIEWS else seconds,
    )
