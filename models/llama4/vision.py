"""Llama 4's vision tower, which encodes tile by tile, and its projector."""

from __future__ import annotations

import numpy as np

from ggmodel import Module, Tensor, gguf, nn
from ggmodel.ml import Context
from ggmodel.nn import LayerNorm, Linear

from .config import Llama4Config


class Attention(Module):
    config: Llama4Config
    q: Linear = gguf("attn_q", hf="q_proj", shape=("vit_width", "vit_width"))
    k: Linear = gguf("attn_k", hf="k_proj", shape=("vit_width", "vit_width"))
    v: Linear = gguf("attn_v", hf="v_proj", shape=("vit_width", "vit_width"))
    out: Linear = gguf("attn_output", "attn_out", hf="o_proj", shape=("vit_width", "vit_width"))

    def forward(self, x: Tensor, columns: Tensor, rows: Tensor) -> Tensor:
        h = self.config
        d = h.vit_width // h.vit_heads
        heads = d, h.vit_heads, x.dim(1), x.dim(2)
        rope = nn.Rope(d // 2, h.vit_rope_base)

        def turned(y: Tensor) -> Tensor:
            """Heads rotated: the first half by the patch's column, the second by its row."""
            across, down = y.reshape(*heads).chunk(0, d // 2)
            return rope(across, columns).concat(rope(down, rows), 0)

        q, k, v = turned(self.q(x)), turned(self.k(x)), self.v(x).reshape(*heads)
        y = q.scaled_dot_product_attention(k, v, scale=d**-0.5)
        return self.out(y.reshape(*x.shape))


class MLP(Module):
    up: Linear = gguf("mlp.fc1", "ffn_up", hf="mlp.fc1", shape=("vit_width", "vit_ffn"))
    down: Linear = gguf("mlp.fc2", "ffn_down", hf="mlp.fc2", shape=("vit_ffn", "vit_width"))

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.up(x).gelu_erf())


class SwappedMLP(MLP):
    """Older mmproj files, in which each has the other's name: the shapes tell."""

    up: Linear = gguf("ffn_down", shape=("vit_width", "vit_ffn"))
    down: Linear = gguf("ffn_up", shape=("vit_ffn", "vit_width"))


class Layer(Module):
    config: Llama4Config
    attn_norm: LayerNorm = gguf("attn_norm", "ln1", hf="input_layernorm", shape=("vit_width",))
    attn: Attention = gguf(hf="self_attn")
    # Some mmproj files have attn_post_norm in place of ln2.
    ffn_norm: LayerNorm = gguf(
        "ffn_norm", "ln2", "attn_post_norm", hf="post_attention_layernorm", shape=("vit_width",)
    )
    ffn: MLP | SwappedMLP = gguf(hf="")

    def forward(self, x: Tensor, columns: Tensor, rows: Tensor) -> Tensor:
        eps = self.config.vit_eps
        x = x + self.attn(self.attn_norm(x, eps), columns, rows)
        return x + self.ffn(self.ffn_norm(x, eps))


class Vision(Module):
    config: Llama4Config
    patch: Linear = gguf(
        "patch_embedding",
        "patch_embd",
        hf="patch_embedding.linear",
        shape=("patch_width", "vit_width"),
    )
    whole: Tensor = gguf("class_embedding", "class_embd", shape=("vit_width",))
    positions: Tensor = gguf(
        "positional_embedding_vlm", "position_embd.weight", shape=("vit_width", None)
    )
    pre_norm: LayerNorm = gguf("layernorm_pre", "pre_ln", hf="layernorm_pre", shape=("vit_width",))
    post_norm: LayerNorm = gguf(
        "layernorm_post", "post_ln", hf="layernorm_post", shape=("vit_width",)
    )
    layers: list[Layer] = gguf("blk", hf="model.layers", n="vit_layers")

    def forward(self, ctx: Context, tiles: np.ndarray) -> Tensor:
        """tiles [tiles, 3, side, side] → [shuffled width, rows, tiles]."""
        h = self.config
        n, patches = h.side**2, self.unfolded(tiles)
        x = self.patch(ctx.input().from_floats(patches, h.patch_width, n, len(tiles)))
        # The class token is last, at position 0; patches count from 1.
        x = x.concat(self.whole.repeat_4d(h.vit_width, 1, len(tiles), 1), 1)
        x = self.pre_norm(x + self.positions, h.vit_eps)
        at = np.arange(n)
        columns = ctx.input().from_ints(np.append(at % h.side + 1, 0))
        rows = ctx.input().from_ints(np.append(at // h.side + 1, 0))
        for layer in self.layers:
            x = layer(x, columns, rows)
        return self.shuffled(self.post_norm(x, h.vit_eps).slice(1, 0, n))

    def unfolded(self, tiles: np.ndarray) -> np.ndarray:
        """[tiles, 3, side, side] as [tiles, patches, 3 · patch · patch], row by row."""
        n, p = self.config.side, self.config.patch
        grid = tiles.reshape(-1, 3, n, p, n, p).transpose(0, 2, 4, 1, 3, 5)
        return np.ascontiguousarray(grid.reshape(len(tiles), n * n, -1), np.float32)

    def shuffled(self, x: Tensor) -> Tensor:
        """Each square of merged × merged patches as one row: [width, patches, tiles] →
        [width · merged², patches / merged², tiles]."""
        n, m, tiles = self.config.side, self.config.merged, x.dim(2)
        width = self.config.vit_width * m
        x = x.reshape(width, n // m, n, tiles).permute(0, 2, 1, 3)
        x = x.contiguous(width * m, n // m, n // m, tiles).permute(0, 2, 1, 3)
        return x.contiguous(width * m, -1, tiles)


class Projector(Module):
    fc1: Linear = gguf(
        "v.vision_adapter.mlp.fc1",
        "mm.model.mlp.1",
        hf="vision_model.vision_adapter.mlp.fc1",
        shape=("shuffled_width", None),
    )
    fc2: Linear = gguf(
        "v.vision_adapter.mlp.fc2", "mm.model.mlp.2", hf="vision_model.vision_adapter.mlp.fc2"
    )
    out: Linear = gguf(
        "mm.linear_1", "mm.model.fc", hf="multi_modal_projector.linear_1", shape=(None, "width")
    )

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.fc2(self.fc1(x).gelu_erf()).gelu_erf())
