"""Finding the few tokens that matter among all logits, exactly and without sorting them."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator

import numpy as np

from ...errors import ComputeError

# Logits in a block whose maximum is looked at first.
_BLOCK = 64
_PART = 16384
_LEAST = float(np.finfo(np.float32).min)


def most_likely(logits: np.ndarray) -> int:
    """The index of the largest logit; of equal ones the first.

    Raises:
        ComputeError: there is none, one is NaN, or all are −∞.
    """
    if not logits.size:
        raise ComputeError("the model gave no logits")
    best = int(logits.argmax())  # of numbers and NaN, argmax gives the first NaN
    value = float(logits[best])
    if value == -math.inf:
        raise ComputeError(
            "no token can be chosen, all logits are -inf: logit_bias rules out every token, or "
            "the model's weights or hyperparameters are broken"
        )
    if not math.isfinite(value):
        raise ComputeError(
            f"the model's logits hold {value}: its weights or hyperparameters are broken; "
            "`ggmodel check FILE` shows what was loaded"
        )
    return best


def largest(logits: np.ndarray, k: int) -> np.ndarray:
    """The ids of the k largest logits, largest first, equal ones in order of id.

    Logits of −∞ are left out; none may be NaN.
    """
    if k <= 0:
        return np.empty(0, np.intp)
    ids = _containing(logits, k) if k < len(logits) else _from(logits, -math.inf)
    return _sorted(ids, logits[ids])[:k]


def reaching(logits: np.ndarray, least: float) -> np.ndarray:
    """The ids of all logits of at least `least`, sorted as those of `largest`."""
    ids = _from(logits, least)
    return _sorted(ids, logits[ids])


def _sorted(ids: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Ids by value, largest first, equal ones in order of id."""
    # Sorted as integers that hold value and id: stable, and several times faster than argsort.
    # Adding 0 makes −0 equal to 0; the exclusive or puts negative numbers in order.
    bits = (values + np.float32(0)).view(np.int32)
    bits ^= (bits >> 31) & 0x7FFFFFFF
    keys = (~bits).astype(np.int64) << 32 | ids
    keys.sort()
    return (keys & 0xFFFFFFFF).astype(np.intp)


def _containing(logits: np.ndarray, k: int) -> np.ndarray:
    """Ids, in order, among which are those of the k largest."""
    width = len(logits) // _BLOCK
    if width < 2 * k:
        return _from(logits, float(np.partition(logits, -k)[-k]))
    # Block j is every width-th logit from j on: a maximum over rows is the fast one.
    blocks = logits[: _BLOCK * width].reshape(_BLOCK, width)
    maxima = blocks.max(axis=0)
    # k blocks reach this value, therefore k logits do.
    least = float(np.partition(maxima, -k)[-k])
    if least == -math.inf:
        return _from(logits, least)
    columns = np.flatnonzero(maxima >= least)
    rows, hits = np.nonzero(blocks[:, columns] >= least)
    rest = np.flatnonzero(logits[_BLOCK * width :] >= least) + _BLOCK * width
    return np.concatenate((rows * width + columns[hits], rest))


def _from(logits: np.ndarray, least: float) -> np.ndarray:
    """Ids of logits of at least `least` and above −∞, in order."""
    return np.flatnonzero(logits >= np.float32(max(least, _LEAST)))


def weights(
    logits: np.ndarray, best: float, temperature: float, out: np.ndarray | None = None
) -> np.ndarray:
    """Probabilities relative to that of the logit `best`, the largest; float64."""
    scale = min(1 / temperature, sys.float_info.max)
    scores = np.subtract(logits, best, out=out, dtype=np.float64)
    with np.errstate(over="ignore"):  # towards −∞, whose weight is 0
        np.multiply(scores, scale, out=scores)
    return np.exp(scores, out=scores)


def mass(logits: np.ndarray, best: float, temperature: float) -> float:
    """The sum of `weights`."""
    buffer = np.empty(_PART)
    pieces = (weights(part, best, temperature, buffer[: len(part)]) for part in parts(logits))
    return sum(float(w.sum()) for w in pieces)


def parts(logits: np.ndarray) -> Iterator[np.ndarray]:
    """The logits piece by piece, so that intermediate results stay in the processor's cache."""
    return (logits[i : i + _PART] for i in range(0, len(logits), _PART))
