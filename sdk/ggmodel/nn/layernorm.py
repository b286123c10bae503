"""A decoder with layer norms, and attention and feed-forward part in turn or side by side."""

from __future__ import annotations

from typing import Any

from ..errors import ConfigError
from ..ml import Tensor
from ..model.batch import Batch
from ..model.cache import LayerMemory
from ..model.module import Module, gguf, kv
from .decoder import Decoder, DecoderConfig, PreNormLayer, keep_rows
from .layers import LayerNorm


class LayerNormConfig(DecoderConfig):
    """The usual hyperparameters, with the epsilon of layer norms.

    Attributes:
        parallel: whether both parts of a layer see what enters it.
    """

    eps: float = kv(
        "attention.layer_norm_epsilon",
        hf=("layer_norm_eps", "layer_norm_epsilon", "norm_epsilon"),
        default=1e-5,
    )
    parallel: Any = property(lambda h: False)


class LayerNormLayer(PreNormLayer):
    """x + attn(norm(x)), then x + ffn(norm(x)); x + attn(norm(x)) + ffn(norm(x)) if the config is
    `parallel`. A subclass annotates `attn` and `ffn`, and `ffn_norm` as `LayerNorm | None` if a
    parallel layer may have one norm for both.

    Raises:
        ConfigError: one norm for both, and the config is not `parallel`.
    """

    attn_norm: LayerNorm = gguf("attn_norm", hf=("input_layernorm", "ln_1"), shape=("width",))
    attn: Module = gguf(hf=("self_attn", "attention", "attn", "self_attention"))
    ffn_norm: LayerNorm = gguf(
        "ffn_norm", hf=("post_attention_layernorm", "ln_2"), shape=("width",)
    )
    ffn: Module = gguf(hf="mlp")

    def forward(
        self, x: Tensor, batch: Batch, cache: LayerMemory, outputs: Tensor | None, *more: Any
    ) -> Tensor:
        """x [width, n] → [width, n], or the rows `outputs` of it. `more` goes to `attn`."""
        norm: LayerNorm | None = self.ffn_norm
        if not self.config.parallel and norm is None:
            raise ConfigError("a layer with one norm for both parts, which are not side by side")
        if not self.config.parallel:
            return super().forward(x, batch, cache, outputs, *more)
        y = self.attn_norm(x)
        attended = self.attn(y, batch, cache, *more)
        x, y, attended = keep_rows(outputs, x, y, attended)
        return x + attended + self.ffn(y if norm is None else norm(x))


class LayerNormDecoder(Decoder):
    """Embedding, layers, layer norm, head. A subclass annotates `config` and `layers`, and writes
    `caches`."""

    norm: LayerNorm = gguf("output_norm", hf="model.norm", shape=("width",))
