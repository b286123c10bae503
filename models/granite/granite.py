"""Granite: llama's blocks with four multipliers: of embeddings, residuals, scores and logits."""

from __future__ import annotations

from ggmodel import kv, nn, register
from ggmodel.kvcache import Causal


class GraniteConfig(nn.DecoderConfig):
    context: int = kv("context_length", hf="max_position_embeddings", default=2048)
    scale: float = kv("attention.scale", hf="attention_multiplier")
    embedding_scale: float = kv("embedding_scale", hf="embedding_multiplier")
    residual_scale: float = kv("residual_scale", hf="residual_multiplier")
    logit_divisor: float = kv("logit_scale", hf="logits_scaling")
    logit_scale = property(lambda h: 1 / h.logit_divisor)


class Layer(nn.PreNormLayer):
    attn: nn.PermutedAttention


@register("granite", hf="GraniteForCausalLM")
class Granite(nn.Decoder):
    config: GraniteConfig
    layers: list[Layer]

    def caches(self) -> list[Causal]:
        return [Causal(self.rotary.rope())] * self.config.layers
