"""Rules of the positions that are kept and seen, and the masks and orders of a step."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field
from typing import ClassVar, TypeVar

import numpy as np

from ..ml.node import Rows
from ..model.batch import Step
from ..model.cache import CacheSpec, Rotation
from .cells import Cells, Masks, Window
from .order import Order, by_position

P = TypeVar("P", int, np.ndarray)


class Rule(CacheSpec):
    """Which keys and values of a layer are kept and seen, by position: a position sees itself and
    earlier ones.

    Attributes:
        rope: the rotation of the layer's keys; None if they are not rotated. `cache.rotate` in
            `forward` uses it, and the cache moves keys with it.
        shares: the number of an earlier layer, declared alike, whose keys and values this one
            reads; it stores none. None if it has its own.
        bounded: whether a position may not see some earlier ones.
        ahead: whether tokens of one group, such as the rows of an image, see later ones of it.
        relative: attention adds scores that follow from distances, see `LayerCache.by_distance`.
            It is not fused then, and takes no quantised keys and values.
        max_bias: of ALiBi: scores fall with the distance of positions. 0 is none.
    """

    rope: Rotation | None
    shares: int | None
    absolute: bool = False
    bounded: ClassVar[bool] = True
    ahead: bool = True
    relative: bool = False
    max_bias: float = 0.0

    @property
    @abstractmethod
    def span(self) -> int | None:
        """The most positions kept for what comes next; None if all are."""

    @abstractmethod
    def sees_from(self, position: P) -> P:
        """The first position that `position` sees; may be negative."""

    def keeps_from(self, position: int) -> int:
        """The first position that is kept when `position` comes next; may be negative."""
        return self.sees_from(position)


@dataclass(frozen=True)
class Evicted:
    """Cells, int64 [n], that a sequence gave up, with their positions and groups."""

    sequence: int
    cells: np.ndarray
    position: np.ndarray
    group: np.ndarray


@dataclass(slots=True)
class Placed:
    """The cells and the mask of one step.

    Attributes:
        cells: int64 [n], the cell of each token.
        window: the cells that attention reads.
        mask: of the backend's mask dtype, 0 (−distance with ALiBi) or −inf: [n, window]. None
            when only reserving.
        evicted: the cells that were given up to make room.
        lengths: int32 [sequences], before the step.
        allocations: of the table of cells, before the step.
        state: the cache's `_state` right after the step was placed.
        positions: int32 [window], those of the cells that attention reads, −1 in free ones; None
            where nothing follows from distances.
        order: in place of the mask where the backend's attention is ordered.
        lists: the numbers of its lists.
    """

    cells: np.ndarray
    window: Window
    mask: np.ndarray | Rows | None
    evicted: list[Evicted] = field(default_factory=list)
    lengths: np.ndarray | None = None
    allocations: dict[int, tuple[int, int]] = field(default_factory=dict)
    state: int = -1
    positions: np.ndarray | None = None
    order: Order | None = None
    lists: int = 0


def look(rule: Rule, table: Cells, masks: Masks, step: Step, placed: Placed) -> None:
    """Makes the mask of a step for its window; its cells are written."""
    window, n = placed.window, len(step.positions)
    cells = placed.cells - window.begin
    position, member = range_of(table, window.begin, window.size)
    if n > masks.whole:  # the cache may change before the mask is written
        position, member = position.copy(), member.copy()
    placed.mask = masks.by_rows(
        n, window.size, lambda rows: _visible(rule, step, cells, rows, position, member)
    )


def range_of(table: Cells, begin: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Positions [size] and members [sequences, size] of the cells from `begin` on."""
    return table.position[begin : begin + size], table.member[:, begin : begin + size]


def _visible(
    rule: Rule,
    step: Step,
    cells: np.ndarray,
    rows: slice,
    position: np.ndarray,
    member: np.ndarray,
) -> np.ndarray:
    """Whether some rows of a step see each cell of a range: bool [rows, size]; with ALiBi their
    `distances`.

    Args:
        cells: int64 [n], those of all rows of the step, counted from the range's begin.
        position, member: see `range_of`.
    """
    positions, sequences = step.positions[rows, None], step.sequences[rows]
    visible = position <= positions
    if rule.ahead and step.groups is not None and step.groups.any():
        grouped = step.groups[rows, None]
        visible[:, cells] |= (grouped == step.groups) & (grouped > 0)
    # Groups look ahead, not further back (transformers, `create_masks_for_vision_model`).
    if rule.bounded:
        visible &= position >= rule.sees_from(positions)
    if len(sequences) and (sequences == sequences[0]).all():
        visible &= member[sequences[0]]
    else:
        visible &= member[sequences]
    return distances(~visible, position, positions) if rule.max_bias else visible


_FARTHEST = 65504  # in half precision


def distances(hidden: np.ndarray, position: np.ndarray, seen_from: np.ndarray | int) -> np.ndarray:
    """Minus the distances of cells' positions from others, −inf where `hidden`: float32."""
    far = np.minimum(np.abs(position - seen_from), _FARTHEST)
    return np.where(hidden, np.float32(-np.inf), -far.astype(np.float32))


def order_of(rule: Rule, table: Cells, step: Step, begin: int) -> Order:
    """The order of a step whose cells are written, of cells counted from `begin`."""
    numbers, which = np.unique(step.sequences, return_inverse=True)
    lists = []
    for sequence in numbers:
        cells = np.flatnonzero(table.member[sequence, : table.end])
        lists.append(by_position(cells - begin, table.position[cells]))
    positions = step.positions.astype(np.int64)
    end = positions + 1
    if rule.ahead and step.groups is not None:
        for group in np.unique(step.groups[step.groups > 0]):
            mine = step.groups == group
            end[mine] = positions[mine].max() + 1
    return Order.of(lists, which.reshape(-1), rule.sees_from(positions), end)
