"""Rotary position embeddings, and their scaling: linear, llama 3, YaRN and LongRoPE.

A scaling is a set of factors that divide the frequencies, and a magnitude. A file has the factors
as tensors, or hyperparameters to compute them from.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import ConfigError, Unsupported
from ..ml import RopeType, Tensor
from ..ml.node import Node
from ..model.config import Config, descend
from ..model.module import Module, gguf, kv
from ..model.operations import Computed

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
        last: the last `dims` elements of a head are rotated, not the first.

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
    last: bool = False

    def __post_init__(self):
        numbers = self.base, self.scale, self.magnitude
        if not (min(numbers) > 0 and all(map(math.isfinite, numbers))):
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
        name, own_name = (None if x is None else x.name for x in (factors, self.factors))
        same = factors is self.factors or (bool(name) and name == own_name)
        return same and own.items() <= op.attrs.items()

    def back(self, x: Tensor, positions: Tensor) -> Tensor:
        """x [head dim, heads, n] rotated the other way."""
        return self._rotated(x, positions, self.magnitude, -self.scale)

    def _rotated(
        self, x: Tensor, positions: Tensor, magnitude: float, scale: float | None = None
    ) -> Tensor:
        first = x.dim(0) - self.dims if self.last else 0
        rotated = (x.slice(0, first, x.dim(0)) if first else x).rope(
            positions,
            self.dims,
            self.base,
            self.scale if scale is None else scale,
            type=self.type,
            factors=self.factors,
            attn_factor=magnitude,
            sections=self.sections,
        )
        return x.slice(0, 0, first).concat(rotated, 0) if first else rotated


HF = Mapping[str, Any]
_WIDEST = 1 << 16  # a file's numbers must not make us take memory without end


def scaling_of(hf: HF) -> Mapping[str, Any]:
    """The rope scaling of a config: `rope_scaling`, or the "full_attention" entry if
    `rope_parameters` is a table by kind of layer; DeepSeek V4 has "compress"."""
    by_kind = hf.get("rope_parameters") or {}
    own = by_kind.get("full_attention") or by_kind.get("compress")
    return hf.get("rope_scaling") or own or {}


def scaling_kind(hf: HF) -> str:
    """ "" for none, "linear", "llama3", "yarn" or "longrope".

    "dynamic" is none: it scales texts alone that are longer than the context of the training
    (transformers, modeling_rope_utils, `_compute_dynamic_ntk_parameters`).
    """
    kind = _named(scaling_of(hf))
    # The sections of "mrope" are a key of their own.
    usual = dict.fromkeys((None, "default", "mrope", "dynamic"), "")
    kind = {**usual, "su": "longrope"}.get(kind, kind)
    if kind not in ("", "linear", "llama3", "yarn", "longrope"):
        raise Unsupported(
            f"rope scaling {kind!r} is unsupported; supported: linear, llama3, yarn, longrope"
        )
    return kind


def _named(scaling: Mapping[str, Any]) -> Any:
    return scaling.get("rope_type") or scaling.get("type")  # older configs have `type`


def _dynamic_factor(hf: HF) -> float | None:
    scaling = scaling_of(hf)
    return scaling.get("factor", 1.0) if _named(scaling) == "dynamic" else None


def rope_sections(hf: HF) -> list[int] | None:
    """The four sections of a rope, from `mrope_section`, which lists three in most configs; None
    for other configs."""
    sections = scaling_of(hf).get("mrope_section")
    if sections is None:
        return None
    if not isinstance(sections, (list, tuple)) or not 3 <= len(sections) <= 4:
        raise ConfigError(f"mrope_section is {sections!r:.60}; three or four numbers are needed")
    return [*sections, 0][:4]


def llama3_factors(hf: HF, h: RopeConfig) -> np.ndarray | None:
    """The frequency divisors of "llama3" rope scaling, float32 [rope_dims/2]; None for other
    configs.

    Long wavelengths are stretched by `factor`, short ones kept, those in between blended
    (transformers, modeling_rope_utils, `_compute_llama3_parameters`).
    """
    scaling, dims = scaling_of(hf), h.rope_dims
    if _named(scaling) != "llama3":
        return None
    _check_width(dims)
    inverse = 1.0 / h.rope_base ** (np.arange(0, dims, 2) / dims)
    factor = float(scaling["factor"])
    low, high = float(scaling["low_freq_factor"]), float(scaling["high_freq_factor"])
    context = float(scaling["original_max_position_embeddings"])
    wavelength = 2 * math.pi / inverse
    with np.errstate(divide="ignore", invalid="ignore"):  # low == high: nothing lies between
        blend = (context / wavelength - low) / (high - low)
        between = 1.0 / ((1 - blend) / factor + blend)
    factors = np.where(wavelength > context / low, factor, between)
    return np.where(wavelength < context / high, 1.0, factors).astype(np.float32)


def _check_width(dims: int) -> None:
    if dims > _WIDEST:
        raise ConfigError(f"heads of {dims} elements to rotate; at most {_WIDEST} are possible")


def yarn_factors(h: RopeConfig) -> np.ndarray | None:
    """The frequency divisors of YaRN, float32 [rope_dims/2]; None for other hyperparameters.

    A pair that turns `beta_fast` times or more in the original context keeps its frequency; one
    that turns `beta_slow` times or less has it divided by the factor; those in between are blended
    (arXiv 2309.00071, appendix A.2)."""
    if h.scaling != "yarn":
        return None
    context, dims = h.original_context or getattr(h, "context", 0), h.rope_dims
    numbers = context, dims, h.rope_factor, h.beta_fast, h.beta_slow
    sane = min(numbers) > 1e-6 and max(numbers) < 1e12
    if not (sane and h.rope_base > 1 and 0 <= h.yarn_extrapolation <= 1):
        raise ConfigError(
            f"YaRN with {context} original positions, {dims} dims, factor {h.rope_factor}, betas "
            f"{h.beta_fast} and {h.beta_slow}, which must be above 0, base {h.rope_base}, which "
            f"must be above 1, and extrapolation {h.yarn_extrapolation}, which is from 0 to 1"
        )
    _check_width(dims)
    ends = [
        dims * math.log(context / (turns * 2 * math.pi)) / (2 * math.log(h.rope_base))
        for turns in (h.beta_fast, h.beta_slow)
    ]
    low, high = (math.floor(ends[0]), math.ceil(ends[1])) if h.yarn_truncate else ends
    low, high = max(low, 0), min(high, dims - 1)
    span = high - low if high != low else 0.001
    keep = h.yarn_extrapolation * (1 - np.clip((np.arange(dims // 2) - low) / span, 0, 1))
    return (1 / (keep + (1 - keep) / h.rope_factor)).astype(np.float32)


def _of(kind: str, *keys: str) -> Callable[[HF], Any]:
    """Finds the first of these keys in the scaling of a config, if that is of this kind."""

    def find(hf: HF) -> Any:
        scaling = scaling_of(hf) if scaling_kind(hf) == kind else {}
        return next((scaling[k] for k in keys if scaling.get(k) is not None), None)

    return find


def _type(hf: HF) -> str | None:
    kind = scaling_kind(hf)
    return None if kind in ("", "llama3") else kind


def _original(hf: HF) -> Any:
    key = "original_max_position_embeddings"
    outside = hf.get(key)
    if scaling_kind(hf) not in ("yarn", "longrope"):
        return None
    # transformers prefers the one outside of the scaling.
    return outside or scaling_of(hf).get(key) or hf.get("max_position_embeddings")


def scaling_factor(hf: HF) -> float | None:
    """The factor of linear scaling or YaRN; None for other configs (files with LongRoPE have
    none)."""
    kind, factor = scaling_kind(hf), scaling_of(hf).get("factor")
    if factor is not None and not factor > 0:
        raise ConfigError(f"the factor of rope_scaling is {factor}; it must be above 0")
    if kind == "yarn":
        return factor or hf["max_position_embeddings"] / _original(hf)
    return scaling_of(hf)["factor"] if kind == "linear" else None


def _truncate(hf: HF) -> bool | None:
    """False if the ends of the blended range are not rounded."""
    return False if _of("yarn", "truncate")(hf) is False else None


def yarn_magnitude(hf: HF) -> float | None:
    """YaRN's magnitude if it is not the paper's: as given, or from DeepSeek's two scales."""
    magnitude = _of("yarn", "attention_factor")(hf)
    scales = [_of("yarn", key)(hf) for key in ("mscale", "mscale_all_dim")]
    if magnitude is not None or not all(scales):
        return magnitude
    over, under = (paper_magnitude(scaling_factor(hf) or 1.0, scale) for scale in scales)
    return over / under


