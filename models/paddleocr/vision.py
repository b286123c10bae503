"""PaddleOCR-VL's tower, which sees pages of any size, and the projector of squares of patches."""

from __future__ import annotations

import math

import numpy as np

from ggmodel import DType, Module, Tensor, gguf, nn
from ggmodel.image import smart_size, unfold
from ggmodel.ml import Context, RopeType
from ggmodel.nn import Embedding, LayerNorm, Linear

from .config import PaddleOCRConfig

PROJECTOR_EPS = 1e-5  # configs do not have it
_SQUARE = ("vit_width", "vit_width")


def page_size(size: tuple[int, int], h: PaddleOCRConfig) -> tuple[int, int]:
    """The width and height of a picture for the tower; a side below a row's is made larger first
    (transformers, image_processing_paddleocr_vl, `smart_resize`).

    Raises:
        ImageError: as `smart_size`.
    """
    width, height = size
    if height < h.cell:
        width, height = round(width * h.cell / height), h.cell
    if width < h.cell:
        width, height = h.cell, round(height * h.cell / width)
    return smart_size((width, height), h.cell, h.min_pixels, h.max_pixels, size)


def between(n: int, side: int) -> tuple[np.ndarray, np.ndarray]:
    """The two learned positions around each of n patches, int [2, n], and the weights of these,
    float32 [2, n]: middles meet (transformers, vision_utils, `align_corners=False`)."""
    at = (np.arange(n, dtype=np.float32) + np.float32(0.5)) * np.float32(side) / np.float32(n)
    at -= np.float32(0.5)
    low = np.floor(at)
    taps = np.clip(low.astype(int) + np.arange(2)[:, None], 0, side - 1)
    return taps, np.stack([1 - (at - low), at - low])


class Attention(Module):
    config: PaddleOCRConfig
    q: Linear = gguf("attn_q", hf="q_proj", shape=_SQUARE)
    k: Linear = gguf("attn_k", hf="k_proj", shape=_SQUARE)
    v: Linear = gguf("attn_v", hf="v_proj", shape=_SQUARE)
    out: Linear = gguf("attn_out", hf="out_proj", shape=_SQUARE)

    def forward(self, x: Tensor, places: Tensor) -> Tensor:
        h = self.config
        d = h.vit_width // h.vit_heads
        q, k, v = (p(x).reshape(d, h.vit_heads, -1) for p in (self.q, self.k, self.v))
        q, k = (
            y.rope(places, d // 2, 1e4, type=RopeType.VISION, sections=(d // 4, d // 4, 0, 0))
            for y in (q, k)
        )
        y = q.scaled_dot_product_attention(k, v, scale=d**-0.5)
        return self.out(y.reshape(h.vit_width, -1))


class MLP(Module):
    config: PaddleOCRConfig
    up: Linear = gguf("ffn_up", hf="fc1", shape=("vit_width", "vit_ffn"))
    down: Linear = gguf("ffn_down", hf="fc2", shape=("vit_ffn", "vit_width"))

    def forward(self, x: Tensor) -> Tensor:
        return self.down(nn.activate(self.config.vit_activation, self.up(x)))


class Layer(Module):
    config: PaddleOCRConfig
    norm1: LayerNorm = gguf("ln1", hf="layer_norm1", shape=("vit_width",))
    attn: Attention = gguf(hf="self_attn")
    norm2: LayerNorm = gguf("ln2", hf="layer_norm2", shape=("vit_width",))
    ffn: MLP = gguf(hf="mlp")

    def forward(self, x: Tensor, places: Tensor) -> Tensor:
        eps = self.config.vit_eps
        x = x + self.attn(self.norm1(x, eps), places)
        return x + self.ffn(self.norm2(x, eps))


class Vision(Module):
    config: PaddleOCRConfig
    patches: nn.PatchEmbedding = gguf(
        "patch_embd", hf="embeddings.patch_embedding", shape=("patch", "patch", 3, "vit_width")
    )
    positions: Embedding = gguf(
        "position_embd", hf="embeddings.position_embedding", shape=("vit_width", None)
    )
    layers: list[Layer] = gguf("blk", hf="encoder.layers", n="vit_layers")
    norm: LayerNorm = gguf("post_ln", hf="post_layernorm", shape=("vit_width",))

    def forward(self, ctx: Context, rows: int, columns: int) -> Tensor:
        """The item's pixels [1, 3, height, width] → F32 [vit_width, patches], row by row."""
        h, n = self.config, rows * columns
        patches = ctx.feed(
            lambda page: unfold(page.values, h.patch), DType.F32, 3 * h.patch**2, n, name="pixels"
        )
        x = self.patches(patches)
        side = math.isqrt(self.positions.weight.dim(1))
        (down, high), (across, wide) = between(rows, side), between(columns, side)
        for i, j in np.ndindex(2, 2):
            ids = (down[i][:, None] * side + across[j]).reshape(-1).astype(np.int32)
            weights = (high[i][:, None] * wide[j]).reshape(-1, 1)
            positions = self.positions(ctx.constant(ids))
            x = x + positions * ctx.constant(weights, DType.F32)
        at = np.indices((rows, columns), np.int32).reshape(-1)
        places = ctx.constant(np.concatenate([at, np.zeros_like(at)]))
        for layer in self.layers:
            x = layer(x, places)
        return self.norm(x, h.vit_eps)


class Projector(Module):
    config: PaddleOCRConfig
    norm: LayerNorm = gguf("input_norm", hf="pre_norm", shape=("vit_width",))
    first: Linear = gguf("1", hf="linear_1", shape=("merged_width", "merged_width"))
    second: Linear = gguf("2", hf="linear_2", shape=("merged_width", "width"))

    def forward(self, x: Tensor, columns: int) -> Tensor:
        """[vit_width, patches], row by row → [width, squares of patches]."""
        x = nn.merge_patches(self.norm(x, PROJECTOR_EPS), columns, self.config.merge)
        return self.second(self.first(x.reshape(self.config.merged_width, -1)).gelu_erf())
