"""SmolLM 3: llama's blocks; every fourth layer does not rotate."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ggmodel import kv, nn, register
from ggmodel.errors import ConfigError
from ggmodel.kvcache import Causal


def _usual(layers: int, interval: int = 4) -> list[bool]:
    return [(i + 1) % interval != 0 for i in range(layers)]


def _rotated(hf: Mapping[str, Any]) -> list[bool] | None:
    """Layer → whether it rotates, as its flag says; None for the usual ones."""
    layers, interval = hf["num_hidden_layers"], hf.get("no_rope_layer_interval", 4)
    flags = hf.get("no_rope_layers") or _usual(layers, interval)
    rotated = [bool(flag) for flag in flags[:layers]]
    return None if rotated == _usual(layers) else rotated


class SmolLM3Config(nn.DecoderConfig):
    fixed = {"use_sliding_window": False, "sliding_window": ...}  # read where there are windows

    rotated: list = kv("rope.layers", hf=_rotated, default=lambda h: _usual(h.layers))


class Layer(nn.PreNormLayer):
    attn: nn.PermutedAttention


@register("smollm3", hf="SmolLM3ForCausalLM")
class SmolLM3(nn.Decoder):
    config: SmolLM3Config
    layers: list[Layer]

    def caches(self) -> list[Causal]:
        h, rope = self.config, self.rotary.rope()
        if len(h.rotated) != h.layers:
            raise ConfigError(f"rope.layers has {len(h.rotated)} flags for {h.layers} layers")
        return [Causal(rope if rotates else None) for rotates in h.rotated]
