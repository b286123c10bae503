"""Rotary position embeddings."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..errors import ConfigError
from ..ml import RopeType, Tensor
from ..ml.node import Node


@dataclass(frozen=True)
class Rope:
    """The rotation of a layer's queries and keys by position. Declared in `caches()`: the forward
    rotates with `cache.rotate`, and the cache moves keys to other positions with `move`.

    Attributes:
        dims: number of rotated elements of a head.
        base: of the frequencies.
        scale: factor on positions; linear scaling by s is 1/s.
        factors: F32 [dims/2], divide the frequencies.
        magnitude: factor on the result.

    Raises:
        ConfigError: base, scale or magnitude is not above 0.
    """

    dims: int
    base: float = 10000.0
    scale: float = 1.0
    type: RopeType = RopeType.NORM
    factors: Tensor | None = None
    magnitude: float = 1.0

    def __post_init__(self):
        given = self.base, self.scale, self.magnitude
        if not (min(given) > 0 and all(map(math.isfinite, given))):
            raise ConfigError(
                f"a rope of base {self.base}, scale {self.scale} and magnitude {self.magnitude}; "
                "each is finite and above 0"
            )

    def __call__(self, x: Tensor, positions: Tensor) -> Tensor:
        """x [head dim, heads, n] rotated by positions I32 [n]."""
        return self._rotated(x, positions, self.magnitude)

    def move(self, x: Tensor, amounts: Tensor) -> Tensor:
        """x [head dim, heads, n], rotated before, by amounts I32 [n] more."""
        return self._rotated(x, amounts, 1.0)

    def made(self, op: Node) -> bool:
        """Whether an op "rope" rotates as this does. Factors of one name are the same."""
        own = {
            "dims": self.dims,
            "mode": RopeType(self.type),
            "base": float(self.base),
            "scale": float(self.scale),
            "attn_factor": float(self.magnitude),
            "ext_factor": 0.0,
        }
        factors = op.sources[2]
        while factors is not None and factors.op is not None:
            factors = factors.sources[0]  # before it was cast
        name, known = (None if x is None else x.name for x in (factors, self.factors))
        same = factors is self.factors or (bool(name) and name == known)
        return same and own.items() <= op.attrs.items()

    def _rotated(self, x: Tensor, positions: Tensor, magnitude: float) -> Tensor:
        return x.rope(
            positions,
            self.dims,
            self.base,
            self.scale,
            type=self.type,
            factors=self.factors,
            attn_factor=magnitude,
        )
