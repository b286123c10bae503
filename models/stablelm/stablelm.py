"""StableLM: layer norms, a part of each head rotated, in the largest both parts side by side."""

from __future__ import annotations

from typing import Any

from ggmodel import Tensor, gguf, kv, nn, register
from ggmodel.kvcache import Causal
from ggmodel.ml import RopeType
from ggmodel.model import Stack


class StableLMConfig(nn.LayerNormConfig):
    fixed = {"qk_layernorm": ..., "use_qkv_bias": ...}  # the tensors tell the same

    rope_dims: int = nn.partial_rope(0.25)
    parallel: bool = kv("use_parallel_residual", hf="use_parallel_residual")


class QueryNorm(nn.HeadNorm):
    weight: Tensor = gguf("weight", hf=Stack("norms.{}.weight", "heads"))
    bias: Any = None


class KeyNorm(nn.HeadNorm):
    weight: Tensor = gguf("weight", hf=Stack("norms.{}.weight", "kv_heads"))
    bias: Any = None


class Attention(nn.Attention):
    q_norm: QueryNorm | None = gguf("attn_q_norm", hf="q_layernorm", shape=("head_dim", "heads"))
    k_norm: KeyNorm | None = gguf("attn_k_norm", hf="k_layernorm", shape=("head_dim", "kv_heads"))


class Layer(nn.LayerNormLayer):
    attn: Attention
    ffn_norm: nn.LayerNorm | None
    ffn: nn.GatedMLP


@register("stablelm", hf="StableLmForCausalLM")
class StableLM(nn.LayerNormDecoder):
    config: StableLMConfig
    layers: list[Layer]

    def caches(self) -> list[Causal]:
        return [Causal(self.rotary.rope(RopeType.NEOX))] * self.config.layers
