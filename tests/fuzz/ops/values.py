"""Random numbers: mostly small and harmless, sometimes at the limits."""

from __future__ import annotations

import enum
import math
from random import Random
from typing import Any

import numpy as np

from ggmodel.ml import DType

_EDGES = [-1, -2, 0, 1, 15, 16, 31, 32, 33, 64, 100, 255, 256, 257, 1000]
# Nothing in between: such tensors fit in memory, but computing takes minutes.
_FAR = [
    1 << 31, (1 << 31) - 1, (1 << 32) + 1, 1 << 40, 1 << 61, (1 << 62) + 1, (1 << 63) - 1,
    1 << 63, 1 << 64, -(1 << 31), -(1 << 63), -(1 << 63) - 1,
]  # fmt: skip
_FLOATS = [0.0, 1.0, -1.0, 0.5, 1e-5, 1e30, -1e30, 3e38, math.inf, -math.inf, math.nan, 1e300]
PLAIN = [DType.F32, DType.F16, DType.BF16, DType.I32, DType.I64, DType.F64, DType.I8, DType.I16]


def integer(rng: Random) -> int:
    kind = rng.random()
    if kind < 0.75:
        return rng.randrange(9)
    return rng.choice(_EDGES if kind < 0.95 else _FAR)


def real(rng: Random) -> float:
    return rng.gauss(0, 2) if rng.random() < 0.7 else rng.choice(_FLOATS)


def dtype(rng: Random) -> DType:
    kind = rng.random()
    if kind < 0.5:
        return DType.F32
    return rng.choice(PLAIN) if kind < 0.8 else rng.choice(list(DType))


def shape(rng: Random, block: int = 1) -> tuple[int, ...]:
    """Mostly right: positive, few dims, whole blocks."""
    dims = [rng.randrange(1, 7) for _ in range(rng.choice([1, 2, 2, 3, 4]))]
    dims[0] *= block
    if rng.random() < 0.06:
        dims[rng.randrange(len(dims))] = 0
    elif rng.random() < 0.04:
        dims[rng.randrange(len(dims))] = integer(rng)
    return tuple(dims)


def attribute(rng: Random, value: Any) -> Any:
    """A value of the type of an op's attribute."""
    if isinstance(value, bool):
        return rng.random() < 0.5
    if isinstance(value, enum.Enum):
        return rng.choice(list(type(value)))
    if isinstance(value, int):
        return integer(rng) if rng.random() < 0.5 else value + rng.choice([-1, 1, 4, -4])
    if isinstance(value, float):
        return real(rng)
    if isinstance(value, tuple) and value:
        items = list(value)
        i = rng.randrange(len(items))
        items[i] = attribute(rng, items[i])
        return tuple(items)
    return value


def content(rng: Random, dtype: DType, count: int, nbytes: int) -> bytes:
    """Bytes of a tensor: small indices for integers, any bits for blocks."""
    noise = np.random.default_rng(rng.randrange(1 << 30))
    kind = rng.random()
    if dtype.is_integer:
        top = 1 if kind < 0.4 else 4
        ints = noise.integers(-2 if kind > 0.9 else 0, 1 << 30 if kind > 0.95 else top, count)
        assert dtype.numpy is not None
        return ints.astype(dtype.numpy).tobytes()
    if dtype.numpy is None:
        return noise.bytes(nbytes)
    floats = noise.standard_normal(count)
    if kind > 0.96:
        floats[noise.random(count) < 0.5] = math.nan
    elif kind > 0.9 and count:
        floats[noise.integers(count)] = rng.choice(_FLOATS)
    elif kind > 0.8:
        floats = np.floor(np.abs(floats))
    with np.errstate(over="ignore"):
        return floats.astype(dtype.numpy).tobytes()
