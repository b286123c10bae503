"""Where the shapes of a diagram go: in ranks from top to bottom, so that edges lead downwards.

Sugiyama's method in its plainest form. A shape's rank is the length of the longest way to it; an
edge over several ranks keeps a lane free in those between; within ranks, shapes are ordered by
where their neighbours are, and moved as near to these as the order allows. Between two ranks there
are edges only, and within a rank an edge is a vertical line in its own lane: none crosses a box.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from .picture import Diagram, Shape

FONT = 12  # pixels
CHARACTER = 7.3  # of the monospaced font, at most; DejaVu Sans Mono has 7.23
LINE = 16  # from one line to the next
PAD = 9  # between a box and what is in it
GAP = 26  # between two ranks
_APART = 18  # two shapes of a rank
_LANE = 6  # width of an edge's
_SWEEPS = 8
_STRAIGHT = 8.0  # weight of a lane's wish, a shape's being 1: long edges are to have few bends
_TENSOR = 18  # height


@dataclass(eq=False)
class _Item:
    """A shape, or a lane that an edge has in a rank (shape None).

    Attributes:
        centre: its x.
        above, below: neighbours in the ranks next to it.
    """

    shape: Shape | None
    width: float
    height: float = 0.0
    rank: int = 0
    centre: float = 0.0
    above: list[_Item] = field(default_factory=list)
    below: list[_Item] = field(default_factory=list)


def lay_out(diagram: Diagram, x: float = 0.0, y: float = 0.0) -> tuple[float, float]:
    """Places the shapes and edges of a diagram, from a left upper corner on.

    Returns:
        Width and height.
    """
    for shape in diagram.shapes:
        _measure(shape)
    items = {shape: _Item(shape, shape.width, shape.height) for shape in diagram.shapes}
    _set_ranks(diagram, items)
    ranks: list[list[_Item]] = [[] for _ in range(max((i.rank for i in items.values()), default=0))]
    ranks.append([])
    for item in items.values():
        ranks[item.rank].append(item)
    chains = [_chain(items[a], items[b], ranks) for a, b in diagram.edges]
    _order(ranks)
    _set_centres(ranks)
    left = min((i.centre - i.width / 2 for rank in ranks for i in rank), default=0.0)
    right = max((i.centre + i.width / 2 for rank in ranks for i in rank), default=0.0)
    bands = []
    for rank in ranks:
        height = max((item.height for item in rank), default=0.0)
        bands.append((y, y + height))
        for item in rank:
            item.centre += x - left
            if item.shape is not None:
                _move(item.shape, item.centre - item.width / 2, y)
        y += height + (GAP if rank else 0)
    diagram.paths = [_path(chain, bands) for chain in chains]
    bottom = bands[-1][1] if bands else y
    return right - left, bottom - bands[0][0] if bands else 0.0


def _measure(shape: Shape) -> None:
    """The size of a shape; what is in it is laid out at the origin."""
    if shape.kind == "tensor":
        shape.width, shape.height = len(shape.title) * CHARACTER + 2 * PAD, _TENSOR
        return
    texts = [shape.title, *("  " + line.text for line in shape.lines)]
    width = max(len(text) for text in texts) * CHARACTER
    height = LINE * (bool(shape.title) + len(shape.lines))
    if shape.inner is not None:
        inner_width, inner_height = lay_out(shape.inner)
        width, height = max(width, inner_width), height + inner_height + PAD
    shape.width, shape.height = width + 2 * PAD, height + 2 * PAD


def _move(shape: Shape, x: float, y: float) -> None:
    """Moves a shape with all that is in it, which lies relative to the origin."""
    shape.x, shape.y = x, y
    if shape.inner is not None:
        dx, dy = x + PAD, y + 2 * PAD + LINE * (bool(shape.title) + len(shape.lines))
        _shift(shape.inner, dx, dy)


def _shift(diagram: Diagram, dx: float, dy: float) -> None:
    for shape in diagram.shapes:
        shape.x, shape.y = shape.x + dx, shape.y + dy
        if shape.inner is not None:
            _shift(shape.inner, dx, dy)
    diagram.paths = [[(x + dx, y + dy) for x, y in path] for path in diagram.paths]


# ranks


def _set_ranks(diagram: Diagram, items: dict[Shape, _Item]) -> None:
    """The longest way to each; tensors that come from outside stand just above what reads them."""
    before: dict[Shape, list[Shape]] = {shape: [] for shape in diagram.shapes}
    after: dict[Shape, list[Shape]] = {shape: [] for shape in diagram.shapes}
    for a, b in diagram.edges:
        before[b].append(a)
        after[a].append(b)
    waiting = {shape: len(found) for shape, found in before.items()}
    ready = [shape for shape, n in waiting.items() if not n]
    for shape in ready:  # grows
        first = 0 if shape.kind == "tensor" else 1
        items[shape].rank = max((items[s].rank + 1 for s in before[shape]), default=first)
        for reader in after[shape]:
            waiting[reader] -= 1
            if not waiting[reader]:
                ready.append(reader)
    for shape in diagram.shapes:
        if not before[shape] and after[shape]:
            items[shape].rank = min(items[s].rank for s in after[shape]) - 1


def _chain(a: _Item, b: _Item, ranks: list[list[_Item]]) -> list[_Item]:
    """The items that an edge goes through: its ends, and lanes in the ranks between."""
    chain = [a]
    for rank in range(a.rank + 1, b.rank):
        lane = _Item(None, _LANE, rank=rank)
        ranks[rank].append(lane)
        chain.append(lane)
    chain.append(b)
    for upper, lower in pairwise(chain):
        upper.below.append(lower)
        lower.above.append(upper)
    return chain


# order and place within a rank


def _order(ranks: list[list[_Item]]) -> None:
    """Sorts each rank by where the neighbours are, going down and up."""
    for sweep in range(_SWEEPS):
        _sweep(ranks, down=sweep % 2 == 0)


def _sweep(ranks: list[list[_Item]], down: bool) -> None:
    place = {id(item): i for rank in ranks for i, item in enumerate(rank)}
    for rank in ranks if down else ranks[::-1]:

        def wish(item: _Item) -> float:
            near = item.above if down else item.below
            if not near:
                return float(place[id(item)])
            return sum(place[id(n)] for n in near) / len(near)

        rank.sort(key=wish)
        place.update((id(item), i) for i, item in enumerate(rank))


def _set_centres(ranks: list[list[_Item]]) -> None:
    """Moves items to the mean of their neighbours as far as the order leaves room."""
    for rank in ranks:
        _place(rank, lambda item: 0.0)
    for sweep in range(2 * _SWEEPS):
        down = sweep % 2 == 0
        for rank in ranks if down else ranks[::-1]:

            def wish(item: _Item, down: bool = down) -> float:
                near = (item.above if down else item.below) or [item]
                return sum(n.centre for n in near) / len(near)

            _place(rank, wish)


def _place(rank: Sequence[_Item], wish: Callable[[_Item], float]) -> None:
    """The places next to the wishes, by least squares, in the order given: neighbours whose wishes
    collide share the mean of what they want."""
    offset, offsets = 0.0, []
    for before, item in zip([None, *rank], rank, strict=False):
        offset += 0.0 if before is None else (before.width + item.width) / 2 + _APART
        offsets.append(offset)
    # Of items next to each other: the place of the first, less its offset; weight; how many.
    blocks: list[tuple[float, float, int]] = []
    for item, offset in zip(rank, offsets, strict=True):
        mean, weight, count = wish(item) - offset, _STRAIGHT if item.shape is None else 1.0, 1
        while blocks and blocks[-1][0] >= mean:
            other, heavy, n = blocks.pop()
            mean = (other * heavy + mean * weight) / (heavy + weight)
            weight, count = heavy + weight, count + n
        blocks.append((mean, weight, count))
    places = [mean for mean, _, count in blocks for _ in range(count)]
    for item, mean, offset in zip(rank, places, offsets, strict=True):
        item.centre = mean + offset


# edges


def _path(chain: list[_Item], bands: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """The points of an edge, three for each two ranks: a vertical line leads from the first to the
    second, which is the lower end of a rank, and a curve to the third, the upper end of the next.
    """
    points = []
    for upper, lower in pairwise(chain):
        top = bands[upper.rank][0] if upper.shape is None else upper.shape.y + upper.height
        start, end = _port(upper, lower, upper.below), _port(lower, upper, lower.above)
        bottom, below = bands[upper.rank][1], bands[lower.rank][0]
        points += [(start, top), (start, bottom), (end, below)]
    return points


def _port(item: _Item, other: _Item, near: list[_Item]) -> float:
    """Where at an item the edge to a neighbour begins or ends."""
    if item.shape is None or item.shape.kind == "tensor" or len(near) == 1:
        return item.centre
    order = sorted(near, key=lambda n: n.centre)
    step = min(28.0, item.width / (len(near) + 1))
    return item.centre + (order.index(other) - (len(near) - 1) / 2) * step
