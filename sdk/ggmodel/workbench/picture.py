"""A recorded graph as boxes: one a module, layers that are alike as one, tensors between them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import NamedTuple

from ..errors import ConfigError
from ..ml.node import Node
from ..ml.storage import Feed, HostData, State, Weight
from .modules import module_of, number_of, parts_of
from .recorded import Recorded

_LONGEST = 72  # characters of a name
# What is said of an op besides its operands.
_SETTINGS = {
    "rope": ("dims", "base", "scale"),
    "scale": ("s",),
    "clamp": ("lo", "hi"),
    "norm": ("eps",),
    "rms_norm": ("eps",),
    "l2_norm": ("eps",),
    "flash_attention": ("scale",),
}


class Line(NamedTuple):
    """A line of text in a box; its kind is "op", "weight", "cache", "input" or "note"."""

    kind: str
    text: str


@dataclass(eq=False)
class Shape:
    """Something that is drawn.

    Attributes:
        kind: "module", "ops" (a module's own, between modules in it) or "tensor".
        inner: what is in it, where it is opened.
        x, y, width, height: where it is, in pixels; y grows downwards. Set by the layout.
    """

    kind: str
    title: str = ""
    lines: list[Line] = field(default_factory=list)
    inner: Diagram | None = None
    x: float = 0.0
    y: float = 0.0
    width: float = 0.0
    height: float = 0.0


@dataclass(eq=False)
class Diagram:
    """Shapes, and edges from tensors to what reads them and to tensors from what computes them.

    Attributes:
        paths: of each edge the points of its curve; see `layout`. Set by the layout.
    """

    shapes: list[Shape] = field(default_factory=list)
    edges: list[tuple[Shape, Shape]] = field(default_factory=list)
    paths: list[list[tuple[float, float]]] = field(default_factory=list)


def picture(graphs: Iterable[Recorded], layer: int | None = None) -> Diagram:
    """The boxes of recorded graphs.

    Args:
        layer: the number of a layer that is opened.

    Raises:
        ConfigError: no graph has such a layer; says which there are.
    """
    graphs = list(graphs)
    if layer is not None:
        _need_layer(graphs, layer)
    shapes = []
    for graph in graphs:
        inner = _Builder(graph, layer).diagram(graph.ops, "", 0)
        shapes.append(Shape("module", plain(graph.title), inner=inner))
    return Diagram(shapes)


def plain(text: str) -> str:
    """Text that takes as much room as it has characters: all but ASCII written as escapes, and the
    middle left out where it is long. Names of tensors come from strangers."""
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
        there = ", ".join(f"{name} {ranges(sorted(found))}" for name, found in lists.items())
        raise ConfigError(f"there is no layer {layer}; there is {plain(there) or 'none'}")


def ranges(numbers: Sequence[int]) -> str:
    """Ascending numbers for people: "0-3, 6, 8-9"."""
    runs = groupby(enumerate(numbers), lambda pair: pair[1] - pair[0])
    ends = [[n for _, n in run] for _, run in runs]
    return ", ".join(str(r[0]) if len(r) == 1 else f"{r[0]}-{r[-1]}" for r in ends)


@dataclass
class _Run:
    """Ops that follow one another and belong together.

    Attributes:
        part: the module below, "" for ops of the module itself.
        items: the numbers of the layers, where there are several in one.
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
        """Of the ops of a module, which is at `path` and so many modules deep."""
        found = Diagram()
        owner: dict[int, Shape] = {}
        for run in self._runs(ops, level):
            shape = self._shape(run, path, level)
            found.shapes.append(shape)
            owner.update((op.uid, shape) for op in run.ops)
        self._connect(found, ops, owner)
        return found

    # what belongs together

    def _runs(self, ops: Sequence[Node], level: int) -> list[_Run]:
        def part(op: Node) -> str:
            return (*parts_of(module_of(op))[level : level + 1], "")[0]

        runs = [_Run(name, list(group)) for name, group in groupby(ops, part)]

        def place(run: _Run) -> tuple[str, bool]:
            item = number_of(run.part)
            return ("", False) if item is None else (item[0], item[1] == self._layer)

        found: list[_Run] = []
        for (name, opened), group in groupby(runs, place):
            layers = list(group)
            found += layers if not name or opened else self._folded(name, layers, level)
        return found

    def _folded(self, name: str, layers: list[_Run], level: int) -> list[_Run]:
        """Layers that are alike as one, in the order of the first of each kind."""
        kinds: dict[object, list[_Run]] = {}
        for layer in layers:
            kinds.setdefault(_signature(layer.ops, level), []).append(layer)
        found = []
        for alike in kinds.values():
            numbers = [n for _, n in (number_of(one.part) or ("", 0) for one in alike)]
            ops = [op for one in alike for op in one.ops]
            part = alike[0].part if len(alike) == 1 else name
            found.append(_Run(part, ops, numbers, alike[0].ops))
        return found

    # shapes

    def _shape(self, run: _Run, path: str, level: int) -> Shape:
        if not run.part:
            return Shape("ops", lines=_op_lines(run.ops))
        below = ".".join(filter(None, [path, run.part]))
        if run.items:
            return self._closed(run, path, level)
        title = self._title(run.part, below)
        inside = {parts_of(module_of(op))[level + 1 : level + 2] for op in run.ops}
        if inside == {()}:
            return Shape("module", title, _op_lines(run.ops))
        return Shape("module", title, inner=self.diagram(run.ops, below, level + 1))

    def _title(self, name: str, path: str) -> str:
        return plain(f"{name}  {self._classes.get(path, '')}".rstrip())

    def _closed(self, run: _Run, path: str, level: int) -> Shape:
        """Layers, without what is in them: a line for each module of the first one."""
        name, first = run.part, module_of(run.first[0])
        below = ".".join(parts_of(first)[: level + 1])
        if len(run.items) > 1:
            name = f"{run.part}[{ranges(run.items)}]"
            title = plain(f"{name}  {self._classes.get(below, '')}") + f" × {len(run.items)}"
        else:
            title = self._title(name, below)
        groups: dict[str, list[Node]] = {}
        for op in run.first:
            inner = parts_of(module_of(op))[level + 1 : level + 2]
            groups.setdefault(inner[0] if inner else "", []).append(op)
        lines = []
        for part, ops in groups.items():
            kind = self._classes.get(f"{below}.{part}", "") if part else ""
            of = f"{part}  {kind}".rstrip() or "(itself)"
            lines.append(Line("op", plain(f"{of}: {len(ops)} op{'s'[: len(ops) != 1]}")))
        lines += _weight_lines(run)
        return Shape("module", title, lines)

    # tensors

    def _connect(self, found: Diagram, ops: Sequence[Node], owner: dict[int, Shape]) -> None:
        """Adds a shape for each tensor that goes from one shape to others, in, or out."""
        order = {shape: i for i, shape in enumerate(found.shapes)}
        read: dict[Node, list[Shape]] = {}
        for op in ops:
            reader = owner[op.uid]
            for x in op.sources:
                if x is None or x.op is None or owner.get(x.uid) is reader:
                    continue
                source = owner.get(x.uid)
                # Where layers of two kinds alternate, edges back are left out.
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
            tensor = Shape("tensor", text)
            found.shapes.append(tensor)
            found.edges += [(source, tensor)] if source else []
            found.edges += [(tensor, reader) for reader in readers]


def _signature(ops: Sequence[Node], level: int) -> object:
    """What layers have in common that are drawn as one."""
    return tuple(
        (parts_of(module_of(op))[level + 1 :], _op(op), op.dtype, op.ne, repr(op.attrs))
        for op in ops
    )


def _op(op: Node) -> str:
    assert op.op is not None
    return op.op.name


def _op_lines(ops: Sequence[Node]) -> list[Line]:
    """Each op with its result, and below it what it reads that no op computed."""
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
    """What the weights of layers take, and what else they read."""

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
