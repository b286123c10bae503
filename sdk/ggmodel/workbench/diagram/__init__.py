"""Diagrams of graphs that are recorded from a file without reading its weights.

One box a module, one for all layers that are alike, tensors between; drawn as SVG or DOT text.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing, nullcontext
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

from ...errors import ConfigError, Unsupported
from ...gguf_file import TensorSource
from ...loading import open_source
from ...ml import Context
from ...ml.node import Feed, HostData, Node, State, Weight
from ...model import Model, Span, Step, VisionModel
from ...model.module import join
from ...model.walk import instances
from ...runner.engine.graphs import Trace, trace
from ...runner.engine.images import Encoded
from ...runner.loading.preparation import Preparation
from ...runner.options import Options
from ..nodes import module_of, number_of, parts_of, ranges
from .drawing import Box, Diagram, Line, dot, svg

__all__ = ["Box", "Diagram", "build", "dot", "svg"]

_SHORTEST = 256  # positions of the context


@dataclass(frozen=True)
class Recorded:
    """A recorded graph.

    Attributes:
        title: of the graph, "text: 512 tokens".
        ops: in the order of recording.
        outputs: uids of its results.
        classes: path of a module → name of its class.
    """

    title: str
    ops: Sequence[Node]
    outputs: frozenset[int]
    classes: Mapping[str, str]


def record(
    file: str | Path | TensorSource,
    *,
    tokens: int = 512,
    parts: Sequence[str] = (),
    mmproj: str | Path | None = None,
    flash_attention: str = "auto",
    kv_type: str = "f16",
    models: str | Path | None = None,
    strict: bool = True,
) -> list[Recorded]:
    """Records the vision graph and the text graph of a model.

    Args:
        tokens: in the batch. A prompt of more than one includes an image if the model is
            multimodal.
        parts: "vision", "text"; empty for all that the model has.

    Raises:
        ConfigError: `tokens` is below 1 or beyond the model's context.
        Unsupported: "vision" of a model without vision.
        Error: as `load`, except for errors of the vocabulary and of memory.
    """
    if tokens < 1:
        raise ConfigError(f"{tokens} tokens; there must be at least 1")
    options = Options(
        context_length=max(tokens, _SHORTEST),
        batch_size=tokens,
        gpu_layers=0,
        flash_attention=flash_attention,
        kv_type=kv_type,
        models=models,
        strict=strict,
        rpc=(),
        alloc_memory=False,
    )
    source = open_source(file, mmproj, models)
    with nullcontext() if source is file else source, Preparation(source, options) as steps:
        steps.configure()
        steps.fill()
        steps.fit()
        steps.validate()
        steps.trace()
        return _record(steps, tokens, parts)


def _record(steps: Preparation, tokens: int, parts: Sequence[str]) -> list[Recorded]:
    model, graphs = steps.model, []
    chosen = parts or ("vision", "text")
    classes = {instance.scope: type(instance.module).__name__ for instance in instances(model)}
    kinds = [*model.modalities()]
    if "vision" in parts and not kinds:
        raise Unsupported(f"{steps.source.name} holds no vision tensors: it has no vision graph")
    with ExitStack() as opened:
        images = steps.engine.images
        items = [opened.enter_context(closing(images.largest(kind))) for kind in kinds]
        for kind, item in zip(kinds, items, strict=True):
            if item.ctx is not None and "vision" in chosen:
                graphs.append(_recorded(_title(model, kind), item.ctx, classes))
        if "text" in chosen:
            with closing(_text(steps, tokens, items[0] if items else None)) as traced:
                n = f"{tokens} tokens" if tokens > 1 else "1 token"
                graphs.append(_recorded(f"text: {n}", traced.ctx, classes, traced.output))
    return graphs


def _title(model: Model, kind: str) -> str:
    own = type(model).modalities
    if kind == "image" and isinstance(model, VisionModel) and own is VisionModel.modalities:
        width, height = model.largest_image
        return f"vision: an image of {width} x {height} pixels"
    return f"vision: the largest {kind}" if kind != "audio" else "audio: the longest sound"


def _text(steps: Preparation, tokens: int, item: Encoded | None) -> Trace:
    """The recorded forward of a batch of tokens."""
    engine, model = steps.engine, steps.model
    spans = ()
    if item is not None and tokens > 1:
        embedding = max(item.embeddings, key=len)
        whole = len(embedding) if embedding.used is None else embedding.used
        spans = (Span(0, embedding, 0, whole if engine.inputs.whole else min(tokens, whole)),)
    outputs = tokens if model.only_embeds else 1
    step = Step.blank(tokens, outputs, model.own_components(), spans=spans)
    engine.cache.start_forward(step, reserve=True)
    forward = model.states if model.only_embeds else model
    return trace(forward, steps.backend, engine.cache, step)


def _recorded(
    title: str, ctx: Context, classes: Mapping[str, str], output: Node | None = None
) -> Recorded:
    ops = sorted(ctx.graph.schedule, key=lambda op: op.uid)
    read = {x.uid for op in ops for x in op.sources if x is not None}
    outputs = [ops[-1]] if output is None else [output]
    return Recorded(title, ops, frozenset(o.uid for o in outputs if o.uid not in read), classes)


_LONGEST = 72  # characters of a name
# Attributes of ops that are shown.
_SETTINGS = {
    "rope": ("dims", "base", "scale"),
    "scale": ("s",),
    "clamp": ("lo", "hi"),
    "norm": ("eps",),
    "rms_norm": ("eps",),
    "l2_norm": ("eps",),
    "flash_attention": ("scale",),
}


def build(graphs: Sequence[Recorded], layer: int | None = None) -> Diagram:
    """The diagram of recorded graphs.

    Args:
        layer: the number of a layer to open, in all graphs.

    Raises:
        ConfigError: no graph has such a layer; lists the layers there are.
    """
    if layer is not None:
        _need_layer(graphs, layer)
    return Diagram(
        [
            Box("module", plain(g.title), inner=_Builder(g, layer).diagram(g.ops, "", 0))
            for g in graphs
        ]
    )


def plain(text: str) -> str:
    """A name as printable ASCII of bounded length: other characters are escaped, and the middle of
    a long name is left out. Names in a file may be hostile."""
    text = "".join(c if " " <= c <= "~" else c.encode("unicode_escape").decode() for c in text)
    half = _LONGEST // 2
    return text if len(text) <= _LONGEST else f"{text[: half - 3]}...{text[-half:]}"


def described(node: Node) -> str:
    """Dtype and shape: "F32 [2048, 512]"."""
    return f"{node.dtype.name} {list(node.shape)}"


def _need_layer(graphs: Sequence[Recorded], layer: int) -> None:
    lists: dict[str, set[int]] = {}
    for graph in graphs:
        for op in graph.ops:
            parts = parts_of(module_of(op))
            for i, part in enumerate(parts):
                item = number_of(part)
                if item is not None:
                    lists.setdefault(".".join([*parts[:i], item[0]]), set()).add(item[1])
    if not any(layer in numbers for numbers in lists.values()):
        there = ", ".join(f"{name} {ranges(sorted(layers))}" for name, layers in lists.items())
        raise ConfigError(f"there is no layer {layer}; there is {plain(there) or 'none'}")


@dataclass
class _Run:
    """Consecutive ops of one submodule, or of all layers that are alike.

    Attributes:
        part: the submodule, "" for ops of the module itself.
        items: the numbers of folded layers.
        first: the ops of the first of these.
    """

    part: str
    ops: list[Node]
    items: list[int] = field(default_factory=list)
    first: list[Node] = field(default_factory=list)


class _Builder:
    def __init__(self, graph: Recorded, layer: int | None):
        self._classes, self._outputs, self._layer = graph.classes, graph.outputs, layer
        self._readers: dict[int, set[int]] = {}
        for op in graph.ops:
            for x in op.sources:
                if x is not None:
                    self._readers.setdefault(x.uid, set()).add(op.uid)

    def diagram(self, ops: Sequence[Node], path: str, level: int) -> Diagram:
        """The diagram of a module's ops.

        Args:
            path: of the module. level: its depth in the tree of modules.
        """
        diagram = Diagram()
        owner: dict[int, Box] = {}
        for run in self._runs(ops, level):
            box = self._box(run, path, level)
            diagram.boxes.append(box)
            owner.update((op.uid, box) for op in run.ops)
        self._connect(diagram, ops, owner)
        return diagram

    def _runs(self, ops: Sequence[Node], level: int) -> list[_Run]:
        runs = [
            _Run(part, list(group)) for part, group in groupby(ops, lambda op: _part(op, level))
        ]

        def folds_with(run: _Run) -> tuple[str, bool]:
            item = number_of(run.part)
            return ("", False) if item is None else (item[0], item[1] == self._layer)

        folded: list[_Run] = []
        for (name, opened), group in groupby(runs, folds_with):
            layers = list(group)
            folded += layers if not name or opened else self._folded(name, layers, level)
        return folded

    def _folded(self, name: str, layers: list[_Run], level: int) -> list[_Run]:
        """One run for all layers that are alike, in the order of the first of each kind."""
        kinds: dict[object, list[_Run]] = {}
        for layer in layers:
            kinds.setdefault(_signature(layer.ops, level), []).append(layer)
        folded = []
        for alike in kinds.values():
            numbers = [n for _, n in (number_of(run.part) or ("", 0) for run in alike)]
            ops = [op for run in alike for op in run.ops]
            part = alike[0].part if len(alike) == 1 else name
            folded.append(_Run(part, ops, numbers, alike[0].ops))
        return folded

    def _box(self, run: _Run, path: str, level: int) -> Box:
        if not run.part:
            return Box("ops", lines=_op_lines(run.ops))
        if run.items:
            return self._closed(run, level)
        below = join(path, run.part)
        title = self._title(run.part, below)
        if not any(_part(op, level + 1) for op in run.ops):
            return Box("module", title, _op_lines(run.ops))
        return Box("module", title, inner=self.diagram(run.ops, below, level + 1))

    def _title(self, name: str, path: str) -> str:
        return plain(f"{name}  {self._classes.get(path, '')}".rstrip())

    def _closed(self, run: _Run, level: int) -> Box:
        """A box for folded layers: a line for each submodule of the first."""
        below = ".".join(parts_of(module_of(run.first[0]))[: level + 1])
        if len(run.items) > 1:
            title = self._title(f"{run.part}[{ranges(run.items)}]", below) + f" × {len(run.items)}"
        else:
            title = self._title(run.part, below)
        counts = Counter(_part(op, level + 1) for op in run.first)
        lines = []
        for part, n in counts.items():
            name = self._title(part, join(below, part)) if part else "(itself)"
            lines.append(Line("op", plain(f"{name}: {n} op{'s'[: n != 1]}")))
        return Box("module", title, lines + _weight_lines(run))

    def _connect(self, diagram: Diagram, ops: Sequence[Node], owner: dict[int, Box]) -> None:
        """Adds a box for each tensor that enters or leaves the diagram, or links two boxes."""
        order = {box: i for i, box in enumerate(diagram.boxes)}
        read: dict[Node, list[Box]] = {}
        for op in ops:
            reader = owner[op.uid]
            for x in op.sources:
                if x is None or x.op is None or owner.get(x.uid) is reader:
                    continue
                source = owner.get(x.uid)
                # Edges back between alternating kinds of layers are left out.
                if source is None or order[source] < order[reader]:
                    readers = read.setdefault(x, [])
                    readers += [] if reader in readers else [reader]
        for op in ops:
            outside = self._readers.get(op.uid, set()) - owner.keys()
            if outside or op.uid in self._outputs:
                read.setdefault(op, [])
        drawn: set[object] = set()
        for x in sorted(read, key=lambda x: x.uid):
            source, readers = owner.get(x.uid), read[x]
            text = described(x) if source else plain(x.name) + f"  {described(x)}"
            same = (id(source), *map(id, readers), text)
            if same in drawn:
                continue
            drawn.add(same)
            tensor = Box("tensor", text)
            diagram.boxes.append(tensor)
            diagram.edges += [(source, tensor)] if source else []
            diagram.edges += [(tensor, reader) for reader in readers]


def _part(op: Node, level: int) -> str:
    """The submodule that an op belongs to at a depth; "" if it lies no deeper."""
    parts = parts_of(module_of(op))
    return parts[level] if level < len(parts) else ""


def _signature(ops: Sequence[Node], level: int) -> object:
    """Equal for layers that are drawn as one."""
    return tuple(
        (parts_of(module_of(op))[level + 1 :], _op(op), op.dtype, op.ne, repr(op.attrs))
        for op in ops
    )


def _op(op: Node) -> str:
    assert op.op is not None
    return op.op.name


def _op_lines(ops: Sequence[Node]) -> list[Line]:
    """A line for each op and its result, then lines for the weights, caches and inputs it reads."""
    lines = []
    for op in ops:
        settings = "".join(f" {k}={op.attrs[k]:g}" for k in _SETTINGS.get(_op(op), ()))
        lines.append(Line("op", f"{_op(op)}{settings} → {described(op)}"))
        for x in op.sources:
            kind = None if x is None else _leaf(x)
            if x is not None and kind is not None:
                lines.append(Line(kind, plain(x.name or "input") + f"  {described(x)}"))
    return lines


def _leaf(x: Node) -> str | None:
    kinds = {Weight: "weight", State: "cache", Feed: "input", HostData: "input"}
    return kinds.get(type(x.storage))


def _weight_lines(run: _Run) -> list[Line]:
    """Lines for the weights of layers, then for their caches and inputs."""

    def leaves(ops: Sequence[Node], kind: str) -> dict[str, Node]:
        read = [x for op in ops for x in op.sources if x is not None and _leaf(x) == kind]
        return {x.name: x for x in read}

    weights = leaves(run.ops, "weight").values()
    size = sum(x.nbytes for x in weights)
    types = sorted({x.dtype.name for x in weights})
    lines = []
    if weights:
        text = f"{len(weights)} weights, {', '.join(types)}, {size / (1 << 20):.2f} MiB"
        lines.append(Line("weight", text))
    caches = leaves(run.first, "cache")
    if caches:
        each = ", ".join(dict.fromkeys(described(x) for x in caches.values()))
        lines.append(Line("cache", f"cache, {len(caches)} a layer: {each}"))
    for name, x in leaves(run.first, "input").items():
        lines.append(Line("input", plain(name or "input") + f"  {described(x)}"))
    return lines