def _longrope_magnitude(hf: HF) -> float | None:
    """√(1 + ln s / ln n) for s times the original n positions (arXiv 2402.13753)."""
    if scaling_kind(hf) != "longrope":
        return None
    original = _original(hf)
    factor = scaling_of(hf).get("factor") or hf["max_position_embeddings"] / original
    magnitude = scaling_of(hf).get("attention_factor")
    usual = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0
    return usual if magnitude is None else magnitude


def paper_magnitude(factor: float, scale: float = 1.0) -> float:
    """YaRN's factor on queries and keys: 1 + 0.1 ln s (arXiv 2309.00071, 3.4)."""
    return 0.1 * scale * math.log(factor) + 1 if factor > 1 else 1.0


def _longrope_factors(length: str) -> Computed:
    def factors(hf: HF, h: RopeConfig) -> np.ndarray | None:
        values = _of("longrope", f"{length}_factor")(hf)
        return None if values is None else np.array(values, np.float32)

    return Computed(factors)


def _global_base(hf: HF) -> float | None:
    return descend(hf, "rope_parameters.full_attention.rope_theta")


class RopeConfig(Config):
    """The hyperparameters of rotary positions, for configs to inherit; see `Rotary`.

    A subclass has `context`, and `rope_dims` or `head_dim`. Layers of both kinds have one base,
    unless it has a field for that of local layers.
    """

    fixed = {"rope_parameters.sliding_attention.rope_theta": _global_base}

    rope_base: float = kv(
        "rope.freq_base",
        hf=("rope_theta", "rope_parameters.full_attention.rope_theta"),
        default=10000.0,
    )
    rope_factor: float = kv(
        "rope.scaling.factor", "rope.scale_linear", hf=scaling_factor, default=1.0
    )
    scaling: str = kv("rope.scaling.type", hf=_type, default="")
    original_context: int | None = kv(
        "rope.scaling.original_context_length", hf=_original, default=None
    )
    attn_factor: float = kv("rope.scaling.attn_factor", hf=_longrope_magnitude, default=1.0)
    yarn_magnitude: float | None = kv(
        "rope.scaling.yarn_attn_factor", hf=yarn_magnitude, default=None
    )
    beta_fast: float = kv("rope.scaling.yarn_beta_fast", hf=_of("yarn", "beta_fast"), default=32.0)
    beta_slow: float = kv("rope.scaling.yarn_beta_slow", hf=_of("yarn", "beta_slow"), default=1.0)
    yarn_extrapolation: float = kv("rope.scaling.yarn_ext_factor", default=1.0)
    # Not a key of llama.cpp, which always rounds.
    yarn_truncate: bool = kv("rope.scaling.yarn_truncate", hf=_truncate, default=True)
    # Not a key of llama.cpp; not computed, but warned of.
    dynamic_factor: float = kv("rope.scaling.dynamic_factor", hf=_dynamic_factor, default=0.0)
    rope_dims: Any = property(lambda h: h.head_dim)


