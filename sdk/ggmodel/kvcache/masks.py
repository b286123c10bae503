"""Masks of attention as host arrays."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..ml import CacheConfig, DType
from ..ml.storage import Rows

_FEW = 32


class Masks:
    """Makes masks of the backend's dtype, for ranges of cells and numbers of rows that are
    multiples of its paddings.

    Attributes:
        whole: masks of up to so many rows are made at once, larger ones as they are written.
    """

    def __init__(self, config: CacheConfig, whole: int = 0):
        self.padding, self._row_padding = config.padding, config.mask_batch_padding
        self.whole = max(_FEW, whole)
        half = config.mask_dtype is DType.F16
        self._bits, self._dtype = (np.uint16, np.float16) if half else (np.uint32, np.float32)
        self._hidden = np.array(-np.inf, self._dtype).view(self._bits)

    def padded(self, n: int) -> int:
        """The size of the range for n cells: the next multiple of the padding."""
        return round_up(n, self.padding)

    def rows(self, n: int) -> int:
        """The rows of a mask for n tokens."""
        return round_up(n, self._row_padding)

    def by_rows(self, n: int, size: int, seen: Callable[[slice], np.ndarray]) -> np.ndarray | Rows:
        """`of` for a mask of n tokens, [rows, size].

        Args:
            seen: a slice of tokens → what they see, bool [tokens, size]. The result is overwritten.
        """
        if n <= self.whole:
            return self.of(seen(slice(n)))
        total = self.rows(n)

        def make(rows: slice) -> np.ndarray:
            begin, end = min(rows.start, n), min(rows.stop, n)
            return self._of(seen(slice(begin, end)), min(rows.stop, total) - rows.start)

        return Rows((total, size), self._dtype, make)

    def of(self, seen: np.ndarray) -> np.ndarray:
        """0 where `seen`, bool [n, range], is true, −inf elsewhere: [rows, range]. `seen` is
        overwritten."""
        return self._of(seen, self.rows(len(seen)))

    def _of(self, seen: np.ndarray, rows: int) -> np.ndarray:
        if rows > len(seen):
            more = np.zeros((rows - len(seen), seen.shape[1]), bool)
            seen = np.concatenate([seen, more])
        # Integer arithmetic takes a third of the time of np.where or indexing.
        mask = np.logical_not(seen, out=seen).astype(self._bits)
        mask *= self._hidden
        return mask.view(self._dtype)


def round_up(n: int, multiple: int) -> int:
    """The lowest multiple that is at least n."""
    return -(-n // multiple) * multiple
