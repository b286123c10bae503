"""A step in a causal cache: its cells and its mask, and the cells of the step behind it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, TypeVar

import numpy as np

from ..ml.node import Rows
from ..model.batch import Step
from ..model.cache import CacheSpec, Rotation
from .cells import Cells, Masks, Window

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
    """

    rope: Rotation | None
    shares: int | None
    absolute: bool = False
    bounded: ClassVar[bool] = True
    ahead: bool = True

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
        mask: of the backend's mask dtype, 0 or −inf: [n, window]; with parts [m], the masks
            [rows, cells] of one part after the other. None when only reserving.
        rows: the mask of each part's rows, or of all rows; views of `mask`.
        evicted: the cells that were given up to make room.
        lengths: int32 [sequences], before the step.
        rooms: of the table of cells, before the step.
        state: the cache's `_state` right after the step was placed.
    """

    cells: np.ndarray
    window: Window
    mask: np.ndarray | Rows | None
    rows: list[np.ndarray] = field(default_factory=list)
    evicted: list[Evicted] = field(default_factory=list)
    lengths: np.ndarray | None = None
    rooms: dict[int, tuple[int, int]] = field(default_factory=dict)
    state: int = -1

    def row(self, i: int) -> tuple[np.ndarray, int]:
        """The mask of the only token of part i, or of token i without parts, and its first cell."""
        if not self.window.parts:
            return self.rows[0][i], self.window.begin
        return self.rows[i][0], self.window.begin + self.window.parts[i].begin


def look(rule: Rule, table: Cells, masks: Masks, step: Step, placed: Placed) -> None:
    """Makes the mask of a step for its window; its cells are written."""
    window, n = placed.window, len(step.positions)
    if not window.parts:
        cells = placed.cells - window.begin
        position, member = _range(table, window.begin, window.size)
        if n > masks.whole:  # the cache may change before the mask is written
            position, member = position.copy(), member.copy()
        placed.mask = masks.by_rows(
            n, window.size, lambda rows: _seen(rule, step, cells, rows, position, member)
        )
        placed.rows = [placed.mask] if isinstance(placed.mask, np.ndarray) else []
        return
    each = list[np.ndarray]()
    for part in window.parts:
        rows = slice(part.row, part.row + part.rows)
        mine = Step(
            step.tokens[rows],
            step.positions[rows],
            step.sequences[rows],
            step.outputs,
            None if step.groups is None else step.groups[rows],
        )
        first = window.begin + part.begin
        held = _range(table, first, part.cells)
        each.append(masks.of(_seen(rule, mine, placed.cells[rows] - first, slice(None), *held)))
    placed.mask = np.concatenate([mask.reshape(-1) for mask in each])
    pieces = np.split(placed.mask, np.cumsum([mask.size for mask in each])[:-1])
    placed.rows = [p.reshape(m.shape) for p, m in zip(pieces, each, strict=True)]


def _range(table: Cells, begin: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Positions [size] and members [sequences, size] of the cells from `begin` on."""
    return table.position[begin : begin + size], table.member[:, begin : begin + size]


def _seen(
    rule: Rule,
    step: Step,
    cells: np.ndarray,
    rows: slice,
    position: np.ndarray,
    member: np.ndarray,
) -> np.ndarray:
    """Whether some rows of a step see each cell of a range: bool [rows, size].

    Args:
        cells: int64 [n], those of all rows of the step, counted from the range's begin.
        position, member: see `_range`.
    """
    positions, sequences = step.positions[rows, None], step.sequences[rows]
    seen = position <= positions
    if rule.ahead and step.groups is not None and step.groups.any():
        grouped = step.groups[rows, None]
        seen[:, cells] |= (grouped == step.groups) & (grouped > 0)
    # Groups look ahead, not further back (transformers, `create_masks_for_vision_model`).
    if rule.bounded:
        seen &= position >= rule.sees_from(positions)
    if len(sequences) and (sequences == sequences[0]).all():
        seen &= member[sequences[0]]
    else:
        seen &= member[sequences]
    return seen


def following(
    rule: Rule, table: Cells, step: Step, placed: Placed
) -> tuple[Sequence[int], Sequence[int | None]] | None:
    """The cells of the next tokens of a computed step, and for each token the cell to mask that
    the token before it saw. A cell in use is taken over from the same sequence. None if finding
    cells takes more than that."""
    sequences, bounded = step.sequences.tolist(), rule.bounded
    if len(placed.window.parts) not in (0, len(sequences)):
        return None
    end, latest = table.end, placed.cells.tolist()
    # Without rooms: if the latest cells are not the last ones there may be holes, which are
    # filled first.
    in_a_row = latest[0] + len(latest) == end == latest[-1] + 1
    if not (table.expected or bounded or in_a_row):
        return None
    cells, hidden = list[int](), list[int | None]()
    for i, position in enumerate(step.positions.tolist()):
        mask, first = placed.row(i)
        last, cell, unseen = first + len(mask), None, None
        if bounded:
            given_up = _lost(rule.keeps_from, position)
            lost = _lost(rule.sees_from, position)
            if given_up is None or lost is None:
                return None
            cell = table.at(sequences[i], given_up, first, last)
            unseen = cell if lost == given_up else table.at(sequences[i], lost, first, last)
        if cell is not None:
            if table.member[:, cell].sum() > 1:
                return None
        elif table.expected:
            cell = latest[i] + 1
            if not table.free_next(cell, sequences[i]):
                return None
        else:
            cell, end = end, end + 1
        if not first <= cell < last:
            return None
        cells.append(cell)
        hidden.append(unseen)
    return cells, hidden


def _lost(first: Callable[[int], int], position: int) -> int | None:
    """The position that is out of range for `position` but not for the one before: −1 if there is
    none, None if there are several.

    Args:
        first: position → the first position in its range.
    """
    before, now = max(first(position - 1), 0), max(first(position), 0)
    return None if now > before + 1 else before if now > before else -1
