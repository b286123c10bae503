"""Seed-OSS: llama's blocks with a bias on queries, keys and values."""

from __future__ import annotations

from ggmodel import gguf, nn, register
from ggmodel.kvcache import Causal
from ggmodel.ml import RopeType
from ggmodel.nn import RMSNorm


class SeedOssConfig(nn.DecoderConfig):
    fixed = {"attention_out_bias": ...}  # the tensors tell the same


class Layer(nn.PreNormLayer):
    attn: nn.Attention
    ffn_norm: RMSNorm = gguf("post_attention_norm", hf="post_attention_layernorm", shape=("width",))


@register("seed_oss", hf="SeedOssForCausalLM")
class SeedOss(nn.Decoder):
    config: SeedOssConfig
    layers: list[Layer]

    def caches(self) -> list[Causal]:
        return [Causal(self.rotary.rope(RopeType.NEOX))] * self.config.layers
