"""What Gemma 3 sees with: SigLIP, and a projector that pools patches."""

from __future__ import annotations

from typing import Any

from ggmodel import DType, Module, Tensor, gguf
from ggmodel.model import AddConstant, Operation
from ggmodel.nn import Conv2D, Embedding, LayerNorm, Linear, RMSNorm

from .config import Hyper


class VisionAttention(Module):
    config: Hyper
    q: Linear = gguf("attn_q", hf="q_proj", shape=("v_hidden", "v_hidden"))
    k: Linear = gguf("attn_k", hf="k_proj", shape=("v_hidden", "v_hidden"))
    v: Linear = gguf("attn_v", hf="v_proj", shape=("v_hidden", "v_hidden"))
    out: Linear = gguf("attn_output", "attn_out", hf="out_proj", shape=("v_hidden", "v_hidden"))

    def forward(self, x: Tensor) -> Tensor:
        h = self.config
        width = h.v_hidden // h.v_heads
        q, k, v = (p(x).reshape(width, h.v_heads, -1) for p in (self.q, self.k, self.v))
        y = q.scaled_dot_product_attention(k, v, scale=width**-0.5)
        return self.out(y.reshape(h.v_hidden, -1))


class FeedForward(Module):
    first: Linear = gguf("mlp.fc1", "ffn_up", hf="fc1", shape=("v_hidden", "v_ffn"))
    second: Linear = gguf("mlp.fc2", "ffn_down", hf="fc2", shape=("v_ffn", "v_hidden"))

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x).gelu())


class SwappedFeedForward(FeedForward):
    """In older mmproj files each has the other's name."""

    first: Linear = gguf("ffn_down", shape=("v_hidden", "v_ffn"))
    second: Linear = gguf("ffn_up", shape=("v_ffn", "v_hidden"))


class VisionLayer(Module):
    config: Hyper
    norm1: LayerNorm = gguf("layer_norm1", "ln1", hf="layer_norm1", shape=("v_hidden",))
    attn: VisionAttention = gguf(hf="self_attn")
    norm2: LayerNorm = gguf("layer_norm2", "ln2", hf="layer_norm2", shape=("v_hidden",))
    ffn: FeedForward | SwappedFeedForward = gguf(hf="mlp")

    def forward(self, x: Tensor) -> Tensor:
        eps = self.config.v_eps
        x = x + self.attn(self.norm1(x, eps))
        return x + self.ffn(self.norm2(x, eps))


def _embedding(name: str, *shape: int | str) -> Any:
    hf = f"embeddings.{name}_embedding"
    return gguf(f"{name}_embedding", f"{name}_embd", hf=hf, shape=shape)


class Vision(Module):
    config: Hyper
    patches: Conv2D = _embedding("patch", "patch", "patch", 3, "v_hidden")
    positions: Embedding = _embedding("position", "v_hidden", "patches")
    layers: list[VisionLayer] = gguf("blk", hf="encoder.layers", n="v_layers")
    norm: LayerNorm = gguf("post_layernorm", "post_ln", hf="post_layernorm", shape=("v_hidden",))

    def forward(self, x: Tensor) -> Tensor:
        """Pixels [side, side, 3] → F32 [v_hidden, patches]."""
        h = self.config
        x = self.patches(x, h.patch).reshape(h.patches, h.v_hidden).permute(1, 0).contiguous()
        x = x + self.positions.weight.cast(DType.F32)
        for layer in self.layers:
            x = layer(x)
        return self.norm(x, h.v_eps)


def _mm(name: str, hf: str, *shape: str, op: Operation | None = None) -> Any:
    return gguf(f"mm_{name}", name, hf=f"mm_{hf}", op=op, shape=shape)


class Projector(Module):
    config: Hyper
    norm: RMSNorm = _mm("soft_emb_norm", "soft_emb_norm", "v_hidden", op=AddConstant(1))
    # Files keep it as checkpoints do: the other way round than weights of linear maps.
    weight: Tensor = _mm("input_projection.weight", "input_projection_weight", "hidden", "v_hidden")

    def forward(self, x: Tensor) -> Tensor:
        """[v_hidden, patches] → [hidden, tokens], means of squares of patches."""
        h = self.config
        x = x.permute(1, 0).contiguous(h.grid, h.grid, h.v_hidden).avg_pool_2d(h.pool, h.pool)
        x = x.reshape(-1, h.v_hidden).permute(1, 0).contiguous()
        return self.weight.cast(DType.F32).permute(1, 0).contiguous().mulmat(self.norm(x, h.v_eps))
