"""The name of a tensor's difference: permuted, scaled, edited, another tensor's, stale, ….

Each cause is tried on the numbers themselves, the most exact first: rows are compared by digests
of their bytes, all else within the error of the tensor's type.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from hashlib import blake2b
from math import prod
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ...convert.checkpoint_source import CheckpointSource
from ...convert.quantize import decode, encode
from ...errors import Error
from ...gguf_file import DType, TensorInfo, TensorSource

if TYPE_CHECKING:
    from .tensors import Recomputed

_MOST = 1 << 22  # numbers that are looked at, from the first row on
_MATCHED = 4096  # rows or columns that are matched with one another
_EDITED = 0.25  # share of blocks up to which a tensor is called edited
_EXACT = 1e-6  # NMSE of what is the same but for rounding in float32
_RELATED = 0.3  # correlation of weights that began as the same
_TWICE = (DType.Q8_0, DType.Q4_0, DType.Q4_K, DType.Q5_K, DType.Q6_K, DType.F16, DType.BF16)


class Cause(NamedTuple):
    """A name and a sentence."""

    kind: str
    note: str


def cause_of(
    file: TensorSource,
    original: CheckpointSource,
    t: TensorInfo,
    again: Recomputed,
    differing: int,
    blocks: int,
    is_beyond: bool,
) -> Cause:
    """The cause of a difference.

    Args:
        again: the tensor's bytes, recomputed.
        differing, blocks: how many blocks have other bytes, of how many.
        is_beyond: the values are further off than their type explains.
    """
    if (cause := _by_rows(again, t)) is not None:
        return cause
    looked_at = _Numbers(file, original, t, again.raw)
    a, e = looked_at.stored, looked_at.original
    if not np.isfinite(a).all():
        return Cause("not finite", "it holds NaN or infinity")
    if not a.any() and e.any():
        return Cause("zeroed", "all of it is 0")
    if differing <= _EDITED * blocks or differing <= 2:
        outside = "" if is_beyond else ", within the error of its type"
        return Cause("edited", f"{differing} of {blocks} blocks{outside}, {_places(again, t)}")
    if (before := _quantised_twice(looked_at)) is not None:
        return before
    if not is_beyond:
        return Cause("scales", "each value is within the error of its type, with other scales")
    for find in (_scaled, _shifted, _transposed, _of_another, _columns, _nearest_rows):
        if (cause := find(looked_at)) is not None:
            return cause
    likeness = _correlation(a, e)
    if likeness >= _RELATED:
        return Cause("stale", f"another state of these weights (correlation {likeness:.4f})")
    return Cause("unrelated", f"other weights (correlation {likeness:.4f})")


class _Numbers:
    """A tensor's numbers from the first row on, both float32 [rows, width].

    Attributes:
        allowed: NMSE that the type explains.
    """

    def __init__(
        self, file: TensorSource, original: CheckpointSource, t: TensorInfo, raw: np.ndarray
    ):
        self.file, self.from_checkpoint, self.t = file, original, t
        width = t.shape[0]
        rows = min(prod(t.shape[1:]), max(1, _MOST // width))
        self.raw = raw[: rows * t.dtype.row_size(width)]
        self.stored = decode(self.raw, t.dtype, rows * width).reshape(rows, width)
        self.original = original.rows(t.name, 0, rows)
        self.allowed = _EXACT
        if t.dtype.is_quantized:
            usual = decode(self._usual(), t.dtype, rows * width).reshape(rows, width)
            self.allowed += 4 * _nmse(usual, self.original)
        elif t.dtype in (DType.F16, DType.BF16):
            self.allowed = 1e-5

    def _usual(self) -> np.ndarray:
        ones = np.ones((1, self.t.shape[0]), np.float32)
        return encode(self.original, self.t.dtype, self.t.name, ones)


def _nmse(a: np.ndarray, e: np.ndarray) -> float:
    with np.errstate(over="ignore", invalid="ignore"):
        of = float(np.square(e).sum(dtype=float))
        return float(np.square(a - e).sum(dtype=float)) / of if of else np.inf


def _correlation(a: np.ndarray, e: np.ndarray) -> float:
    x, y = a.reshape(-1).astype(np.float64), e.reshape(-1).astype(np.float64)
    if x.std() > 1e-3 * abs(x.mean()):
        x, y = x - x.mean(), y - y.mean()
    norms = np.linalg.norm(x) * np.linalg.norm(y)
    return float(x @ y / norms) if norms else 0.0


def _digests(again: Recomputed, t: TensorInfo) -> tuple[list[bytes], list[bytes]]:
    """A digest of each row, as recomputed and as stored. A vector's numbers are its rows."""
    size = t.dtype.row_size(t.shape[0]) if len(t.shape) > 1 else t.dtype.type_size
    sides: tuple[list[bytes], list[bytes]] = ([], [])
    for pair in again.pieces():
        for digests, part in zip(sides, pair, strict=True):
            data = part.data
            starts = range(0, len(data), size)
            digests += [blake2b(data[i : i + size], digest_size=12).digest() for i in starts]
    return sides


def _by_rows(again: Recomputed, t: TensorInfo) -> Cause | None:
    """Rows, or whole matrices of experts, in another order."""
    if len(t.shape) == 1 and t.dtype.is_quantized:
        return None
    ours, theirs = _digests(again, t)
    if Counter(ours) != Counter(theirs):
        return None
    rows = t.shape[1] if len(t.shape) > 2 else 1
    if len(t.shape) > 2:
        mine, other = (
            [tuple(d[i : i + rows]) for i in range(0, len(d), rows)] for d in (ours, theirs)
        )
        if Counter(mine) == Counter(other):
            return Cause("swapped experts", _order(mine, other, "expert"))
    return Cause("permuted", _order(ours, theirs, "row" if len(t.shape) > 1 else "number"))


