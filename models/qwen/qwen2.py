"""Qwen 2 and 2.5: llama's blocks with a bias on queries, keys and values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ggmodel import kv, nn, register
from ggmodel.kvcache import Causal, Sliding
from ggmodel.ml import RopeType


def _pattern(hf: Mapping[str, Any]) -> list[bool] | None:
    return nn.sliding_layers(hf) if hf.get("use_sliding_window") else None


class Qwen2Config(nn.DecoderConfig):
    fixed = {"max_window_layers": ...}  # read where there are windows

    eps: float = kv("attention.layer_norm_rms_epsilon", hf="rms_norm_eps", default=1e-6)
    context: int = kv("context_length", hf="max_position_embeddings", default=32768)
    window: int = kv("attention.sliding_window", hf=nn.sliding_window, default=0)
    pattern: list = kv("attention.sliding_window_pattern", hf=_pattern, default=[1])


class Layer(nn.PreNormLayer):
    attn: nn.Attention


@register("qwen2", hf="Qwen2ForCausalLM")
class Qwen2(nn.Decoder):
    config: Qwen2Config
    layers: list[Layer]

    def caches(self) -> list[Causal | Sliding]:
        h = self.config
        return Sliding.where(h.local, h.window, self.rotary.rope(RopeType.NEOX))
