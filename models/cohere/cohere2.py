"""Cohere 2, as Command R7B: attention and feed-forward part side by side; layers that see
everything do not rotate."""

from __future__ import annotations

from ggmodel import kv, nn, register
from ggmodel.kvcache import Causal, Sliding


class CohereConfig(nn.LayerNormConfig):
    """The hyperparameters of both generations."""

    parallel = property(lambda h: True)
    logit_scale: float = kv("logit_scale", hf="logit_scale", default=1.0)
    rope_dims: int = kv("rope.dimension_count", hf="head_dim", default="head_dim")


class Cohere2Config(CohereConfig):
    window: int = kv("attention.sliding_window", hf="sliding_window", least=1)
    pattern: list = kv("attention.sliding_window_pattern", hf=nn.sliding_layers, default=[4])


class Layer(nn.LayerNormLayer):
    attn: nn.Attention
    ffn_norm: nn.LayerNorm | None
    ffn: nn.GatedMLP


@register("cohere2", hf="Cohere2ForCausalLM")
class Cohere2(nn.LayerNormDecoder):
    config: Cohere2Config
    layers: list[Layer]

    def caches(self) -> list[Causal | Sliding]:
        h, rope = self.config, self.rotary.rope()
        return Sliding.where(h.local, h.window, [rope if near else None for near in h.local])
