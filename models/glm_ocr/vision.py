"""GLM-OCR's tower, whose queries and keys have norms and turn by row and column, and the merger of
squares of patches, a convolution."""

from __future__ import annotations

import numpy as np

from ggmodel import DType, Module, Tensor, gguf, nn
from ggmodel.image import smart_size, unfold
from ggmodel.ml import Context, RopeType
from ggmodel.nn import LayerNorm, Linear, RMSNorm

from .config import GlmOcrConfig

MERGER_EPS = 1e-5  # configs do not have it


def page_size(size: tuple[int, int], h: GlmOcrConfig) -> tuple[int, int]:
    """The width and height of a picture for the tower; one with a side below a row's is made larger
    first (transformers, image_processing_glm46v, `smart_resize`).

    Raises:
        ImageError: as `smart_size`.
    """
    width, height = size
    if min(size) < h.cell:
        scale = max(h.cell / height, h.cell / width)
        width, height = int(width * scale), int(height * scale)
    return smart_size((width, height), h.cell, h.min_pixels, h.max_pixels, size)


class Attention(Module):
    config: GlmOcrConfig
    qkv: Linear = gguf("attn_qkv", hf="qkv", shape=("vit_width", "vit_fused"))
    q_norm: RMSNorm = gguf("attn_q_norm", hf="q_norm", shape=("vit_head_dim",))
    k_norm: RMSNorm = gguf("attn_k_norm", hf="k_norm", shape=("vit_head_dim",))
    out: Linear = gguf("attn_out", hf="proj", shape=("vit_width", "vit_width"))

    def forward(self, x: Tensor, places: Tensor) -> Tensor:
        h, d = self.config, self.config.vit_head_dim
        q, k, v = self.qkv(x).reshape(d, 3 * h.vit_heads, -1).chunk(1, h.vit_heads)
        q, k = (
            norm(y, h.vit_eps).rope(
                *(places, d // 2, h.vit_rope_base),
                type=RopeType.VISION,
                sections=(d // 4, d // 4, 0, 0),
            )
            for norm, y in ((self.q_norm, q), (self.k_norm, k))
        )
        y = q.scaled_dot_product_attention(k, v, scale=d**-0.5)
        return self.out(y.reshape(h.vit_width, -1))


class MLP(Module):
    config: GlmOcrConfig
    gate: Linear = gguf("ffn_gate", hf="gate_proj", shape=("vit_width", "vit_ffn"))
    up: Linear = gguf("ffn_up", hf="up_proj", shape=("vit_width", "vit_ffn"))
    down: Linear = gguf("ffn_down", hf="down_proj", shape=("vit_ffn", "vit_width"))

    def forward(self, x: Tensor) -> Tensor:
        return self.down(nn.activate(self.config.vit_activation, self.gate(x), self.up(x)))


class Layer(Module):
    config: GlmOcrConfig
    norm1: RMSNorm = gguf("ln1", hf="norm1", shape=("vit_width",))
    attn: Attention = gguf(hf="attn")
    norm2: RMSNorm = gguf("ln2", hf="norm2", shape=("vit_width",))
    ffn: MLP = gguf(hf="mlp")

    def forward(self, x: Tensor, places: Tensor) -> Tensor:
        eps = self.config.vit_eps
        x = x + self.attn(self.norm1(x, eps), places)
        return x + self.ffn(self.norm2(x, eps))


class Vision(Module):
    config: GlmOcrConfig
    patches: nn.FramePatchEmbedding = gguf(
        "patch_embd", hf="patch_embed.proj", shape=("patch", "patch", 3, "vit_width")
    )
    layers: list[Layer] = gguf("blk", hf="blocks", n="vit_layers")
    norm: RMSNorm = gguf("post_ln", hf="post_layernorm", shape=("vit_width",))

    def forward(self, ctx: Context, rows: int, columns: int) -> Tensor:
        """The item's pixels [1, 3, height, width] → F32 [vit_width, patches], squares of patches
        one after another."""
        h, n = self.config, rows * columns
        patches = ctx.feed(
            lambda page: unfold(page.values, h.patch, h.merge),
            *(DType.F32, 3 * h.patch**2, n),
            name="pixels",
        )
        x = self.patches(patches, patches)
        squares = (2, rows // h.merge, h.merge, columns // h.merge, h.merge)
        at = np.indices((rows, columns), np.int32).reshape(squares).swapaxes(2, 3).reshape(-1)
        places = ctx.constant(np.concatenate([at, np.zeros_like(at)]))
        for layer in self.layers:
            x = layer(x, places)
        return self.norm(x, h.vit_eps)


class Projector(Module):
    config: GlmOcrConfig
    merge: nn.PatchEmbedding = gguf(
        "patch_merger", hf="downsample", shape=("merge", "merge", "vit_width", "width")
    )
    fc: Linear = gguf("model.fc", hf="merger.proj", shape=("width", "width"))
    norm: LayerNorm = gguf("post_norm", hf="merger.post_projection_norm", shape=("width",))
    gate: Linear = gguf("gate", hf="merger.gate_proj", shape=("width", "merger_ffn"))
    up: Linear = gguf("up", hf="merger.up_proj", shape=("width", "merger_ffn"))
    down: Linear = gguf("down", hf="merger.down_proj", shape=("merger_ffn", "width"))

    def forward(self, x: Tensor) -> Tensor:
        """[vit_width, patches], squares one after another → [width, squares]."""
        h = self.config
        x = x.reshape(h.vit_width, h.merge**2, -1).permute(1, 0, 2)
        x = self.merge(x.contiguous(h.vit_width * h.merge**2, -1))
        x = self.norm(self.fc(x), MERGER_EPS).gelu_erf()
        return self.down(nn.activate(h.vit_activation, self.gate(x), self.up(x)))
