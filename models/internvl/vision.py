"""The towers of InternVL, of 300 million and of 6 billion parameters: layers with a scale on each
branch, whose norms are RMS norms in the larger one; and how a picture becomes tiles."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ggmodel import DType, Module, Tensor, gguf, nn
from ggmodel.image import composite, nearest_grid, normalize, resize, split_tiles, unfold
from ggmodel.ml import Context
from ggmodel.model import Pixels
from ggmodel.nn import LayerNorm, Linear, RMSNorm

from .config import InternVLConfig

if TYPE_CHECKING:
    from PIL.Image import Image

_SQUARE = ("vit_width", "vit_width")


def tiles_of(image: Image, h: InternVLConfig) -> Pixels:
    """The tiles of a picture row by row, stretched to the grid of the nearest proportions; a view
    of the whole follows where there are several."""
    image, side, method = composite(image), h.side, h.resample
    rows, columns = nearest_grid(image.size, side, h.least_tiles, h.most_tiles)

    def pixels(size: tuple[int, int]) -> np.ndarray:
        return normalize(resize(image, size, method), h.image_mean, h.image_std)

    tiles = split_tiles(pixels((columns * side, rows * side)), rows, columns)
    if len(tiles) > 1:
        tiles = np.concatenate([tiles, pixels((side, side))[None]])
    return Pixels(tiles, {})


class Norm(LayerNorm):
    """A norm of the smaller tower; those of the larger one have no bias and take no mean away."""

    def forward(self, x: Tensor, eps: float | None = None) -> Tensor:
        used: float = self.config.vit_eps if eps is None else eps
        return x.rms_norm(self.weight, used) if self.bias is None else super().forward(x, used)


class Attention(nn.VisionAttention):
    config: InternVLConfig
    out: Linear = gguf("attn_output", "attn_out", hf="projection_layer", shape=_SQUARE)
    q_norm: RMSNorm | None = gguf("attn_q_norm", hf="q_norm", shape=("vit_width",))
    k_norm: RMSNorm | None = gguf("attn_k_norm", hf="k_norm", shape=("vit_width",))

    def forward(self, x: Tensor) -> Tensor:
        """x [width, n, tiles] → [width, n, tiles]."""
        h = self.config
        q, k = self.q(x), self.k(x)
        # The constant is transformers'.
        q = q if self.q_norm is None else self.q_norm(q, 1e-6)
        k = k if self.k_norm is None else self.k_norm(k, 1e-6)
        heads = h.vit_width // h.vit_heads, h.vit_heads, x.dim(1), x.dim(2)
        q, k, v = (y.reshape(*heads) for y in (q, k, self.v(x)))
        y = q.scaled_dot_product_attention(k, v, scale=heads[0] ** -0.5)
        return self.out(y.reshape(*x.shape))


class Layer(Module):
    config: InternVLConfig
    norm1: Norm = gguf("ln1", hf="layernorm_before", shape=("vit_width",))
    attn: Attention = gguf(hf="attention")
    scale1: Tensor = gguf("ls1.weight", hf="lambda_1", shape=("vit_width",))
    norm2: Norm = gguf("ln2", hf="layernorm_after", shape=("vit_width",))
    ffn: nn.VisionMLP = gguf(hf="mlp")
    scale2: Tensor = gguf("ls2.weight", hf="lambda_2", shape=("vit_width",))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x)) * self.scale1
        return x + self.ffn(self.norm2(x)) * self.scale2


class Vision(Module):
    config: InternVLConfig
    whole: Tensor = gguf("class_embd", hf="embeddings.cls_token", shape=("vit_width", 1, 1))
    patch: nn.PatchEmbedding = gguf(
        "patch_embd",
        hf="embeddings.patch_embeddings.projection",
        shape=("patch", "patch", 3, "vit_width"),
    )
    positions: Tensor = gguf(
        "position_embd.weight",
        hf="embeddings.position_embeddings",
        shape=("vit_width", "places", 1),
    )
    layers: list[Layer] = gguf("blk", hf="encoder.layer", n="vit_layers")
    norm: Norm | None = gguf("post_ln", hf="layernorm", shape=("vit_width",))

    def forward(self, ctx: Context, count: int) -> Tensor:
        """`count` tiles, fed as [tiles, 3, side, side] → [vit_width, 1 + patches, tiles]."""
        h = self.config
        used = h.grid * h.patch  # the rest of a tile is dropped
        patches = ctx.feed(
            lambda i: unfold(i.values[:, :, :used, :used], h.patch),
            DType.F32,
            h.patch_width,
            h.patches,
            count,
        )
        whole = self.whole.repeat_4d(h.vit_width, 1, count, 1)
        x = whole.concat(self.patch(patches), 1) + self.positions
        for layer in self.layers:
            x = layer(x)
        return x if self.norm is None else self.norm(x)


class Projector(Module):
    """Squares of patches become one row each; the class token is left out."""

    config: InternVLConfig
    norm: LayerNorm = gguf("0", hf="layer_norm", shape=("merged_width",))
    first: Linear = gguf("1", hf="linear_1", shape=("merged_width", "width"))
    second: Linear = gguf("3", hf="linear_2", shape=("width", "width"))

    def forward(self, x: Tensor) -> Tensor:
        """[vit_width, 1 + patches, tiles] → [width, rows, tiles]."""
        h = self.config
        merged = nn.merge_patches(x.slice(1, 1, h.places), h.grid, h.merge)
        x = self.norm(merged, 1e-5)  # torch's default
        return self.second(nn.activate(h.mm_activation, self.first(x)))
