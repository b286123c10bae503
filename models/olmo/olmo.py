"""OLMo 1: llama's blocks with layer norms that have no weights, and bounded projections."""

from __future__ import annotations

from ggmodel import Module, Tensor, kv, nn, register
from ggmodel.kvcache import Causal


class OlmoConfig(nn.LayerNormConfig):
    eps: float = kv("attention.layer_norm_epsilon", hf=lambda hf: 1e-5, default=1e-5)
    clamp: float | None = kv("attention.clamp_kqv", hf="clip_qkv", default=None)


class Norm(Module):
    """A layer norm without weight and bias."""

    def forward(self, x: Tensor) -> Tensor:
        return x.layer_norm(eps=self.config.eps)


class Attention(nn.PermutedAttention):
    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = super().project(x)
        most = self.config.clamp
        if most is None:
            return q, k, v
        return q.clamp(-most, most), k.clamp(-most, most), v.clamp(-most, most)


class Layer(nn.PreNormLayer):
    attn_norm: Norm
    attn: Attention
    ffn_norm: Norm


@register("olmo", hf="OlmoForCausalLM")
class OLMo(nn.Decoder):
    config: OlmoConfig
    layers: list[Layer]
    norm: Norm

    def caches(self) -> list[Causal]:
        return [Causal(self.rotary.rope())] * self.config.layers
