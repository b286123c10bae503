"""Building blocks of models."""

from __future__ import annotations

from .attention import attention
from .experts import ExpertLinear, choose_experts, sum_experts
from .layers import Conv2D, Embedding, LayerNorm, Linear, RMSNorm
from .rope import Rope, linear_factor, linear_scale, linear_type, llama3_factors

__all__ = [
    "Conv2D",
    "Embedding",
    "ExpertLinear",
    "LayerNorm",
    "Linear",
    "RMSNorm",
    "Rope",
    "attention",
    "choose_experts",
    "linear_factor",
    "linear_scale",
    "linear_type",
    "llama3_factors",
    "sum_experts",
]
