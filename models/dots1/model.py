"""dots.llm1: Qwen 3's attention, DeepSeek V3's router."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ggmodel import Tensor, gguf, kv, nn, register
from ggmodel.models.qwen.qwen2 import Qwen2


def _pattern(hf: Mapping[str, Any]) -> list[bool] | None:
    """Layer → whether it is local; None where none is."""
    local = nn.sliding_layers(hf) or []
    return local if hf.get("sliding_window") and any(local) else None


def _window(hf: Mapping[str, Any]) -> int | None:
    return hf.get("sliding_window") if _pattern(hf) else None


class Dots1Config(nn.SharedExpertsConfig):
    fixed = {"attention_bias": ...}  # the tensors tell

    gating: int = kv("expert_gating_func", hf=lambda hf: nn.SIGMOID, default=nn.SIGMOID)
    window: int = kv("attention.sliding_window", hf=_window, default=0)
    pattern: list = kv("attention.sliding_window_pattern", hf=_pattern, default=[1])


class Experts(nn.GatedExperts):
    bias: Tensor = nn.selection_bias("gate.e_score_correction_bias")
    shared: nn.SharedExpert = gguf(hf="shared_experts")


class Layer(nn.PreNormLayer):
    attn: nn.NormedAttention
    ffn: nn.GatedMLP | Experts


@register("dots1", hf="Dots1ForCausalLM")
class Dots1(Qwen2):
    config: Dots1Config
    layers: list[Layer]
