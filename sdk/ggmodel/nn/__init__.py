"""Building blocks of models."""

from __future__ import annotations

from .attention import attention
from .experts import ExpertLinear, choose_experts, sum_experts
from .layers import Conv2D, Embedding, LayerNorm, Linear, RMSNorm
from .rope import Rope
from .scaling import RopeConfig, Rotary, linear_factor, linear_scale, linear_type, llama3_factors
from .windows import local_layers, sliding_layers

__all__ = [
    "Conv2D",
    "Embedding",
    "ExpertLinear",
    "LayerNorm",
    "Linear",
    "RMSNorm",
    "Rope",
    "RopeConfig",
    "Rotary",
    "attention",
    "choose_experts",
    "linear_factor",
    "linear_scale",
    "linear_type",
    "llama3_factors",
    "local_layers",
    "sliding_layers",
    "sum_experts",
]
