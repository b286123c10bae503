"""Rotary position embeddings."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..errors import ConfigError
from ..ml import RopeType, Tensor
from ..ml.node import Node

COMPONENTS = 4  # position components of a rope with sections


@dataclass(frozen=True)
class Rope:
    """The rotation of a layer's queries and keys by position. Declared in `caches()`: the forward
    rotates with `cache.rotate`, and the cache moves keys to other positions with `move`.

    Attributes:
        dims: number of rotated elements of a head.
        sections: for the types MROPE and IMROPE, how many pairs have each of four position
            components. They add up to the pairs.
        base: of the frequencies.
        scale: factor on positions; linear scaling by s is 1/s.
        factors: F32 [dims/2], divide the frequencies.
        magnitude: factor on the result.

    Raises:
        ConfigError: base, scale or magnitude is not above 0, or sections do not fit type and dims.
    """

    dims: int
    base: float = 10000.0
    scale: float = 1.0
    type: RopeType = RopeType.NORM
    factors: Tensor | None = None
    magnitude: float = 1.0
    sections: tuple[int, ...] = ()

    def __post_init__(self):
        given = self.base, self.scale, self.magnitude
        if not (min(given) > 0 and all(map(math.isfinite, given))):
            raise ConfigError(
                f"a rope of base {self.base}, scale {self.scale} and magnitude {self.magnitude}; "
                "each is finite and above 0"
            )
        if self.sections or self.type not in (RopeType.NORM, RopeType.NEOX):
            self._check_sections()

    def _check_sections(self) -> None:
        sections = self.sections
        fits = len(sections) == COMPONENTS and min(sections) >= 0
        if self.type not in (RopeType.MROPE, RopeType.IMROPE):
            raise ConfigError(
                f"a rope of type {RopeType(self.type).name} with sections {list(sections)}; "
                "MROPE and IMROPE have sections, and VISION is an op of its own, Tensor.rope"
            )
        if not fits or sum(sections) != self.dims // 2 or not any(sections[:3]):
            raise ConfigError(
                f"a rope of {self.dims} dims with sections {list(sections)}; four numbers of "
                f"pairs are needed, {self.dims // 2} together, not all of them in the fourth"
            )

    @property
    def components(self) -> int:
        """Position components that it takes: 4 with sections, else 1."""
        return COMPONENTS if self.sections else 1

    def __call__(self, x: Tensor, positions: Tensor) -> Tensor:
        """x [head dim, heads, n] rotated by positions I32 [n]; [4·n] with sections, one component
        after the other."""
        return self._rotated(x, positions, self.magnitude)

    def move(self, x: Tensor, amounts: Tensor) -> Tensor:
        """x [head dim, heads, n], rotated before, by amounts I32 [n], or [4·n], more."""
        return self._rotated(x, amounts, 1.0)

    def made(self, op: Node) -> bool:
        """Whether an op "rope" rotates as this does. Factors of one name are the same."""
        own = {
            "dims": self.dims,
            "mode": RopeType(self.type),
            "base": float(self.base),
            "scale": float(self.scale),
            "attn_factor": float(self.magnitude),
            "sections": tuple(self.sections),
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
            sections=self.sections,
        )
