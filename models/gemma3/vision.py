"""Gemma 3's vision tower, SigLIP, and the projector that pools its patches."""

from __future__ import annotations

from typing import Any

from ggmodel import DType, Module, Tensor, gguf, nn
from ggmodel.model import AddConstant, Operation
from ggmodel.nn import Conv2D, Embedding, LayerNorm, RMSNorm

from .config import Gemma3Config


def _embedding(name: str, *shape: int | str) -> Any:
    hf = f"embeddings.{name}_embedding"
    return gguf(f"{name}_embedding", f"{name}_embd", hf=hf, shape=shape)


class Vision(Module):
    config: Gemma3Config
    patches: Conv2D = _embedding("patch", "patch", "patch", 3, "vit_width")
    positions: Embedding = _embedding("position", "vit_width", "patches")
    layers: list[nn.VisionLayer] = gguf("blk", hf="encoder.layers", n="vit_layers")
    norm: LayerNorm = gguf("post_layernorm", "post_ln", hf="post_layernorm", shape=("vit_width",))

    def forward(self, x: Tensor) -> Tensor:
        """Pixels [side, side, 3] → F32 [vit_width, patches]."""
        h = self.config
        x = self.patches(x, h.patch).reshape(h.patches, h.vit_width).permute(1, 0).contiguous()
        x = x + self.positions.weight.cast(DType.F32)
        for layer in self.layers:
            x = layer(x)
        return self.norm(x, h.vit_eps)


def _mm(name: str, hf: str, *shape: str, op: Operation | None = None) -> Any:
    return gguf(f"mm_{name}", name, hf=f"mm_{hf}", op=op, shape=shape)


class Projector(Module):
    config: Gemma3Config
    norm: RMSNorm = _mm("soft_emb_norm", "soft_emb_norm", "vit_width", op=AddConstant(1))
    # Stored as in checkpoints: the transpose of a linear map's weight.
    weight: Tensor = _mm("input_projection.weight", "input_projection_weight", "width", "vit_width")

    def forward(self, x: Tensor) -> Tensor:
        """[vit_width, patches] → [width, rows], means over squares of patches."""
        h = self.config
        x = x.permute(1, 0).contiguous(h.grid, h.grid, h.vit_width).avg_pool_2d(h.pool, h.pool)
        x = x.reshape(-1, h.vit_width).permute(1, 0).contiguous()
        return (
            self.weight.cast(DType.F32).permute(1, 0).contiguous().mulmat(self.norm(x, h.vit_eps))
        )
