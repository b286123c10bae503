"""Windows over pictures, relative positions, rolling, reflection."""

from __future__ import annotations

import numpy as np

from .table import computes


@computes("window_partition")
def window_partition(x: np.ndarray, size: int) -> np.ndarray:
    """x [1, height, width, c] → [windows, size, size, c]."""
    height, width, c = x.shape[1:]
    x = np.pad(x[0], [(0, -height % size), (0, -width % size), (0, 0)])
    x = x.reshape(x.shape[0] // size, size, x.shape[1] // size, size, c)
    return x.swapaxes(1, 2).reshape(-1, size, size, c)


@computes("window_unpartition")
def window_unpartition(x: np.ndarray, width: int, height: int) -> np.ndarray:
    """x [windows, size, size, c] → [1, height, width, c]."""
    size, c = x.shape[1], x.shape[3]
    x = x.reshape(-(-height // size), -(-width // size), size, size, c).swapaxes(1, 2)
    return x.reshape(1, x.shape[0] * size, -1, c)[:, :height, :width]


@computes("relative_positions")
def relative_positions(x: np.ndarray) -> np.ndarray:
    """x [1, 1, 2n − 1, c] → [1, n, n, c]."""
    n = (x.shape[2] + 1) // 2
    return x[0, :, n - 1 - np.arange(n) + np.arange(n)[:, None]].swapaxes(0, 2).swapaxes(1, 2)


@computes("add_relative_positions")
def add_relative_positions(x: np.ndarray, pw: np.ndarray, ph: np.ndarray) -> np.ndarray:
    """x [1, heads, queries, k · k], pw and ph [heads, rows, columns, k]."""
    both = ph[..., :, None] + pw[..., None, :]
    return x + both.reshape(x.shape)


@computes("roll")
def roll(x: np.ndarray, shifts: tuple[int, ...]) -> np.ndarray:
    return np.roll(x, shifts[::-1], (0, 1, 2, 3))


@computes("pad_reflect")
def pad_reflect(x: np.ndarray, before: int, after: int) -> np.ndarray:
    return np.pad(x, [(0, 0), (0, 0), (0, 0), (before, after)], "reflect")
