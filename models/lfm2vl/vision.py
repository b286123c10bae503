"""LFM2-VL's tower, SigLIP 2's layers for pictures of any size, and how a picture becomes tiles."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from ggmodel import DType, Module, Tensor, gguf, nn
from ggmodel.image import (
    composite,
    nearest_grid,
    normalize,
    resize,
    smart_size,
    split_tiles,
    unfold,
)
from ggmodel.ml import Context
from ggmodel.model import Pixels
from ggmodel.models.gemma4.vision import Kernel
from ggmodel.nn import Embedding, LayerNorm, Linear

from .config import Lfm2VlConfig

if TYPE_CHECKING:
    from PIL.Image import Image

PROJECTOR_EPS = 1e-5  # configs do not have it


def grid_of(size: tuple[int, int], h: Lfm2VlConfig) -> tuple[int, int]:
    """Rows and columns of the tiles of a picture (width, height); (1, 1) of one that is seen whole
    (transformers, image_processing_lfm2_vl, `_is_image_too_large`)."""
    width, height = (max(h.patch, round(n / h.cell) * h.cell) for n in size)
    if h.most_tiles == 1 or width * height <= h.most_rows * h.cell**2 * h.tolerance:
        return 1, 1
    return nearest_grid(size, h.side, h.least_tiles, h.most_tiles)


def tiles_of(image: Image, h: Lfm2VlConfig) -> Pixels:
    """The patches of the tiles of a picture row by row, then of a view of the whole; of the whole
    alone for a small picture. `data` has "grid", rows and columns of tiles, and "shapes", rows and
    columns of patches in each tile and in the view."""
    image = composite(image)
    method: Any = h.resample
    least, most = (rows * h.cell**2 for rows in (h.least_rows, h.most_rows))
    rows, columns = grid = grid_of(image.size, h)

    def pixels(size: tuple[int, int]) -> np.ndarray:
        return normalize(resize(image, size, method), h.image_mean, h.image_std)

    views: list[np.ndarray] = []
    if rows * columns > 1:
        views += [*split_tiles(pixels((columns * h.side, rows * h.side)), rows, columns)]
    if rows * columns == 1 or h.thumbnail:
        views.append(pixels(smart_size(image.size, h.cell, least, most, smallest=h.cell)))
    patches = np.concatenate([unfold(view[None], h.patch)[0] for view in views])
    shapes = tuple((view.shape[1] // h.patch, view.shape[2] // h.patch) for view in views)
    return Pixels(patches, {"grid": grid, "shapes": shapes})


def shares(n: int, side: int) -> np.ndarray:
    """The shares of `side` learned positions in each of n, float32 [n, side]: triangles as wide as
    the distance of two positions, at least as that of two learned ones (torch's bilinear
    `interpolate` with `antialias`, which transformers' Siglip2VisionEmbeddings calls)."""
    scale = side / n
    middles, at = (np.arange(n) + 0.5) * scale, np.arange(side) + 0.5
    found = np.maximum(0, 1 - abs(at - middles[:, None]) / max(scale, 1))
    return (found / found.sum(axis=1, keepdims=True)).astype(np.float32)


class Patches(nn.PatchEmbedding):
    weight: Tensor = gguf("weight", op=Kernel())


class Vision(Module):
    config: Lfm2VlConfig
    patches: Patches = gguf(
        "patch_embd", hf="embeddings.patch_embedding", shape=("patch", "patch", 3, "vit_width")
    )
    positions: Embedding = gguf(
        "position_embd", hf="embeddings.position_embedding", shape=("vit_width", None)
    )
    layers: list[nn.VisionLayer] = gguf("blk", hf="encoder.layers", n="vit_layers")
    norm: LayerNorm = gguf("post_ln", hf="post_layernorm", shape=("vit_width",))

    def forward(self, ctx: Context, first: int, tiles: int, rows: int, columns: int) -> Tensor:
        """The item's patches from `first` on → F32 [vit_width, rows · columns, tiles]."""
        h, n, side = self.config, rows * columns, math.isqrt(self.positions.weight.dim(1))

        def patches(image: Pixels) -> np.ndarray:
            return image.values[first : first + tiles * n].reshape(tiles, n, -1)

        x = self.patches(ctx.feed(patches, DType.F32, h.patch_width, n, tiles))
        learned = self.positions(ctx.constant(np.arange(side**2))).permute(1, 0).contiguous()
        found = np.kron(shares(rows, side), shares(columns, side))
        x = x + learned.mulmat(ctx.constant(found, DType.F32))
        for layer in self.layers:
            x = layer(x)
        return self.norm(x, h.vit_eps)


class Projector(Module):
    """Squares of patches become one row each."""

    config: Lfm2VlConfig
    norm: LayerNorm | None = gguf("input_norm", hf="layer_norm", shape=("merged_width",))
    first: Linear = gguf("1", hf="linear_1", shape=("merged_width", None))
    second: Linear = gguf("2", hf="linear_2", shape=(None, "width"))

    def forward(self, x: Tensor, columns: int) -> Tensor:
        """[vit_width, patches, tiles], row by row → [width, squares of patches, tiles]."""
        h = self.config
        x = nn.merge_patches(x, columns, h.merge)
        x = x if self.norm is None else self.norm(x, PROJECTOR_EPS)
        return self.second(nn.activate(h.mm_activation, self.first(x)))
