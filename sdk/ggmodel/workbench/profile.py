"""Profiles: the time, bytes and operations of each op of a step, also as a timeline.

The graph is recorded and laid out as for generation. Each op is computed alone, after the
previous one has ended; the cost of stopping is measured on an op without work and taken off.
The whole graph is timed as well, for comparison.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import Any, cast

import numpy as np

from ..errors import ConfigError, Unsupported
from ..gguf_file.types import DType
from ..ml.ggml import peaks
from ..ml.ggml.ggml_backend import GGMLBackend
from ..ml.ggml.lowering import GGMLExecutable
from ..ml.graph import Graph
from ..ml.node import Node, Weight
from ..model import Prepared, Step
from ..runner import LoadedModel
from ..runner.engine.graphs import Graphs, trace
from ..runner.engine.scoring import Scoring
from .nodes import VIEWS, Traffic, folded, layer_of, module_of, parts_of, traffic

_SEED = 0


@dataclass(frozen=True)
class Workload:
    """A step to profile.

    Attributes:
        prompt: tokens of a prompt; 0 decodes one token.
        depth: tokens in the cache before.
        image: encode an image instead of tokens.
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
        name: of its result. module: the path of the module that recorded it.
        weight: the name of the largest weight it reads; "" for none.
        weight_type: the weight's dtype in a product; None for other ops.
        seconds: the median of the repetitions, less the cost of computing it alone.
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
        """Bytes read and written."""
        return self.traffic.weights + self.traffic.activations

    @property
    def kind(self) -> str:
        """The op, with the weights' type for a product: "mulmat Q8_0"."""
        return f"{self.op} {self.weight_type}" if self.weight_type else self.op


@dataclass(frozen=True)
class OpGroup:
    """Sums over ops of one kind, module or layer.

    Attributes:
        ops: their number. computed: the number without views. seconds: of all of them.
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
        """Bytes read and written."""
        return self.weights + self.activations

    @property
    def bandwidth(self) -> float:
        """Bytes a second; 0 if they take no time."""
        return self.nbytes / self.seconds if self.seconds else 0.0

    @property
    def flop_rate(self) -> float:
        """Operations of products a second; 0 if they take no time."""
        return self.flops / self.seconds if self.seconds else 0.0


@dataclass(frozen=True)
class Peaks:
    """The most that this machine reaches with the model's threads.

    Attributes:
        bandwidth: bytes a second read from memory beyond the caches; None if unknown.
        flops: type of weights → operations a second of products in the caches.
    """

    bandwidth: float | None = None
    flops: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Profile:
    """A profiled step.

    Attributes:
        ops: all recorded ops, in execution order.
        seconds: of the graph computed at once; the median.
        seconds_apart: of all ops computed one by one, overhead included; the median.
        overhead: seconds that computing an op alone costs.
        threads: of the CPU.
    """

    work: Workload
    ops: list[TimedOp]
    seconds: float
    seconds_apart: float
    overhead: float
    threads: int
    repetitions: int
    peaks: Peaks

    @property
    def seconds_of_ops(self) -> float:
        """The sum over the ops, overhead taken off."""
        return sum(op.seconds for op in self.ops)

    def by_op(self) -> list[OpGroup]:
        """By kind of op, the longest first."""
        return self._by(lambda op: op.kind)

    def by_module(self) -> list[OpGroup]:
        """By module, all layers together, the longest first. The ops of a submodule count for the
        submodule alone."""
        return self._by(lambda op: folded(op.module))

    def by_layer(self) -> list[OpGroup]:
        """By layer, and by module outside of layers, in execution order."""
        return _grouped(self.ops, lambda op: layer_of(op.module))

    def _by(self, key: Callable[[TimedOp], str]) -> list[OpGroup]:
        return sorted(_grouped(self.ops, key), key=lambda group: -group.seconds)


def _grouped(ops: Sequence[TimedOp], key: Callable[[TimedOp], str]) -> list[OpGroup]:
    groups: dict[str, list[TimedOp]] = {}
    for op in ops:
        groups.setdefault(key(op), []).append(op)
    return [
        OpGroup(
            name,
            len(group),
            sum(op.op not in VIEWS for op in group),
            sum(op.seconds for op in group),
            *(sum(column) for column in zip(*(op.traffic for op in group), strict=True)),
        )
        for name, group in groups.items()
    ]


def profile(
    model: LoadedModel, works: Sequence[Workload], repetitions: int = 5
) -> Iterator[Profile]:
    """Profiles steps of a model, one sequence each.

    Raises:
        ConfigError: no repetitions, or more tokens than a batch or the context holds.
        Unsupported: ggml does not compute in this process, or the model lacks what a workload
            needs.
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
    alone = not backend.hardware.gpus  # overhead and peaks of GPUs are unknown
    call = model.engine.call
    overhead = call(lambda: peaks.op_overhead(backend.hardware)) if alone else 0.0
    bandwidth = call(lambda: peaks.read_bandwidth(backend.hardware)) if alone else None
    rates: dict[str, float] = {}

    def run(work: Workload) -> Profile:
        with (
            _graph(model, work) as (graph, step),
            closing(cast(GGMLExecutable, backend.compile(graph, ()))) as executable,
        ):
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


