"""StarCoder 2: layer norms, biases, a feed-forward part without gate."""

from __future__ import annotations

from ggmodel import kv, nn, register
from ggmodel.kvcache import Causal, Sliding
from ggmodel.ml import RopeType

TANH = "gelu_pytorch_tanh"


class Starcoder2Config(nn.LayerNormConfig):
    fixed = {"use_bias": ...}  # the tensors tell the same

    window: int = kv("attention.sliding_window", hf="sliding_window", default=0)
    activation: str = nn.activation(TANH)


class Layer(nn.LayerNormLayer):
    attn: nn.Attention
    ffn: nn.MLP


@register("starcoder2", hf="Starcoder2ForCausalLM")
class Starcoder2(nn.LayerNormDecoder):
    config: Starcoder2Config
    layers: list[Layer]

    def caches(self) -> list[Causal | Sliding]:
        h = self.config
        local = [h.window != 0] * h.layers
        return Sliding.where(local, h.window, self.rotary.rope(RopeType.NEOX))
