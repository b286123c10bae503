"""EuroBERT: a Llama whose tokens see each other in both directions."""

from __future__ import annotations

from typing import Any

from ggmodel import gguf, kv, nn, register
from ggmodel.errors import ConfigError
from ggmodel.kvcache import Bidirectional
from ggmodel.ml import RopeType
from ggmodel.nn import Embedding, RMSNorm


class EuroBertConfig(nn.DecoderConfig):
    eps: float = kv("attention.layer_norm_rms_epsilon", hf="rms_norm_eps", default=1e-5)
    causal: bool = kv("attention.causal", hf=lambda hf: False, default=False)
    pooling: int | None = kv("pooling_type", hf="pooling_type")
    rope_base: float = kv("rope.freq_base", hf=("rope_theta", lambda hf: 250000.0), default=10000.0)


class Layer(nn.PreNormLayer):
    attn: nn.Attention


@register("eurobert", hf=("EuroBertModel", "EuroBertForMaskedLM"))
class EuroBert(nn.Decoder):
    ignore_hf = ("lm_head.*",)
    config: EuroBertConfig
    embed: Embedding = gguf(
        "token_embd", hf=("embed_tokens", "model.embed_tokens"), shape=("width", None)
    )
    layers: list[Layer] = gguf("blk", hf=("layers", "model.layers"), n="layers")
    norm: RMSNorm = gguf("output_norm", hf=("norm", "model.norm"), shape=("width",))
    head: Any = None

    def validate(self) -> None:
        if self.config.causal:
            raise ConfigError("eurobert with causal attention; only bidirectional is supported")

    def caches(self) -> list[Bidirectional]:
        return [Bidirectional(rope=self.rotary.rope(RopeType.NEOX))] * self.config.layers