def _refuse(model: LoadedModel, work: Workload) -> None:
    engine = model.engine
    if work.image:
        engine.images.modality("image")
        return
    if work.prompt < 0 or work.depth < 0:
        raise ConfigError(f"{work.name}: prompts and depths are 0 or more")
    if model.model.only_embeds and not work.prompt:
        raise Unsupported(f"{model.source.name} generates nothing, it only embeds: give a prompt")
    if engine.single_step and work.depth:
        raise Unsupported(f"{model.source.name} reads a text at once: profile it without a depth")
    if work.prompt > engine.batch_size:
        raise ConfigError(
            f"a prompt of {work.prompt} tokens is computed in batches of {engine.batch_size}: "
            "profile one of them, at a depth, or give a larger batch size"
        )
    needed = work.depth + max(1, work.prompt)
    if needed > engine.context_length:
        raise ConfigError(f"{work.name} needs {needed} positions of {engine.context_length}")


@contextmanager
def _graph(model: LoadedModel, work: Workload) -> Iterator[tuple[Graph, Step | Prepared | None]]:
    """The graph of a workload and its step; in the engine's thread."""
    engine = model.engine
    if work.image:
        with closing(engine.images.largest("image")) as image:
            assert image.ctx is not None
            yield image.ctx.graph, image.prepared
        return
    random = np.random.default_rng(_SEED)
    count = max(1, work.prompt)
    tokens = random.integers(0, engine.vocabulary, work.depth + count, np.int32)
    net = model.model
    forward = net.states if net.only_embeds else net
    with Scoring(engine).graphs(forward, 1, len(tokens)) as graphs:
        if work.depth:
            for _ in Scoring(engine).batches(graphs, 0, tokens[: work.depth], 0, work.depth - 1):
                pass
        step = _step(graphs, tokens[work.depth :], work.depth, net.only_embeds)
        graphs.cache.start_forward(step)
        with closing(trace(forward, model.backend, graphs.cache, step)) as traced:
            yield traced.ctx.graph, step


def _step(graphs: Graphs, tokens: np.ndarray, start: int, every_output: bool) -> Step:
    n, zeros = len(tokens), np.zeros(len(tokens), np.int32)
    positions = np.arange(start, start + n, dtype=np.int32)
    outputs = np.arange(0 if every_output else n - 1, n, dtype=np.int32)
    step = Step(tokens, positions, zeros, outputs)
    if graphs.histories is not None:
        step.components = graphs.histories.components(tokens, positions, zeros)
    return step


def _time(
    backend: GGMLBackend, executable: GGMLExecutable, step: Any, repetitions: int
) -> tuple[list[float], np.ndarray]:
    """Seconds of the whole graph [repetitions], and of each op [repetitions, ops].

    The two are measured in turn, so that other load on the machine meets both; the first run of
    each does not count.
    """
    whole, apart = [], []
    for _ in range(repetitions + 1):
        before = backend.compute_seconds
        executable.run(step)
        whole.append(backend.compute_seconds - before)
        apart.append(executable.run_apart(step))
    return whole[1:], np.array(apart[1:]).reshape(repetitions, -1)


def _measure_rates(backend: GGMLBackend, graph: Graph, rates: dict[str, float]) -> None:
    """Adds the peak rate of products for each new dtype of weights, in its fastest arrangement."""
    for node in graph.schedule:
        dtype = _product_type(node)
        if dtype is None or dtype.name in rates:
            continue
        places = (None, *backend.weights.extra_buffer_types)
        rates[dtype.name] = max(peaks.product_rate(backend.hardware, dtype, p) for p in places)


def _product_type(node: Node) -> DType | None:
    """The dtype of the weight in a product; None for other ops."""
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


def chrome_trace(profiles: Iterable[Profile]) -> dict[str, Any]:
    """The JSON object; times are in microseconds."""
    events = [event for pid, p in enumerate(profiles, 1) for event in _events(pid, p)]
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _events(pid: int, profile: Profile) -> Iterator[dict[str, Any]]:
    depth = max((len(parts_of(op.module)) for op in profile.ops), default=0)
    rows = [profile.work.name, *(f"modules, depth {n + 1}" for n in range(depth)), "ops"]
    yield _about(pid, 0, "process_name", profile.work.name)
    for tid, name in enumerate(rows):
        yield _about(pid, tid, "thread_name", name)
        yield {**_about(pid, tid, "thread_sort_index", ""), "args": {"sort_index": tid}}
    starts, now = [], 0.0
    for op in profile.ops:
        starts.append(now)
        now += op.seconds * 1e6
    placed = list(zip(profile.ops, starts, [*starts[1:], now], strict=True))
    yield _complete(pid, 0, profile.work.name, 0.0, now)
    for level in range(1, depth + 1):
        paths = (parts_of(op.module)[:level] for op in profile.ops)
        for path, run in groupby(zip(paths, placed, strict=True), itemgetter(0)):
            if len(path) == level:
                ops = [one for _, one in run]
                yield _complete(pid, level, ".".join(path), ops[0][1], ops[-1][2])
    for op, start, end in placed:
        if op.seconds:
            yield {**_complete(pid, depth + 1, op.kind, start, end), "args": _arguments(op)}


def _about(pid: int, tid: int, what: str, name: str) -> dict[str, Any]:
    return {"ph": "M", "pid": pid, "tid": tid, "name": what, "args": {"name": name}}


def _complete(pid: int, tid: int, name: str, start: float, end: float) -> dict[str, Any]:
    return {"ph": "X", "pid": pid, "tid": tid, "name": name, "ts": start, "dur": end - start}


def _arguments(op: TimedOp) -> dict[str, Any]:
    return {
        "tensor": op.name,
        "result": f"{op.dtype} {list(op.shape)}",
        "weight": op.weight,
        "bytes of weights": op.traffic.weights,
        "bytes of activations": op.traffic.activations,
        "GB/s": round(op.nbytes / op.seconds / 1e9, 3),
        "GFLOP/s": round(op.traffic.flops / op.seconds / 1e9, 3),
    }
