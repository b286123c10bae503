"""Arcee's AFM: llama's attention, and a feed-forward part without gate, activated by a squared
ReLU."""

from __future__ import annotations

from ggmodel import kv, nn, register
from ggmodel.kvcache import Causal


class ArceeConfig(nn.DecoderConfig):
    context: int = kv("context_length", hf="max_position_embeddings", default=4096)
    eps: float = kv("attention.layer_norm_rms_epsilon", hf="rms_norm_eps", default=1e-5)
    activation: str = nn.activation("relu2")


class Layer(nn.PreNormLayer):
    attn: nn.PermutedAttention
    ffn: nn.MLP


@register("arcee", hf="ArceeForCausalLM")
class Arcee(nn.Decoder):
    config: ArceeConfig
    layers: list[Layer]

    def caches(self) -> list[Causal]:
        return [Causal(self.rotary.rope())] * self.config.layers
