"""Building blocks of models."""

from __future__ import annotations

from typing import Any

from ..errors import Unsupported
from .attention import attention
from .decoder import Decoder, DecoderConfig, PreNormLayer, keep_rows
from .experts import ExpertLinear, GatedExperts, choose_experts, sum_experts
from .feedforward import GatedMLP, activate, activation, check_activation, unless
from .layers import Conv2D, Embedding, LayerNorm, Linear, RMSNorm
from .rope import Rope
from .scaling import RopeConfig, Rotary, llama3_factors, scaling_factor
from .windows import local_layers, sliding_layers, sliding_window

__all__ = [
    "Conv2D",
    "Decoder",
    "DecoderConfig",
    "Embedding",
    "ExpertLinear",
    "GatedExperts",
    "GatedMLP",
    "LayerNorm",
    "Linear",
    "PreNormLayer",
    "RMSNorm",
    "Rope",
    "RopeConfig",
    "Rotary",
    "activate",
    "activation",
    "attention",
    "check_activation",
    "choose_experts",
    "keep_rows",
    "llama3_factors",
    "local_layers",
    "scaling_factor",
    "sliding_layers",
    "sliding_window",
    "sum_experts",
    "unless",
]

_FORMER = ("linear_factor", "linear_scale", "linear_type")


def __getattr__(name: str) -> Any:
    if name in _FORMER:
        raise Unsupported(
            f"nn.{name} is gone: inherit nn.RopeConfig, declare `rotary: nn.Rotary`, and give "
            "rotary.rope(type) to caches()"
        )
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
