"""How one array was computed from others: exact fits in float64.

All rows are tokens. A right fit is exact to a few digits less than float64 has, and a wrong one
misses by orders of magnitude; `EXACT` lies between.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from .recording import Array

EXACT = 1e-8  # of the largest value
SINGLE = 1e-4  # the same of tables whose angles are computed in float32
_erf = np.vectorize(math.erf)


def equal(a: Array | None, b: Array | None, error: float = EXACT) -> bool:
    """Whether both are the same numbers, but for rounding."""
    if a is None or b is None or a.shape != b.shape:
        return False
    return bool(np.abs(a - b).max(initial=0) <= error * max(1e-30, np.abs(b).max(initial=0)))


def combination(
    target: Array, sources: Mapping[str, Array], error: float = EXACT
) -> dict[str, float] | None:
    """The factors with which the sources add up to the target; None if they do not."""
    names = [name for name, x in sources.items() if x.shape == target.shape]
    for name in names:
        if equal(target, sources[name]):
            return {name: 1.0}
    if not names:
        return None
    columns = np.stack([sources[name].ravel() for name in names], axis=1)
    factors = np.linalg.lstsq(columns, target.ravel(), rcond=1e-11)[0]
    if not equal(columns @ factors, target.ravel(), error):
        return None
    return {n: _plain(f) for n, f in zip(names, factors, strict=True) if abs(f) > 10 * error}


def _plain(value: float) -> float:
    return float(f"{value:.9g}")


ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "silu": lambda x: x / (1 + np.exp(-x)),
    "gelu": lambda x: x * (1 + _erf(x / math.sqrt(2))) / 2,
    "gelu_new": lambda x: x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2,
    "quick_gelu": lambda x: x / (1 + np.exp(-1.702 * x)),
    "relu": lambda x: np.maximum(x, 0),
    "relu2": lambda x: np.maximum(x, 0) ** 2,
    "tanh": np.tanh,
}
_SAMPLE = 40  # tokens; an error function is slow in numpy


def activated(target: Array, x: Array) -> str | None:
    """The activation that makes the target of x."""
    few = slice(0, _SAMPLE)
    if target.shape != x.shape:
        return None
    return next((n for n, f in ACTIVATIONS.items() if equal(f(x[few]), target[few])), None)


@dataclass(frozen=True)
class Gated:
    """activation(gate) · up, or activation(up) without a gate.

    Attributes:
        gate, up: names of their sources.
        halves: both are halves of one source, the gate first; or "swapped", the gate last.
    """

    activation: str
    up: str
    gate: str = ""
    halves: str = ""


def gated(target: Array, sources: Mapping[str, Array]) -> Gated | None:
    """The feed-forward activation that makes the target of results of linear maps."""
    few, width = slice(0, _SAMPLE), target.shape[-1]
    whole = {n: x[few] for n, x in sources.items() if x.ndim == 2 and x.shape[-1] == width}
    wanted = target[few]
    for name, x in whole.items():
        if activation := activated(wanted, x):
            return Gated(activation, name)
    pairs = [(g, u, whole[g], whole[u], "") for g in whole for u in whole if g != u]
    for name, x in sources.items():
        if x.ndim == 2 and x.shape[-1] == 2 * width:
            a, b = x[few, :width], x[few, width:]
            pairs += [(name, name, a, b, "first"), (name, name, b, a, "swapped")]
    for gate, up, g, u, halves in pairs:
        for activation, f in ACTIVATIONS.items():
            if equal(f(g) * u, wanted):
                return Gated(activation, up, gate, halves)
    return None


@dataclass(frozen=True)
class Norm:
    """A norm of the last dim.

    Attributes:
        kind: "rms" or "layer".
        plus_one: the weight is one less than the factor.
        weights: whether it has any.
        width: elements that are normalised together.
    """

    kind: str
    eps: float
    plus_one: bool = False
    weights: bool = True
    bias: bool = False
    width: int = 0


def norm_of(x: Array, y: Array, weights: Mapping[str, Array]) -> Norm | None:
    """The norm that makes y of x with these weights; None if it is none."""
    if x.shape != y.shape or x.shape[-1] < 2:
        return None
    weight = next((w for k, w in weights.items() if "bias" not in k and k != "beta"), None)
    bias = next((w for k, w in weights.items() if "bias" in k or k == "beta"), None)
    if weight is not None and weight.shape != x.shape[-1:]:
        return None
    one = np.ones(x.shape[-1])
    for kind in ("rms", "layer"):
        centred = x - x.mean(-1, keepdims=True) if kind == "layer" else x
        power = (centred**2).mean(-1)
        for plus_one in (False, True):
            factor = one if weight is None else weight + plus_one
            shown = y if bias is None else y - bias
            i = np.argmax(np.abs(factor * centred), axis=-1)[..., None]
            base = np.take_along_axis(factor * centred, i, -1)
            root = base / np.take_along_axis(shown, i, -1)  # √(power + eps)
            eps = float(np.median(root[..., 0] ** 2 - power))
            if not -1e-12 < eps < 0.5:
                continue
            made = factor * centred / np.sqrt(power + max(eps, 0))[..., None]
            if equal(made, shown):
                eps = float(f"{max(eps, 0):.6g}")
                named = weight is not None
                return Norm(kind, eps, plus_one, named, bias is not None, x.shape[-1])
    return None


def places(target: Array, source: Array, factor: float = 1.0) -> Array | None:
    """For each element of the target [heads, d] the index in the source with the same number times
    `factor`; None if one has none."""
    order = np.argsort(source)
    ranked = source[order] * factor
    at = np.clip(np.searchsorted(ranked, target), 1, len(ranked) - 1)
    nearer = np.where(np.abs(ranked[at - 1] - target) < np.abs(ranked[at] - target), at - 1, at)
    far = np.abs(ranked[nearer] - target).max() > EXACT * np.abs(target).max()
    return None if far else order[nearer]


@dataclass(frozen=True)
class Rotation:
    """A rotation by positions.

    Attributes:
        dims: rotated elements at the beginning of a head.
        neighbours: pairs are neighbours, not half of the rotated elements apart.
        angles: of each pair, a position.
        magnitude: factor on the result.
        backwards: by negative angles.
    """

    dims: int
    neighbours: bool
    angles: tuple[float, ...]
    magnitude: float = 1.0
    backwards: bool = False

    def alike(self, other: Rotation) -> bool:
        kinds = [(r.dims, r.neighbours, r.backwards) for r in (self, other)]
        return kinds[0] == kinds[1] and bool(np.allclose(self.angles, other.angles, atol=1e-6))

    @property
    def base(self) -> float | None:
        """The base of unscaled frequencies; None if they are scaled."""
        if len(self.angles) < 2 or abs(self.angles[0] - 1) > 1e-6:
            return None
        base = self.angles[1] ** (-self.dims / 2)
        usual = base ** (-2 * np.arange(len(self.angles)) / self.dims)
        fits = np.allclose(self.angles, usual, rtol=1e-6, atol=0)
        return float(f"{base:.7g}") if fits and abs(self.magnitude - 1) < 1e-9 else None


def rotation(before: Array, after: Array) -> Rotation | None:
    """The rotation of queries or keys [heads, n, d]; of 0 dims if none; None if it is another
    map."""
    if equal(before, after):
        return Rotation(0, False, ())
    changed = np.abs(after - before).max(axis=(0, 1)) > EXACT * np.abs(before).max()
    dims = int(np.flatnonzero(changed).max()) + 1
    dims += dims % 2
    for neighbours in (False, True):
        a, b = (_pairs(x[..., :dims], neighbours) for x in (before, after))
        turn = b / a
        sizes = np.abs(turn)
        if np.abs(sizes - sizes[0, 0, 0]).max() > 1e-6:
            continue
        angles = np.angle(turn[0, 1])
        steps = np.exp(1j * np.outer(np.arange(before.shape[1]), angles)) * sizes[0, 0, 0]
        if np.abs(a * steps - b).max() <= SINGLE * np.abs(a).max():
            each = tuple(map(float, np.abs(angles)))
            return Rotation(dims, neighbours, each, float(sizes[0, 0, 0]), bool(angles[0] < 0))
    return None


def _pairs(x: Array, neighbours: bool) -> Array:
    if neighbours:
        return x[..., ::2] + 1j * x[..., 1::2]
    half = x.shape[-1] // 2
    return x[..., :half] + 1j * x[..., half:]


def slopes(bias: Array, seen: Array) -> Array | None:
    """The slope of each head by which scores fall with the distance, from a bias [heads, n, n];
    None for another bias."""
    n = bias.shape[-1]
    distance = np.arange(n)[:, None] - np.arange(n)[None, :]
    # A constant of a row makes no difference to its softmax.
    shown = bias - np.take_along_axis(bias, np.arange(n)[None, :, None], 2)
    slope = -shown[:, n - 1, 0] / (n - 1)
    return slope if equal((-slope[:, None, None] * distance)[:, seen], shown[:, seen]) else None


def position_rows(y: Array, table: Array) -> int | None:
    """The row of the table with which the results of an embedding of positions begin."""
    first = np.flatnonzero(np.abs(table - y[0]).max(axis=1) == 0)
    return next((int(r) for r in first if equal(table[r : r + len(y)], y)), None)


@dataclass(frozen=True)
class Sines:
    """Positions as sines and cosines of angles, position · 10000^(−i / last).

    Attributes:
        first: the number of the first position.
        apart: all sines come first, then all cosines; otherwise they take turns.
        whole: the last angle is 1/10000 of the first, so that `last` is half of the width less one,
            not half of it.
    """

    first: int
    apart: bool
    whole: bool

    def rows(self, n: int, width: int) -> Array:
        """[n, width]."""
        half = width // 2
        angles = 10000.0 ** (-np.arange(half) / (half - self.whole))
        turns = np.outer(np.arange(n) + self.first, angles)
        both = np.sin(turns), np.cos(turns)
        return np.concatenate(both, 1) if self.apart else np.stack(both, 2).reshape(n, -1)


SINES = [
    Sines(first, apart, whole)
    for first in range(4)
    for apart in (True, False)
    for whole in (True, False)
]


def sines_of(y: Array) -> Sines | None:
    """The rule of a table of positions [n, width]."""
    return next((s for s in SINES if equal(s.rows(*y.shape), y, SINGLE)), None)
