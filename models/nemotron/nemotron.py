"""Nemotron 3 8B and 4, Minitron: layer norms that multiply by 1 + weight in checkpoints, half of
each head rotated, a feed-forward part without gate, activated by a squared ReLU."""

from __future__ import annotations

from ggmodel import Tensor, gguf, kv, nn, register
from ggmodel.kvcache import Causal
from ggmodel.ml import RopeType
from ggmodel.model import AddConstant


class NemotronConfig(nn.LayerNormConfig):
    eps: float = kv("attention.layer_norm_epsilon", hf="norm_eps", default=1e-5)
    rope_dims: int = nn.partial_rope(0.5)
    activation: str = nn.activation("relu2")


class Norm(nn.LayerNorm):
    weight: Tensor = gguf("weight", op=AddConstant(1))


class Layer(nn.LayerNormLayer):
    attn_norm: Norm
    attn: nn.Attention
    ffn_norm: Norm
    ffn: nn.MLP


@register("nemotron", hf="NemotronForCausalLM")
class Nemotron(nn.LayerNormDecoder):
    config: NemotronConfig
    layers: list[Layer]
    norm: Norm

    def caches(self) -> list[Causal]:
        return [Causal(self.rotary.rope(RopeType.NEOX))] * self.config.layers
