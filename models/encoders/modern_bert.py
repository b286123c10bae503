"""ModernBERT: norms before attention and feed-forward, rotary positions, windows in most layers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ggmodel import Module, Tensor, gguf, kv, nn, register
from ggmodel.kvcache import Bidirectional
from ggmodel.ml import RopeType
from ggmodel.model import Batch, LayerMemory
from ggmodel.nn import Embedding, LayerNorm, Rotary


def _pattern(hf: Mapping[str, Any]) -> list:
    """A flag for each layer: llama.cpp reads a list of one number as that of the first layer."""
    every, local = hf.get("global_attn_every_n_layers", 3), nn.sliding_layers(hf)
    return [i % every > 0 for i in range(hf["num_hidden_layers"])] if local is None else local


def _pooling(hf: Mapping[str, Any]) -> int | None:
    return {"mean": 1, "cls": 2}.get(hf.get("classifier_pooling", ""))


class ModernBertConfig(nn.EncoderConfig, nn.RopeConfig):
    fixed = {
        "rope_parameters.sliding_attention.rope_theta": ...,
        "norm_bias": ...,
        "classifier_bias": ...,
    }

    eps: float = kv("attention.layer_norm_epsilon", hf="norm_eps", default=1e-5)
    activation: str = nn.activation("gelu", "hidden_activation")
    window: int = kv("attention.sliding_window", hf="local_attention", default=0)
    pattern: list = kv("attention.sliding_window_pattern", hf=_pattern, default=[3])
    rope_base: float = kv(
        "rope.freq_base",
        hf=("rope_parameters.full_attention.rope_theta", "global_rope_theta", lambda hf: 160000.0),
        default=10000.0,
    )
    local_base: float = kv(
        "rope.freq_base_swa",
        hf=("rope_parameters.sliding_attention.rope_theta", "local_rope_theta", lambda hf: 1e4),
        default="rope_base",
    )
    types: int = kv("tokenizer.ggml.token_type_count", default=0)
    head_pools: int = kv("classifier.pooling_type", hf=_pooling, default=1, least=1, most=3)
    head_act: str = kv(
        "classifier.activation", hf=nn.unless("gelu", "classifier_activation"), default="gelu"
    )

    @property
    def local(self) -> list[bool]:
        if self.window < 1 or len(self.pattern) > 1 or isinstance(self.pattern[0], bool):
            return nn.local_layers(self.pattern, self.layers, self.window)
        return [i % max(self.pattern[0], 1) > 0 for i in range(self.layers)]


class Layer(Module):
    """The first has no norm before attention."""

    attn_norm: LayerNorm | None = gguf("attn_norm", hf="attn_norm", shape=("width",))
    attn: nn.FusedEncoderAttention = gguf(hf="attn")
    ffn_norm: LayerNorm = gguf("ffn_norm", hf="mlp_norm", shape=("width",))
    ffn: nn.FusedEncoderMLP = gguf(hf="mlp")

    def forward(
        self, x: Tensor, batch: Batch, cache: LayerMemory, outputs: Tensor | None
    ) -> Tensor:
        normed = x if self.attn_norm is None else self.attn_norm(x)
        x, y = nn.keep_rows(outputs, x, self.attn(normed, batch, cache))
        x = x + y
        return x + self.ffn(self.ffn_norm(x))


class Text(nn.EncoderText):
    tokens: Embedding = gguf("token_embd", hf="embeddings.tok_embeddings", shape=("width", None))
    types: Any = None
    norm: LayerNorm = gguf("token_embd_norm", hf="embeddings.norm", shape=("width",))
    layers: list[Layer] = gguf("blk", hf="layers", n="layers")
    last: LayerNorm = gguf("output_norm", hf="final_norm", shape=("width",))

    def forward(self, batch: Batch) -> Tensor:
        return self.last(super().forward(batch))


_HEADS = ("Model", "ForMaskedLM", "ForSequenceClassification", "ForTokenClassification")


@register("modern-bert", hf=tuple(f"ModernBert{head}" for head in _HEADS))
class ModernBert(nn.Encoder):
    ignore_hf = ("head.*", "decoder.*")
    config: ModernBertConfig
    text: Text
    rotary: Rotary

    def caches(self) -> list[Bidirectional]:
        h, far = self.config, self.rotary.rope(RopeType.NEOX)
        near = (
            Bidirectional(h.window // 2 + 1, nn.Rope(h.head_dim, h.local_base, type=RopeType.NEOX))
            if h.window
            else None
        )
        return [near if near and local else Bidirectional(rope=far) for local in h.local]
