"""Layout of a diagram: rows from top to bottom, so that every edge leads downwards.

Sugiyama's method in its plainest form. The row of a box is the longest path to it. An edge that
skips rows gets a lane in each of them: a narrow box without content. Boxes of a row are sorted by
the centres of their neighbours and moved as near to these as their widths allow. Edges run
vertically within a row and bend only between rows, so none crosses a box.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from graphlib import TopologicalSorter
from itertools import pairwise

from .boxes import Box, Diagram

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
    return number | {box: min(found) - 1 for box, found in readers.items() if found}


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
            found = near[box] or [box]
            return sum(other.centre for other in found) / len(found)

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
