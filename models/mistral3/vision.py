"""Pixtral's tower, which sees pictures of any size, and Mistral 3's patch merger."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from ggmodel import DType, Module, Tensor, gguf, nn
from ggmodel.image import composite, normalize, resize, unfold
from ggmodel.ml import Context
from ggmodel.model import PermuteRope, Pixels
from ggmodel.nn import Linear, RMSNorm

from .config import Mistral3Config

if TYPE_CHECKING:
    from PIL.Image import Image


def pixels_of(image: Image, h: Mistral3Config) -> Pixels:
    """A picture made smaller until it fits into h.side × h.side pixels, then stretched to whole
    units of patches."""
    image = composite(image)
    ratio = max(1, *(n / h.side for n in image.size))
    width, height = (max(1, math.floor(n / ratio)) for n in image.size)
    size = -(-width // h.unit) * h.unit, -(-height // h.unit) * h.unit
    return Pixels(normalize(resize(image, size, h.resample), h.image_mean, h.image_std)[None])


_SQUARE = ("vit_width", "vit_width")


class Attention(Module):
    config: Mistral3Config
    q: Linear = gguf("attn_q", hf="q_proj", op=PermuteRope("vit_heads"), shape=_SQUARE)
    k: Linear = gguf("attn_k", hf="k_proj", op=PermuteRope("vit_heads"), shape=_SQUARE)
    v: Linear = gguf("attn_v", hf="v_proj", shape=_SQUARE)
    out: Linear = gguf("attn_out", hf="o_proj", shape=_SQUARE)

    def forward(self, x: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
        h = self.config
        d = h.vit_width // h.vit_heads
        # Frequencies alternate between rows and columns: those of the columns come later.
        rope = nn.Rope2D(d, h.vit_rope_base, h.vit_rope_base ** (-2 / d))
        q, k, v = (p(x).reshape(d, h.vit_heads, -1) for p in (self.q, self.k, self.v))
        q, k = rope(q, rows, columns), rope(k, rows, columns)
        y = q.scaled_dot_product_attention(k, v, scale=d**-0.5)
        return self.out(y.reshape(h.vit_width, -1))


class Layer(Module):
    config: Mistral3Config
    norm1: RMSNorm = gguf("ln1", hf="attention_norm", shape=("vit_width",))
    attn: Attention = gguf(hf="attention")
    norm2: RMSNorm = gguf("ln2", hf="ffn_norm", shape=("vit_width",))
    gate: Linear = gguf("ffn_gate", hf="feed_forward.gate_proj", shape=("vit_width", "vit_ffn"))
    up: Linear = gguf("ffn_up", hf="feed_forward.up_proj", shape=("vit_width", "vit_ffn"))
    down: Linear = gguf("ffn_down", hf="feed_forward.down_proj", shape=("vit_ffn", "vit_width"))

    def forward(self, x: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
        h = self.config
        x = x + self.attn(self.norm1(x, h.vit_eps), rows, columns)
        y = self.norm2(x, h.vit_eps)
        return x + self.down(nn.activate(h.vit_activation, self.gate(y), self.up(y)))


class Vision(Module):
    config: Mistral3Config
    patch: nn.PatchEmbedding = gguf(
        "patch_embd", hf="patch_conv", shape=("patch", "patch", 3, "vit_width")
    )
    norm: RMSNorm = gguf("pre_ln", hf="ln_pre", shape=("vit_width",))
    layers: list[Layer] = gguf("blk", hf="transformer.layers", n="vit_layers")

    def forward(self, ctx: Context, image: Pixels) -> Tensor:
        """Pixels [1, 3, height, width] → F32 [vit_width, patches]."""
        h, size = self.config, image.values.shape[2:]
        at = np.indices([n // h.patch for n in size], np.int32).reshape(2, -1)
        rows, columns = map(ctx.constant, at)
        x = ctx.feed(
            lambda image: unfold(image.values, h.patch)[0], DType.F32, 3 * h.patch**2, at.shape[1]
        )
        x = self.norm(self.patch(x), h.vit_eps)
        for layer in self.layers:
            x = layer(x, rows, columns)
        return x


class Projector(Module):
    """Squares of patches become one row each in Mistral 3, not in Pixtral."""

    config: Mistral3Config
    norm: RMSNorm | None = gguf("input_norm", hf="norm", shape=("vit_width",))
    merger: Linear | None = gguf(
        "patch_merger", hf="patch_merger.merging_layer", shape=("merged_width", "vit_width")
    )
    first: Linear = gguf("1", hf="linear_1", shape=("vit_width", "width"))
    second: Linear = gguf("2", hf="linear_2", shape=("width", "width"))

    def forward(self, x: Tensor, columns: int) -> Tensor:
        """[vit_width, patches] in a grid with so many columns → [width, rows]."""
        h = self.config
        if self.norm is not None:
            x = self.norm(x)
        if self.merger is not None:
            # Numbers of one channel stand beside each other.
            merged = nn.merge_patches(x, columns, h.merge).reshape(h.vit_width, h.merge**2, -1)
            x = self.merger(merged.permute(1, 0, 2).contiguous(h.merged_width, -1))
        return self.second(nn.activate(h.mm_activation, self.first(x)))
