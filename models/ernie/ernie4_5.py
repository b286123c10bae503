"""ERNIE 4.5, dense: llama's blocks; checkpoints rotate neighbours, too."""

from __future__ import annotations

from ggmodel import nn, register
from ggmodel.kvcache import Causal


class ErnieConfig(nn.DecoderConfig):
    fixed = {"use_bias": ...}  # the tensors tell the same


class Layer(nn.PreNormLayer):
    attn: nn.Attention


@register("ernie4_5", hf="Ernie4_5ForCausalLM")
class Ernie(nn.Decoder):
    config: ErnieConfig
    layers: list[Layer]

    def caches(self) -> list[Causal]:
        return [Causal(self.rotary.rope())] * self.config.layers
