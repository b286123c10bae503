"""Masks of attention as host arrays."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..ml import CacheConfig, DType
from ..ml.storage import Rows

_FEW = 32


class Masks:
    """Makes masks of the backend's dtype, for ranges of cells that are multiples of its padding.

    Attributes:
        whole: masks of up to so many rows are made at once, larger ones as they are written.
    """

    def __init__(self, config: CacheConfig, whole: int = 0):
        self.padding, self.whole = config.padding, max(_FEW, whole)
        half = config.mask_dtype is DType.F16
        self._bits, self._dtype = (np.uint16, np.float16) if half else (np.uint32, np.float32)
        self._hidden = np.array(-np.inf, self._dtype).view(self._bits)

    def padded(self, n: int) -> int:
        """The size of the range for n cells: the next multiple of the padding."""
        return round_up(n, self.padding)

    def by_rows(self, n: int, size: int, seen: Callable[[slice], np.ndarray]) -> np.ndarray | Rows:
        """`of` for a mask [n, size].

        Args:
            seen: a slice of rows → what they see, bool [rows, size]. The result is overwritten.
        """
        if n <= self.whole:
            return self.of(seen(slice(n)))
        return Rows((n, size), self._dtype, lambda rows: self.of(seen(rows)))

    def of(self, seen: np.ndarray) -> np.ndarray:
        """0 where `seen` is true, −inf elsewhere. `seen` is a bool array and is overwritten."""
        # Integer arithmetic takes a third of the time of np.where or indexing.
        mask = np.logical_not(seen, out=seen).astype(self._bits)
        mask *= self._hidden
        return mask.view(self._dtype)


def round_up(n: int, multiple: int) -> int:
    """The lowest multiple that is at least n."""
    return -(-n // multiple) * multiple
