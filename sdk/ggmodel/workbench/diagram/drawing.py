"""Drawings of a diagram: its boxes, their layout, and SVG or DOT text.

The layout is Sugiyama's method in its plainest form. The row of a box is the longest path to it. An
edge that skips rows gets a lane in each of them: a narrow box without content. Boxes of a row are
sorted by the centres of their neighbours and moved as near to these as their widths allow.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from graphlib import TopologicalSorter
from itertools import pairwise
from typing import NamedTuple
from xml.sax.saxutils import escape


class Line(NamedTuple):
    """A line of text in a box; its kind is "op", "weight", "cache" or "input"."""

    kind: str
    text: str


@dataclass(eq=False)
class Box:
    """A module, a run of ops, or a tensor.

    Attributes:
        kind: "module", "ops" (a module's own, between modules in it) or "tensor".
        inner: the content of an opened module.
        x, y: its upper left corner, from the corner of the box around it; y grows downwards.
            Pixels, like width and height; all four are set by the layout.
    """

    kind: str
    title: str = ""
    lines: list[Line] = field(default_factory=list)
    inner: Diagram | None = None
    x: float = 0.0
    y: float = 0.0
    width: float = 0.0
    height: float = 0.0

    @property
    def centre(self) -> float:
        return self.x + self.width / 2


@dataclass(eq=False)
class Diagram:
    """Boxes, with edges from tensors to their readers and from producers to tensors.

    Attributes:
        paths: the points of each edge, set by the layout; see `layout`.
    """

    boxes: list[Box] = field(default_factory=list)
    edges: list[tuple[Box, Box]] = field(default_factory=list)
    paths: list[list[tuple[float, float]]] = field(default_factory=list)


FONT = 12  # pixels
CHARACTER = 7.3  # width of the monospaced font, at most; DejaVu Sans Mono has 7.23
LINE = 16  # from one line to the next
PAD = 9  # between a box and its content
_GAP = 26  # between two rows
_APART = 18  # between two boxes of a row
_LANE = 6  # width of a lane
_SWEEPS = 24  # alternately down and up
_STRAIGHT = 8.0  # weight of a lane in a row, a box having 1: long edges should have few bends
_TENSOR = 18  # height of a tensor
_PORTS = 28.0  # between two edges of a box, at most

_Near = dict[Box, list[Box]]  # the neighbours in the row above, or in the row below


def lay_out(diagram: Diagram, x: float = 0.0, y: float = 0.0) -> tuple[float, float]:
    """Sets sizes and places of the boxes, and the paths of the edges: three points for each row
    that an edge leaves, a vertical line to the row's lower end and a curve to the next row.

    Args:
        x, y: the upper left corner of the diagram.

    Returns:
        Its width and height.
    """
    for box in diagram.boxes:
        _measure(box)
    number = _rows(diagram)
    rows: list[list[Box]] = [[] for _ in range(max(number.values(), default=0) + 1)]
    for box in diagram.boxes:
        rows[number[box]].append(box)
    chains = [[a, *_lanes(rows, number[a], number[b]), b] for a, b in diagram.edges]
    above: _Near = {box: [] for row in rows for box in row}
    below: _Near = {box: [] for box in above}
    for upper, lower in (link for chain in chains for link in pairwise(chain)):
        below[upper].append(lower)
        above[lower].append(upper)
    _arrange(rows, above, below)
    left = min((box.x for box in above), default=0.0)
    right = max((box.x + box.width for box in above), default=0.0)
    bottom = top = y
    ends = []  # of the rows, upper and lower
    for row in rows:
        bottom = top + max((box.height for box in row), default=0.0)
        ends.append((top, bottom))
        for box in row:
            box.x, box.y = box.x + x - left, top
        top = bottom + (_GAP if row else 0)
    diagram.paths = []
    for chain, (a, _) in zip(chains, diagram.edges, strict=True):
        path: list[tuple[float, float]] = []
        for i, (upper, lower) in enumerate(pairwise(chain), number[a]):
            start, end = _port(upper, lower, below[upper]), _port(lower, upper, above[lower])
            path += [(start, upper.y + upper.height), (start, ends[i][1]), (end, ends[i + 1][0])]
        diagram.paths.append(path)
    return right - left, bottom - y


def _measure(box: Box) -> None:
    """Sets the size of a box, and lays out its content."""
    if box.kind == "tensor":
        box.width, box.height = len(box.title) * CHARACTER + 2 * PAD, _TENSOR
        return
    texts = [box.title, *("  " + line.text for line in box.lines)]
    width = max(len(text) for text in texts) * CHARACTER
    height = LINE * (bool(box.title) + len(box.lines))
    if box.inner is not None:
        inner_width, inner_height = lay_out(box.inner, PAD, 2 * PAD + height)
        width, height = max(width, inner_width), height + inner_height + PAD
    box.width, box.height = width + 2 * PAD, height + 2 * PAD


def _rows(diagram: Diagram) -> dict[Box, int]:
    """The row of each box: row 0 has tensors only, and a tensor from outside the diagram stands
    just above its first reader."""
    before: dict[Box, list[Box]] = {box: [] for box in diagram.boxes}
    for a, b in diagram.edges:
        before[b].append(a)
    number: dict[Box, int] = {}
    for box in TopologicalSorter(before).static_order():
        first = 0 if box.kind == "tensor" else 1
        number[box] = max((number[a] + 1 for a in before[box]), default=first)
    sources = [box for box in diagram.boxes if not before[box]]
    readers = {box: [number[b] for a, b in diagram.edges if a is box] for box in sources}
    return number | {box: min(rows) - 1 for box, rows in readers.items() if rows}


def _lanes(rows: list[list[Box]], first: int, last: int) -> Iterator[Box]:
    """Adds a lane to each row between two."""
    for row in rows[first + 1 : last]:
        row.append(Box("lane", width=_LANE))
        yield row[-1]


def _arrange(rows: list[list[Box]], above: _Near, below: _Near) -> None:
    """Sorts each row by the mean centres of its neighbours, and moves boxes towards these."""
    for row in rows:
        _move(row, [0.0] * len(row))
    for sweep in range(_SWEEPS):
        down = sweep % 2 == 0
        near = above if down else below

        def wish(box: Box, near: _Near = near) -> float:
            neighbours = near[box] or [box]
            return sum(other.centre for other in neighbours) / len(neighbours)

        for row in rows if down else rows[::-1]:
            row.sort(key=wish)
            _move(row, [wish(box) for box in row])


def _move(row: Sequence[Box], wishes: Sequence[float]) -> None:
    """Moves the centres as near to the wishes as the order allows, by least squares: neighbours
    whose wishes collide share the mean of these."""
    offset, offsets = 0.0, []
    for before, box in zip([None, *row], row, strict=False):
        offset += 0.0 if before is None else (before.width + box.width) / 2 + _APART
        offsets.append(offset)
    # Blocks of boxes that touch: the place of the first less its offset, weight, number of boxes.
    blocks: list[tuple[float, float, int]] = []
    for box, wish, offset in zip(row, wishes, offsets, strict=True):
        mean, weight, count = wish - offset, _STRAIGHT if box.kind == "lane" else 1.0, 1
        while blocks and blocks[-1][0] >= mean:
            other, heavy, n = blocks.pop()
            mean = (other * heavy + mean * weight) / (heavy + weight)
            weight, count = heavy + weight, count + n
        blocks.append((mean, weight, count))
    places = [mean for mean, _, count in blocks for _ in range(count)]
    for box, mean, offset in zip(row, places, offsets, strict=True):
        box.x = mean + offset - box.width / 2


def _port(box: Box, other: Box, near: list[Box]) -> float:
    """The x at which the edge to a neighbour begins or ends."""
    if box.kind in ("lane", "tensor"):
        return box.centre
    order = sorted(near, key=lambda n: n.centre)
    step = min(_PORTS, box.width / (len(near) + 1))
    return box.centre + (order.index(other) - (len(near) - 1) / 2) * step


_MARGIN = 16
_STYLE = f"""
text {{ font: {FONT}px "DejaVu Sans Mono", Menlo, Consolas, monospace; fill: #1f2328; }}
.title {{ font-weight: bold; }}
.weight {{ fill: #8250df; }} .cache {{ fill: #bc4c00; }} .input {{ fill: #0a6640; }}
rect {{ stroke: #8c959f; fill: #ffffff; }}
.depth1 > rect {{ fill: #f6f8fa; }} .depth2 > rect {{ fill: #eaeef2; }}
.ops > rect {{ stroke-dasharray: 3 2; }}
.tensor > rect {{ fill: #ddf4ff; stroke: none; }} .tensor > text {{ fill: #0550ae; }}
path {{ fill: none; stroke: #57606a; stroke-width: 1.2; }}
.background {{ fill: #ffffff; stroke: none; }}
"""
_HEAD = (
    '<defs><marker id="head" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7" '
    'orient="auto"><polygon points="0,0 8,4 0,8" fill="#57606a"/></marker></defs>'
)


def svg(diagram: Diagram) -> str:
    """Lays a diagram out and draws it; the same diagram gives the same text."""
    width, height = (2 * _MARGIN + size for size in lay_out(diagram, _MARGIN, _MARGIN))
    size = f'width="{width:.0f}" height="{height:.0f}"'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} viewBox="0 0 {width:.0f} {height:.0f}">',
        f"<style>{_STYLE}</style>",
        _HEAD,
        f'<rect class="background" {size}/>',
        *_drawn(diagram, 0),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _drawn(diagram: Diagram, depth: int) -> Iterator[str]:
    for box in diagram.boxes:
        place = f'transform="translate({box.x:.1f} {box.y:.1f})"'
        size = f'width="{box.width:.1f}" height="{box.height:.1f}"'
        yield f'<g class="{box.kind} depth{depth % 3}" {place}>'
        yield f'<rect {size} rx="{9 if box.kind == "tensor" else 4}"/>'
        yield from _texts(box)
        if box.inner is not None:
            yield from _drawn(box.inner, depth + 1)
        yield "</g>"
    for (_, end), path in zip(diagram.edges, diagram.paths, strict=True):
        head = "" if end.kind == "tensor" else ' marker-end="url(#head)"'
        yield f'<path d="{_curve(path)}"{head}/>'


def _texts(box: Box) -> Iterator[str]:
    if box.kind == "tensor":
        yield _text(box.title, PAD, FONT + 1)
        return
    y = PAD + FONT - 1
    if box.title:
        yield _text(box.title, PAD, y, "title")
        y += LINE
    for line in box.lines:
        indent = 0.0 if line.kind == "op" else 2 * CHARACTER
        yield _text(line.text, PAD + indent, y, line.kind)
        y += LINE


def _text(text: str, x: float, y: float, kind: str = "") -> str:
    name = f' class="{kind}"' if kind else ""
    return f'<text x="{x:.1f}" y="{y}"{name} xml:space="preserve">{escape(text)}</text>'


def _curve(path: list[tuple[float, float]]) -> str:
    parts = []
    for i in range(0, len(path), 3):
        (x0, y0), (x1, y1), (x2, y2) = path[i : i + 3]
        parts.append(f"{'L' if i else 'M'}{x0:.1f} {y0:.1f}L{x1:.1f} {y1:.1f}")
        middle = (y1 + y2) / 2
        parts.append(f"C{x1:.1f} {middle:.1f} {x2:.1f} {middle:.1f} {x2:.1f} {y2:.1f}")
    return "".join(parts)


def dot(diagram: Diagram) -> str:
    """A diagram as input of Graphviz: opened modules are clusters."""
    lines = [
        "digraph model {",
        '  graph [fontname="monospace", fontsize=11, compound=true];',
        '  node [shape=box, fontname="monospace", fontsize=10];',
        *_listed(diagram, "n", "  "),
        "}",
    ]
    return "\n".join(lines) + "\n"


def _listed(diagram: Diagram, name: str, indent: str) -> Iterator[str]:
    """The statements of a diagram; nodes are named by their places in it."""
    names = {box: f"{name}_{i}" for i, box in enumerate(diagram.boxes)}
    for box, own in names.items():
        if box.inner is not None:
            yield f"{indent}subgraph cluster_{own} {{"
            yield f"{indent}  label={_quoted([box.title])};"
            # An edge needs a node, also where a cluster stands for it.
            yield f"{indent}  {own} [shape=point, style=invis];"
            yield from _listed(box.inner, own, indent + "  ")
            yield f"{indent}}}"
        elif box.kind == "tensor":
            yield f"{indent}{own} [label={_quoted([box.title])}, shape=plaintext];"
        else:
            label = _quoted([box.title, *(line.text for line in box.lines)], left=True)
            yield f"{indent}{own} [label={label}];"
    for a, b in diagram.edges:
        ends = [f"{key}=cluster_{names[x]}" for key, x in (("ltail", a), ("lhead", b)) if x.inner]
        yield f"{indent}{names[a]} -> {names[b]}{f' [{chr(44).join(ends)}]' if ends else ''};"


def _quoted(lines: list[str], left: bool = False) -> str:
    plain = [line.replace("\\", "\\\\").replace('"', '\\"') for line in lines if line]
    return '"' + "".join(line + ("\\l" if left else "") for line in plain) + '"'
