"""Rotary position embeddings."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..ml import RopeType, Tensor

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True)
class Rope:
    """How a layer rotates queries and keys; a cache uses it to move keys to other positions.

    Attributes:
        dims: elements of a head that are rotated.
        base: of the frequencies.
        scale: factor on positions; linear scaling by s is 1/s.
        factors: F32 [dims/2], divide the frequencies.
    """

    dims: int
    base: float = 10000.0
    scale: float = 1.0
    type: RopeType = RopeType.NORM
    factors: Tensor | None = None

    def __call__(self, x: Tensor, positions: Tensor) -> Tensor:
        """x [head dim, heads, n] rotated by positions I32 [n]."""
        return x.rope(
            positions, self.dims, self.base, self.scale, type=self.type, factors=self.factors
        )


def llama3_factors(hf: Mapping[str, Any]) -> np.ndarray | None:
    """The frequency divisors of "llama3" rope scaling, float32 [dims/2]; None for other configs.

    Long wavelengths are stretched by `factor`, short ones kept, those between blended
    (transformers, modeling_rope_utils, `_compute_llama3_parameters`).
    """
    import numpy as np

    scaling = hf.get("rope_scaling") or {}
    if (scaling.get("rope_type") or scaling.get("type")) != "llama3":
        return None
    dims = hf.get("head_dim") or hf["hidden_size"] // hf["num_attention_heads"]
    inverse = 1.0 / float(hf.get("rope_theta", 10000.0)) ** (np.arange(0, dims, 2) / dims)
    factor = float(scaling["factor"])
    low, high = float(scaling["low_freq_factor"]), float(scaling["high_freq_factor"])
    context = float(scaling["original_max_position_embeddings"])
    wavelength = 2 * math.pi / inverse
    blend = (context / wavelength - low) / (high - low)
    between = 1.0 / ((1 - blend) / factor + blend)
    factors = np.where(wavelength > context / low, factor, between)
    return np.where(wavelength < context / high, 1.0, factors).astype(np.float32)
