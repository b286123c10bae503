"""Views, which share memory and compute nothing, and copies."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..elements import Elements
from .table import EVALUATORS, computes, evaluates


def _shared(out: Elements, x: tuple, a: dict[str, Any]) -> None:
    """The result lies in the operand's memory."""


for _name in ("reshape", "view", "permute"):
    EVALUATORS[_name] = _shared


def _moved(out: Elements, x: tuple, a: dict[str, Any]) -> None:
    out.raw[...] = x[0].raw


for _name in ("contiguous", "duplicate"):
    EVALUATORS[_name] = _moved


@evaluates("repeat")
def _repeat(out: Elements, x: tuple, a: dict[str, Any]) -> None:
    repeats = [n // m for n, m in zip(out.raw.shape, x[0].raw.shape, strict=True)]
    out.raw[...] = np.tile(x[0].raw, repeats)


@evaluates("concat")
def _concat(out: Elements, x: tuple, a: dict[str, Any]) -> None:
    out.raw[...] = np.concatenate([e.raw for e in x], 3 - a["dim"])


@computes("pad")
def _pad(x: np.ndarray, amounts: tuple[int, ...]) -> np.ndarray:
    return np.pad(x, [(0, n) for n in reversed(amounts)])


@evaluates("copy")
def _copy(out: Elements, x: tuple, a: dict[str, Any]) -> None:
    """Element by element in memory order; `out` is the memory of the destination."""
    source: Elements = x[0]
    if source.dtype == out.dtype:
        out.raw[...] = source.raw.reshape(out.raw.shape)
    else:
        out.write(source.read().reshape(out.shape))


@evaluates("set")
def _set(out: Elements, x: tuple, a: dict[str, Any]) -> None:
    _moved(out, x, a)
    _put(out, x, a)


@evaluates("set_inplace")
def _put(out: Elements, x: tuple, a: dict[str, Any]) -> None:
    """Writes the second operand into `out` [contiguous F32] at a byte offset and strides."""
    source: np.ndarray = x[1].raw
    strides = (*reversed(a["nb"]), out.raw.itemsize)
    flat = out.raw.reshape(-1)  # no copy: the receiver is contiguous
    window = np.ndarray(source.shape, flat.dtype, flat, a["offset"], strides)
    window[...] = source
