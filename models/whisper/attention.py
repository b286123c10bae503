"""The attention of Whisper's decoder: to its own text, and to what the encoder heard."""

from __future__ import annotations

from ggmodel import Module, Tensor, gguf, nn
from ggmodel.kvcache import LayerObjects
from ggmodel.model import LayerMemory
from ggmodel.nn import Linear

from .config import WhisperConfig


class Attention(Module):
    config: WhisperConfig
    q: Linear = gguf("attn_q", hf="q_proj", shape=("width", "width"))
    k: Linear = gguf("attn_k", hf="k_proj", shape=("width", "width"))
    v: Linear = gguf("attn_v", hf="v_proj", shape=("width", "width"))
    out: Linear = gguf("attn_output", hf="out_proj", shape=("width", "width"))

    def heads(self, x: Tensor) -> Tensor:
        h = self.config
        return x.reshape(h.width // h.heads, h.heads, -1)


class SelfAttention(Attention):
    def forward(self, x: Tensor, cache: LayerMemory) -> Tensor:
        q, k, v = (self.heads(part(x)) for part in (self.q, self.k, self.v))
        return self.out(nn.attention(q, k, v, cache, scale=q.dim(0) ** -0.5))


class CrossAttention(Attention):
    def forward(self, x: Tensor, sounds: Tensor | None, cache: LayerObjects) -> Tensor:
        if sounds is not None:
            cache.put(self.heads(self.k(sounds)), self.heads(self.v(sounds)))
        q = self.heads(self.q(x))
        return self.out(nn.attention(q.scale(q.dim(0) ** -0.5), None, None, cache, scale=1.0))
