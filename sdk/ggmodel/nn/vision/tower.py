"""SigLIP's layers, under the names that Ollama's and llama.cpp's files have for them.

They read the config's `vit_width`, `vit_heads`, `vit_ffn`, `vit_eps` and `vit_activation`.
"""

from __future__ import annotations

from typing import Any

from ...ml import Tensor
from ...model.fields import gguf
from ...model.module import Module
from ..feedforward import activate
from ..layers import LayerNorm, Linear

_SQUARE = ("vit_width", "vit_width")


class VisionAttention(Module):
    """Every row sees all rows."""

    config: Any
    q: Linear = gguf("attn_q", hf="q_proj", shape=_SQUARE)
    k: Linear = gguf("attn_k", hf="k_proj", shape=_SQUARE)
    v: Linear = gguf("attn_v", hf="v_proj", shape=_SQUARE)
    out: Linear = gguf("attn_output", "attn_out", hf="out_proj", shape=_SQUARE)

    def forward(self, x: Tensor) -> Tensor:
        """x [width, n, images] → [width, n, images]."""
        h = self.config
        heads = h.vit_width // h.vit_heads, h.vit_heads, x.dim(1), x.dim(2)
        q, k, v = (p(x).reshape(*heads) for p in (self.q, self.k, self.v))
        y = q.scaled_dot_product_attention(k, v, scale=heads[0] ** -0.5)
        return self.out(y.reshape(*x.shape))


class VisionMLP(Module):
    """second(activation(first(x)))."""

    config: Any
    first: Linear = gguf("mlp.fc1", "ffn_up", hf="fc1", shape=("vit_width", "vit_ffn"))
    second: Linear = gguf("mlp.fc2", "ffn_down", hf="fc2", shape=("vit_ffn", "vit_width"))

    def forward(self, x: Tensor) -> Tensor:
        """x [width, …] → [width, …]."""
        return self.second(activate(self.config.vit_activation, self.first(x)))


class SwappedVisionMLP(VisionMLP):
    """Older mmproj files, in which each has the other's name: the shapes tell."""

    first: Linear = gguf("ffn_down", shape=("vit_width", "vit_ffn"))
    second: Linear = gguf("ffn_up", shape=("vit_ffn", "vit_width"))


class VisionLayer(Module):
    """x + attn(norm(x)), then x + ffn(norm(x))."""

    config: Any
    norm1: LayerNorm = gguf("layer_norm1", "ln1", hf="layer_norm1", shape=("vit_width",))
    attn: VisionAttention = gguf(hf="self_attn")
    norm2: LayerNorm = gguf("layer_norm2", "ln2", hf="layer_norm2", shape=("vit_width",))
    ffn: VisionMLP | SwappedVisionMLP = gguf(hf="mlp")

    def forward(self, x: Tensor) -> Tensor:
        """x [width, n, images] → [width, n, images]."""
        eps = self.config.vit_eps
        x = x + self.attn(self.norm1(x, eps))
        return x + self.ffn(self.norm2(x, eps))