def partial_rope(usual: float = 1.0) -> Any:
    """A hyperparameter: how many elements of each head are rotated, `rope_dims`.

    Args:
        usual: the part of a head, for configs without `partial_rotary_factor` and `rotary_pct`.
    """

    def find(hf: HF) -> int:
        parts = (hf.get(key) for key in ("partial_rotary_factor", "rotary_pct"))
        part = next((part for part in parts if part is not None), usual)
        head_dim = hf.get("head_dim") or hf["hidden_size"] // hf["num_attention_heads"]
        return int(head_dim * part)

    return kv("rope.dimension_count", hf=find, default="head_dim")


class Rotary(Module):
    """The factors that divide a rope's frequencies, if a file has some; makes the `Rope` of every
    kind of scaling from a `RopeConfig`. Its tensors are named absolutely: a file has them once.

    The context that a model is loaded with selects one of LongRoPE's two sets, as in llama.cpp;
    transformers selects anew whenever a text grows beyond the original context.
    """

    freqs: Tensor | None = gguf(
        "rope_freqs.weight", root=True, hf=Computed(llama3_factors), default=yarn_factors
    )
    long: Tensor | None = gguf("rope_factors_long.weight", root=True, hf=_longrope_factors("long"))
    short: Tensor | None = gguf(
        "rope_factors_short.weight", root=True, hf=_longrope_factors("short")
    )

    @property
    def _original(self) -> int:
        return self.config.original_context or getattr(self.config, "context", 0)

    def left_out(self) -> str:
        """The warning of `Model.left_out` about the loaded context; "" for none."""
        h: RopeConfig = self.config
        trained = getattr(h, "context", 0)
        if self.long is not None and self.freqs is None and h.loaded_context > self._original:
            return (
                f"LongRoPE's factors for texts of more than {self._original:,} tokens turn shorter "
                "ones, too, for which transformers has others: load with "
                f"context_length={self._original} for what it computes for these"
            )
        if h.dynamic_factor and h.loaded_context > trained:
            return (
                f"the dynamic rope scaling by {h.dynamic_factor:g} that transformers applies to "
                f"longer texts is left out: load with context_length={trained}, and shorter texts"
            )
        return ""

    def rope(self, type: RopeType = RopeType.NORM, sections: Sequence[int] = ()) -> Rope:
        """The rope of layers with scaled positions, to declare in `caches()`.

        Args:
            sections: see `Rope.sections`. Three count as four. Those of IMROPE have every third
                pair each, and no more than there are; the fourth has what they leave over.

        Raises:
            Unsupported: an unknown `rope.scaling.type`.
            ConfigError: impossible numbers, or missing factors.
        """
        h: RopeConfig = self.config
        if h.scaling not in ("", "none", "linear", "yarn", "longrope"):
            raise Unsupported(
                f"rope.scaling.type {h.scaling!r} is unsupported; supported: linear, yarn, longrope"
            )
        scale = 1.0 if h.scaling == "none" or h.rope_factor == 0 else 1 / h.rope_factor
        magnitude = h.attn_factor
        if h.scaling == "yarn":  # its factors include the scale
            scale, magnitude = 1.0, magnitude * (h.yarn_magnitude or paper_magnitude(h.rope_factor))
        by_length = self.long if h.loaded_context > self._original else self.short
        factors = by_length if self.freqs is None else self.freqs
        if factors is None and h.scaling in ("yarn", "longrope"):
            raise ConfigError(
                f"rope.scaling.type is {h.scaling}, but there are no factors: no rope_freqs.weight "
                "and no rope_factors_long.weight and rope_factors_short.weight"
            )
        four = (*sections, 0)[:4] if sections else ()
        if type is RopeType.IMROPE and len(four) == 4:
            pairs = h.rope_dims // 2
            three = [min(n, (pairs + 2 - k) // 3) for k, n in enumerate(four[:3])]
            four = (*three, pairs - sum(three))
        return Rope(h.rope_dims, h.rope_base, scale, type, factors, magnitude, four)