def _order(ours: list, theirs: list, what: str) -> str:
    """The first that is elsewhere, and how many are."""
    moved = [i for i, (a, b) in enumerate(zip(ours, theirs, strict=True)) if a != b]
    first = moved[0]
    return (
        f"{what} {first} is the checkpoint's {ours.index(theirs[first])}; "
        f"{len(moved)} {what}s are elsewhere"
    )


def _places(again: Recomputed, t: TensorInfo) -> str:
    """The first differing block and the number of rows that have one."""
    size = t.dtype.type_size
    row = max(1, t.shape[0] // t.dtype.block_size)
    at, first, rows = 0, -1, 0
    for ours, theirs in again.pieces():
        wrong = (ours != theirs).reshape(-1, size).any(1)
        if first < 0 and wrong.any():
            first = at + int(wrong.argmax())
        rows += int(wrong.reshape(-1, row).any(1).sum())
        at += len(wrong)
    return f"the first in row {first // row}; {rows} row{'s'[: rows != 1]}"


def _scaled(n: _Numbers) -> Cause | None:
    a, e = n.stored.astype(np.float64), n.original.astype(np.float64)
    squares = float(np.square(e).sum())
    factor = float((a * e).sum()) / squares if squares else 1.0
    if abs(factor - 1) < 1e-3 or abs(factor) < 1e-3:
        return None
    if float(np.square(a - factor * e).sum()) / squares > n.allowed * factor * factor:
        return None
    if abs(factor + 1) < 1e-3:
        return Cause("negated", "its numbers have the other sign")
    return Cause("scaled", f"its numbers are {factor:.5g} times the checkpoint's")


def _shifted(n: _Numbers) -> Cause | None:
    a, e = n.stored.astype(np.float64), n.original.astype(np.float64)
    by = float((a - e).mean())
    spread = float(np.square(e - e.mean()).sum()) + 1e-12
    off = float(np.square(a - e - by).sum())
    if abs(by) < 1e-3 or off > max(n.allowed * spread, 1e-9 * float(np.square(e).sum())):
        return None
    return Cause("shifted", f"its numbers are the checkpoint's and {by:.5g}")


def _transposed(n: _Numbers) -> Cause | None:
    rows, width = n.stored.shape
    if len(n.t.shape) != 2 or rows != n.t.shape[1] or rows == 1:
        return None
    if _nmse(n.stored, n.original.T.reshape(rows, width)) > n.allowed:
        return None
    return Cause("transposed", "its rows are the checkpoint's columns")


def _others(n: _Numbers) -> Iterator[str]:
    for name, info in n.from_checkpoint.tensors.items():
        if name != n.t.name and info.n_elements == n.t.n_elements and info.shape == n.t.shape:
            yield name


def _of_another(n: _Numbers) -> Cause | None:
    """Whether it holds the numbers of another tensor of the checkpoint."""
    rows = min(len(n.stored), 64)
    a = n.stored[:rows]
    if a.std() < 1e-6:  # constants are alike everywhere
        return None
    for name in _others(n):
        try:
            other = n.from_checkpoint.rows(name, 0, rows)
        except Error:
            continue
        if _nmse(a, other) <= n.allowed:
            return Cause("swapped", f"it holds the checkpoint's {name}")
    return None


def _match(a: np.ndarray, e: np.ndarray) -> np.ndarray | None:
    """For each row of `a` the row of `e` that it is, if these are all rows in another order."""
    if not 2 <= len(a) <= _MATCHED:
        return None
    x, y = (v / (np.linalg.norm(v, axis=1, keepdims=True) + 1e-30) for v in (a, e))
    order = (x @ y.T).argmax(1)
    if len(set(order.tolist())) < len(a) or (order == np.arange(len(a))).all():
        return None
    return order


def _columns(n: _Numbers) -> Cause | None:
    if n.stored.shape[0] < 2:
        return None
    order = _match(n.stored[:512].T, n.original[:512].T)
    if order is None or _nmse(n.stored, n.original[:, order]) > n.allowed:
        return None
    return Cause("permuted columns", _moved(order, "column"))


def _nearest_rows(n: _Numbers) -> Cause | None:
    """Rows in another order that were quantised with other scales."""
    rows = n.t.shape[1] if len(n.t.shape) > 1 else 1
    if rows != len(n.stored) or rows < 2:
        return None
    order = _match(n.stored, n.original)
    if order is None or _nmse(n.stored, n.original[order]) > n.allowed:
        return None
    return Cause("permuted", _moved(order, "row"))


def _moved(order: np.ndarray, what: str) -> str:
    moved = np.flatnonzero(order != np.arange(len(order)))
    first = int(moved[0])
    return (
        f"{what} {first} is the checkpoint's {int(order[first])}; "
        f"{len(moved)} {what}s are elsewhere"
    )


def _quantised_twice(n: _Numbers) -> Cause | None:
    """Whether the numbers went through a smaller type before."""
    rows = min(len(n.stored), 64)
    x, t = n.original[:rows], n.t
    part = n.raw[: rows * t.dtype.row_size(t.shape[0])]
    for before in _TWICE:
        if before is t.dtype or t.shape[0] % before.block_size:
            continue
        lossy = decode(encode(x, before), before, x.size).reshape(x.shape)
        try:
            again = encode(lossy, t.dtype, t.name)
        except Error:
            return None
        if np.array_equal(again, part):
            return Cause("requantised", f"it was quantised to {before} before")
    return None
