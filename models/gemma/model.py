"""The first Gemma, and CodeGemma: norms that multiply by 1 + weight in checkpoints, embeddings
scaled by the root of their width, GELU."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ggmodel import gguf, kv, nn, register
from ggmodel.kvcache import Causal
from ggmodel.ml import RopeType
from ggmodel.model import AddConstant
from ggmodel.nn import RMSNorm

TANH = "gelu_pytorch_tanh"


def _activation(hf: Mapping[str, Any]) -> str | None:
    """None for the usual one, which published configs call "gelu", too."""
    name = hf.get("hidden_act")
    return None if name in ("gelu", TANH) else name


class GemmaConfig(nn.DecoderConfig):
    fixed = {"use_bidirectional_attention": False}

    head_dim: int = kv("attention.key_length", hf="head_dim", default=256)
    eps: float = kv("attention.layer_norm_rms_epsilon", hf="rms_norm_eps", default=1e-6)
    context: int = kv("context_length", hf="max_position_embeddings", default=8192)
    activation: str = kv("hidden_activation", hf=_activation, default=TANH)
    embedding_scale = property(lambda h: h.width**0.5)


def _norm(name: str, hf: str) -> RMSNorm:
    return gguf(name, hf=hf, op=AddConstant(1), shape=("width",))


class Layer(nn.PreNormLayer):
    attn_norm: RMSNorm = _norm("attn_norm", "input_layernorm")
    attn: nn.Attention
    ffn_norm: RMSNorm = _norm("ffn_norm", "post_attention_layernorm")


@register("gemma", hf="GemmaForCausalLM")
class Gemma(nn.Decoder):
    config: GemmaConfig
    layers: list[Layer]
    norm: RMSNorm = _norm("output_norm", "model.norm")

    def caches(self) -> list[Causal]:
        return [Causal(self.rotary.rope(RopeType.NEOX))] * self.config.layers
