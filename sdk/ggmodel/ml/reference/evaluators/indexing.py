"""Rows by index, sorting, triangles, ranges."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..elements import Elements, encode
from .table import computes, evaluates, in_range


@computes("rows")
def rows(table: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """table [b, a, n, d], ids [1, b, a, m] → [b, a, m, d]."""
    b, a = np.ogrid[: table.shape[0], : table.shape[1]]
    return table[b[..., None], a[..., None], in_range(ids[0], table.shape[2])]


@evaluates("set_rows")
def _set_rows(out: Elements, x: tuple, attrs: dict[str, Any]) -> None:
    """Writes src [b, a, m, d] into `out`, the memory of the destination [b, a, n, d]; ids
    [1, b', a', m] are repeated over b and a."""
    src, ids = encode(x[1].read(), out.dtype), in_range(x[2].read()[0], out.shape[2])
    for b in range(out.shape[0]):
        for a in range(out.shape[1]):
            out.raw[b, a, ids[b % ids.shape[0], a % ids.shape[1]]] = src[b, a]


@computes("argsort")
def argsort(x: np.ndarray, descending: bool = False) -> np.ndarray:
    """Stable: equal values keep their order."""
    return np.argsort(-x if descending else x, axis=-1, kind="stable")


@computes("argmax")
def argmax(x: np.ndarray) -> np.ndarray:
    """[1, 1, n, d] → [1, 1, 1, n]; the last of equals, as in ggml."""
    last = x.shape[-1] - 1
    return (last - x[..., ::-1].argmax(-1))[:, :, None]


@computes("diag")
def diag(x: np.ndarray) -> np.ndarray:
    """[…, 1, n] → […, n, n]."""
    return np.where(np.eye(x.shape[-1], dtype=bool), x, 0)


@computes("tri")
def tri(x: np.ndarray, kind: int) -> np.ndarray:
    """0 upper with diagonal, 1 upper, 2 lower with diagonal, 3 lower."""
    return np.triu(x, kind) if kind < 2 else np.tril(x, 2 - kind)


@computes("arange")
def arange(start: float, stop: float, step: float) -> np.ndarray:
    count = int(np.ceil((stop - start) / step))
    return (start + step * np.arange(count, dtype=np.float64))[None, None, None]
