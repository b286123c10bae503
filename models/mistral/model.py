"""Mistral: llama's blocks; in the first version every layer sees a window.

Without a window a checkpoint is a `llama`, and is loaded and written as one. llama.cpp has no other
architecture for it; its converter leaves the window out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ggmodel import kv, nn, register
from ggmodel.kvcache import Causal, Sliding
from ggmodel.ml import RopeType


class MistralConfig(nn.DecoderConfig):
    eps: float = kv("attention.layer_norm_rms_epsilon", hf="rms_norm_eps", default=1e-5)
    context: int = kv("context_length", hf="max_position_embeddings", default=131072)
    window: int = kv("attention.sliding_window", hf="sliding_window", default=0)


class Layer(nn.PreNormLayer):
    attn: nn.Attention


@register("mistral", hf="MistralForCausalLM")
class Mistral(nn.Decoder):
    config: MistralConfig
    layers: list[Layer]

    @classmethod
    def stored_as(cls, hf: Mapping[str, Any], program: str | None = None) -> str:
        windowed = hf.get("sliding_window", 4096) is not None  # 4096 in transformers
        return cls.architecture if windowed and program is None else "llama"

    def caches(self) -> list[Causal | Sliding]:
        h = self.config
        local = [h.window != 0] * h.layers
        return Sliding.where(local, h.window, self.rotary.rope(RopeType.NEOX))
