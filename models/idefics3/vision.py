"""The tower of Idefics3, SigLIP's layers, and how a picture becomes tiles."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from ggmodel import Module, Tensor, gguf, nn
from ggmodel.image import composite, normalize, resize, split_tiles, unfold
from ggmodel.ml import Context, DType
from ggmodel.model import Pixels
from ggmodel.nn import Embedding, LayerNorm, Linear

from .config import Idefics3Config

if TYPE_CHECKING:
    from PIL.Image import Image

MOST = 4096  # pixels of a scaled picture's side, as in transformers, MAX_IMAGE_SIZE


def scaled(size: tuple[int, int], longest: int) -> tuple[int, int]:
    """The size (width, height) of a picture whose longer side becomes `longest`, at most `MOST`;
    the shorter one is even (transformers, get_resize_output_image_size)."""
    wide = size[0] >= size[1]
    ratio = size[0] / size[1]
    short = int(longest / ratio) if wide else int(longest * ratio)
    short = max(1, short + short % 2)
    width, height = (longest, short) if wide else (short, longest)
    if max(width, height) > MOST:
        ratio = width / height
        width, height = (MOST, int(MOST / ratio)) if width >= height else (int(MOST * ratio), MOST)
    return max(1, width), max(1, height)


def canvas(size: tuple[int, int], side: int) -> tuple[int, int]:
    """The size in whole tiles: the longer side first, then the shorter one by the proportions."""
    width, height = size
    ratio = width / height
    if width >= height:
        width = math.ceil(width / side) * side
        return width, math.ceil(int(width / ratio) / side) * side
    height = math.ceil(height / side) * side
    return math.ceil(int(height * ratio) / side) * side, height


def tiles_of(image: Image, h: Idefics3Config) -> Pixels:
    """The tiles of a picture row by row, then a view of the whole; one view of a picture that fits
    a tile. `data` has "grid", (rows, columns) of tiles, (0, 0) of such a picture."""

    method: Any = h.resample

    def fitted(image: Image, size: tuple[int, int]) -> Image:
        return resize(image, size, method, pillow=True)

    def pixels(image: Image) -> np.ndarray:
        return normalize(image, h.image_mean, h.image_std)

    image = composite(image)
    image = fitted(image, scaled(image.size, h.longest))
    image = fitted(image, canvas(image.size, h.side))
    columns, rows = (n // h.side for n in image.size)
    if rows == columns == 1:
        return Pixels(pixels(image)[None], {"grid": (0, 0)})
    whole = pixels(fitted(image, (h.side, h.side)))[None]
    return Pixels(
        np.concatenate([split_tiles(pixels(image), rows, columns), whole]),
        {"grid": (rows, columns)},
    )


def positions(n: int) -> np.ndarray:
    """The row or column of the table of positions for each of n patches, int32 [n]: transformers
    looks them up by fractions in float32 (Idefics3VisionEmbeddings)."""
    bounds = (1 / n + np.arange(math.ceil((1 - 1 / n) * n)) / n).astype(np.float32)
    at = np.arange(n, dtype=np.float32) * (np.float32(1) / np.float32(n))
    return np.searchsorted(bounds, np.minimum(at, np.float32(1 - 1e-6)), "right").astype(np.int32)


class Vision(Module):
    config: Idefics3Config
    patch: nn.PatchEmbedding = gguf(
        "patch_embd", hf="embeddings.patch_embedding", shape=("patch", "patch", 3, "vit_width")
    )
    positions: Embedding = gguf(
        "position_embd", hf="embeddings.position_embedding", shape=("vit_width", "patches")
    )
    layers: list[nn.VisionLayer] = gguf("blk", hf="encoder.layers", n="vit_layers")
    norm: LayerNorm = gguf("post_ln", hf="post_layernorm", shape=("vit_width",))

    def forward(self, ctx: Context, tiles: int) -> Tensor:
        """Pixels [tiles, 3, side, side] → F32 [vit_width, patches, tiles]."""
        h = self.config
        used = h.grid * h.patch  # the rest of a tile is dropped

        def patches(image: Pixels) -> np.ndarray:
            return unfold(image.values[:, :, :used, :used], h.patch)

        x = self.patch(ctx.feed(patches, DType.F32, 3 * h.patch**2, h.grid**2, tiles))
        at = positions(h.grid)
        ids = np.minimum(at[:, None] * h.grid + at, h.patches - 1).reshape(-1)
        x = x + self.positions(ctx.constant(ids))
        for layer in self.layers:
            x = layer(x)
        return self.norm(x, h.vit_eps)


class Projector(Module):
    """Squares of patches become one row each."""

    config: Idefics3Config
    proj: Linear = gguf("fc", hf="proj", shape=("merged_width", "width"))

    def forward(self, x: Tensor) -> Tensor:
        """[vit_width, patches] of one tile → [width, rows]."""
        return self.proj(nn.merge_patches(x, self.config.grid, self.config.merge))
