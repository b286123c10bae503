"""Comparison of two arrays: their layouts, and their distance."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ..gguf_file import DType
from ..ml import Tensor
from ..model import Module
from ..model.walk import tensors

_CHUNK = 1 << 22  # numbers looked at together
_BESIDE = 3  # numbers to either side of the worst that are shown

# Sums of float32 in another order: 3e-13 is usual, no healthy model reaches this.
EXACT = 1e-8
TABLE = 1e-6  # ggml's GELU by tanh reads a table in F16: up to 2e-7
# ggml rounds the other factor of a weight to the weight's type, and the weight itself may have been
# rounded: each a third of (2⁻¹¹)² and (2⁻⁹)² of the squares. The bounds are ten times their sum.
_HALF, _BRAIN = 1e-6, 3e-5


@dataclass(frozen=True)
class Errors:
    """The distance of a tensor from the reference's.

    Attributes:
        nmse: squared error divided by the squares of the reference.
        factor: the reference's tensor is about `factor` times ours.
        apart: NMSE that is left after ours has been multiplied by it.
        largest: the largest error; relative: the same divided by the reference's largest number.
        at: index of the largest error, in ggml order.
        start: index along dim 0 of the first sample.
        ours, theirs: samples, the numbers around the largest error.
    """

    nmse: float
    factor: float
    apart: float
    largest: float
    relative: float
    at: tuple[int, ...]
    start: int
    ours: list[float]
    theirs: list[float]


def factor_of(e: Errors | None) -> float | None:
    """The factor from ours to the reference's, if it explains the error: less than a thousandth is
    left then."""
    if e is None or not math.isfinite(e.nmse) or e.apart > 1e-3 * e.nmse:
        return None
    return e.factor


def errors(ours: np.ndarray, theirs: np.ndarray) -> Errors:
    """Compares arrays of the same shape; NaN on either side is an infinite error."""
    a, b = ours.reshape(-1), theirs.reshape(-1)
    squares = of_reference = of_ours = products = largest = 0.0
    worst = 0
    with np.errstate(all="ignore"):
        for lo in range(0, len(a), _CHUNK):
            x, y = (v[lo : lo + _CHUNK].astype(np.float64) for v in (a, b))
            distance = np.abs(x - y)
            distance[np.isnan(distance)] = np.inf
            k = int(distance.argmax())
            if distance[k] > largest:
                largest, worst = float(distance[k]), lo + k
            squares += float(distance @ distance)
            of_reference += float(y @ y)
            of_ours, products = of_ours + float(x @ x), products + float(x @ y)
    reference = float(np.abs(b).max(initial=0))
    column = worst % ours.shape[-1]
    row = slice(worst - column, worst - column + ours.shape[-1])
    start = max(0, column - _BESIDE)
    shown = slice(start, start + 2 * _BESIDE + 1)
    return Errors(
        nmse=_ratio(squares, of_reference),
        factor=(factor := _ratio(products, of_ours)),
        apart=max(0.0, 1 - factor * _ratio(products, of_reference)) if factor else math.inf,
        largest=largest,
        relative=_ratio(largest, reference),
        at=tuple(int(i) for i in np.unravel_index(worst, ours.shape))[::-1],
        start=start,
        ours=a[row][shown].tolist(),
        theirs=b[row][shown].tolist(),
    )


def _ratio(a: float, b: float) -> float:
    if math.isfinite(a) and math.isfinite(b) and b > 0:
        return a / b
    return 0.0 if a == 0 else math.inf


def laid_out(theirs: np.ndarray, shape: tuple[int, ...]) -> np.ndarray | str:
    """The reference's array in our shape (numpy order), or the reason why that is impossible.

    Batch dims of 1 are dropped, neighbouring dims may be merged, and heads may stand before tokens.
    Where two readings fit, none is taken.
    """
    if theirs.size != math.prod(shape):
        return f"the reference's is {_listed(theirs.shape)}"
    plain = theirs.reshape([n for n in theirs.shape if n > 1] or [1])
    wanted = tuple(n for n in shape if n > 1) or (1,)
    turned = plain.swapaxes(0, 1) if plain.ndim == 3 else plain
    if plain.ndim == 3 and plain.shape == wanted and turned.shape == wanted:
        n = wanted[0]
        return f"dims 1 and 2 are both {n}: tokens or heads? take a prompt of another length"
    if _merges(plain.shape, wanted):
        return plain.reshape(shape)
    if turned.shape == wanted:
        return turned.reshape(shape)
    return f"the reference's is {_listed(theirs.shape)}"


def _merges(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    """Whether merging neighbouring dims turns one shape into the other."""
    first, second = ({math.prod(s[:i]) for i in range(len(s) + 1)} for s in (a, b))
    return first <= second or second <= first


def _listed(shape: tuple[int, ...]) -> str:
    return str(list(shape[::-1]))


def bound_of(module: Module) -> float:
    """The largest NMSE of a module's result that rounding explains, given an exact input: the sum
    over its matrices."""
    return sum(_rounding(w) for w in tensors(module) if w.dim(1) > 1) or EXACT


def _rounding(weight: Tensor) -> float:
    """The largest NMSE of a product with a weight that rounding explains.

    Blocks of b bits cut some ±2.5 standard deviations into 2^b steps: a squared error of
    (5 / 2^b)² / 12 = 2 / 4^b of the squares. Ten times as much is allowed, for uneven weights.
    """
    if not weight.dtype.is_quantized:
        return {DType.F16: _HALF, DType.BF16: _BRAIN}.get(weight.dtype, EXACT)
    bits = int(8 * weight.dtype.type_size / weight.dtype.block_size)
    return min(1.0, 20 / 4**bits)
