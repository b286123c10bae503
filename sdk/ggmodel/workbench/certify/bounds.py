"""The error that a quantised type can make: what its blocks could hold, by the scales they have.

A quantiser chooses scales and then, for each number, the nearest value that these allow. An
importance matrix changes the scales. The choice of values therefore shows, without that matrix,
whether a block was made of these very numbers.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ...convert.quantize import decode
from ...gguf_file import DType

_IQ4 = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
# Ties may go either way: some types round the scale to F16 after values were chosen.
_TIES, _HALF = 1e-3, 2.0**-11


class _Codes(NamedTuple):
    """The part of a block that chooses values.

    Attributes:
        spans: (start, stop) of its bytes.
        levels: values of a number; even steps between them, or `table`.
        low, high: the byte of the smallest and the largest value.
        rounded: the scale is rounded after values were chosen.
    """

    spans: tuple[tuple[int, int], ...]
    levels: int
    low: int = 0x00
    high: int = 0xFF
    table: tuple[int, ...] = ()
    rounded: bool = False


# Bytes of the blocks in ggml-common.h.
_CODES = {
    DType.Q8_0: _Codes(((2, 34),), 256, 0x80, 0x7F, rounded=True),
    DType.Q2_K: _Codes(((16, 80),), 4),
    DType.Q3_K: _Codes(((0, 96),), 8),
    DType.Q4_K: _Codes(((16, 144),), 16),
    DType.Q5_K: _Codes(((16, 176),), 32),
    DType.Q6_K: _Codes(((0, 192),), 64),
    DType.IQ4_NL: _Codes(((2, 18),), 16, table=_IQ4),
    DType.IQ4_XS: _Codes(((8, 136),), 16, table=_IQ4),
}
HAVE_BOUNDS = frozenset(_CODES)
"""Types whose blocks are judged one by one. Others choose scales after values, or have codebooks:
they are judged as whole tensors."""


def beyond(raw: np.ndarray, dtype: DType, values: np.ndarray) -> np.ndarray:
    """Which blocks hold a value that is not the nearest to its number, bool [blocks].

    Args:
        raw: the bytes of whole blocks.
        dtype: one of `HAVE_BOUNDS`.
        values: the numbers that they were made of, float32.
    """
    codes = _CODES[dtype]
    blocks = raw.reshape(-1, dtype.type_size)
    x = values.reshape(-1)
    low = _with(blocks, codes, dtype, codes.low)
    stored = decode(raw, dtype, x.size)
    if codes.table:
        wrong = _beyond_table(stored, x, low / codes.table[0], codes.table)
    else:
        high = _with(blocks, codes, dtype, codes.high)
        step = np.abs(high - low) / (codes.levels - 1)
        within = np.clip(x, np.minimum(low, high), np.maximum(low, high))
        allowed = step * (0.5 + _TIES) + np.abs(x) * (_HALF if codes.rounded else 1e-6)
        wrong = np.abs(stored - within) > allowed
    return np.asarray(wrong.reshape(len(blocks), -1).any(1))


def _with(blocks: np.ndarray, codes: _Codes, dtype: DType, byte: int) -> np.ndarray:
    """The numbers of the blocks with this byte in place of all that choose values."""
    changed = blocks.copy()
    for start, stop in codes.spans:
        changed[:, start:stop] = byte
    return decode(changed.reshape(-1), dtype, len(blocks) * dtype.block_size)


def _beyond_table(
    stored: np.ndarray, x: np.ndarray, unit: np.ndarray, values: tuple[int, ...]
) -> np.ndarray:
    """The same where values are not evenly spaced; `unit` is the scale of each number."""
    table = np.array(values, np.float32)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        place = np.where(unit != 0, x / unit, 0)
    at = np.clip(np.searchsorted(table, place), 1, len(table) - 1)
    below, above = table[at - 1], table[at]
    nearest = np.where(place - below <= above - place, below, above)
    tie = np.abs(place - (below + above) / 2) <= np.abs(place) * 2 * _HALF + _TIES
    allowed = np.where(tie, np.abs(unit) * (above - below), 0) * (1 + _TIES) + np.abs(x) * 1e-6
    return np.abs(stored - unit * nearest) > allowed
