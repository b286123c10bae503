"""Rotary position embeddings."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError, Unsupported
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

    Raises:
        ConfigError: base or scale is not above 0.
    """

    dims: int
    base: float = 10000.0
    scale: float = 1.0
    type: RopeType = RopeType.NORM
    factors: Tensor | None = None

    def __post_init__(self):
        if not (self.base > 0 and self.scale > 0 and math.isfinite(self.base * self.scale)):
            raise ConfigError(
                f"a rope of base {self.base} and scale {self.scale}; both are finite and above 0"
            )

    def __call__(self, x: Tensor, positions: Tensor) -> Tensor:
        """x [head dim, heads, n] rotated by positions I32 [n]."""
        return x.rope(
            positions, self.dims, self.base, self.scale, type=self.type, factors=self.factors
        )


def linear_factor(hf: Mapping[str, Any]) -> float | None:
    """The factor by which "linear" rope scaling divides positions; None for other configs. Where
    `rope_parameters` are a table by kind of layer, those of "full_attention" count.

    Raises:
        Unsupported: a scaling that is neither linear nor llama 3's.
    """
    by_kind = hf.get("rope_parameters") or {}
    scaling = hf.get("rope_scaling") or by_kind.get("full_attention") or {}
    kind = _rope_type(scaling)
    if kind not in (None, "default", "linear", "llama3"):
        raise Unsupported(f"rope scaling {kind!r} is not there yet; there is linear and llama3")
    return scaling["factor"] if kind == "linear" else None


def linear_type(hf: Mapping[str, Any]) -> str | None:
    """ "linear" for configs with such a rope scaling; see `linear_factor`."""
    return None if linear_factor(hf) is None else "linear"


def linear_scale(kind: str, factor: float) -> float:
    """What positions are multiplied with, given `rope.scaling.type` and `rope.scaling.factor`.

    A factor without a type means linear scaling, a factor of 0 none, as in llama.cpp.

    Raises:
        Unsupported: another scaling than linear.
    """
    if kind not in ("", "none", "linear"):
        raise Unsupported(f"rope.scaling.type {kind!r} is not there yet; there is linear")
    return 1.0 if kind == "none" or factor == 0 else 1 / factor


def llama3_factors(hf: Mapping[str, Any]) -> np.ndarray | None:
    """The frequency divisors of "llama3" rope scaling, float32 [dims/2]; None for other configs.

    Long wavelengths are stretched by `factor`, short ones kept, those between blended
    (transformers, modeling_rope_utils, `_compute_llama3_parameters`).
    """
    import numpy as np

    scaling = hf.get("rope_scaling") or {}
    if _rope_type(scaling) != "llama3":
        return None
    dims = hf.get("head_dim") or hf["hidden_size"] // hf["num_attention_heads"]
    inverse = 1.0 / float(hf.get("rope_theta", 10000.0)) ** (np.arange(0, dims, 2) / dims)
    factor = float(scaling["factor"])
    low, high = float(scaling["low_freq_factor"]), float(scaling["high_freq_factor"])
    context = float(scaling["original_max_position_embeddings"])
    wavelength = 2 * math.pi / inverse
    with np.errstate(divide="ignore", invalid="ignore"):  # low == high: nothing lies between
        blend = (context / wavelength - low) / (high - low)
        between = 1.0 / ((1 - blend) / factor + blend)
    factors = np.where(wavelength > context / low, factor, between)
    return np.where(wavelength < context / high, 1.0, factors).astype(np.float32)


def _rope_type(scaling: Mapping[str, Any]) -> str | None:
    return scaling.get("rope_type") or scaling.get("type")  # older configs have `type`
