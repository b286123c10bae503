"""Llama 4's vision tower, which encodes tile by tile, and its projector."""

from __future__ import annotations

import numpy as np

from ggmodel import DType, Module, Tensor, gguf, nn
from ggmodel.image import unfold
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
        q, k, v = (p(x).reshape(*heads) for p in (self.q, self.k, self.v))
        rope = nn.Rope2D(d, h.vit_rope_base)
        q, k = rope(q, columns, rows), rope(k, columns, rows)
        y = q.scaled_dot_product_attention(k, v, scale=d**-0.5)
        return self.out(y.reshape(*x.shape))


class Layer(Module):
    config: Llama4Config
    attn_norm: LayerNorm = gguf("attn_norm", "ln1", hf="input_layernorm", shape=("vit_width",))
    attn: Attention = gguf(hf="self_attn")
    # Some mmproj files have attn_post_norm in place of ln2.
    ffn_norm: LayerNorm = gguf(
        "ffn_norm", "ln2", "attn_post_norm", hf="post_attention_layernorm", shape=("vit_width",)
    )
    ffn: nn.VisionMLP | nn.SwappedVisionMLP = gguf(hf="mlp")

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
        "positional_embedding_vlm", "position_embd.weight", shape=("vit_width", "positions")
    )
    pre_norm: LayerNorm = gguf("layernorm_pre", "pre_ln", hf="layernorm_pre", shape=("vit_width",))
    post_norm: LayerNorm = gguf(
        "layernorm_post", "post_ln", hf="layernorm_post", shape=("vit_width",)
    )
    layers: list[Layer] = gguf("blk", hf="model.layers", n="vit_layers")

    def forward(self, ctx: Context, count: int) -> Tensor:
        """`count` tiles, fed as [tiles, 3, side, side], → [shuffled width, rows, tiles]."""
        h = self.config
        n = h.side**2
        patches = ctx.feed(lambda i: unfold(i.values, h.patch), DType.F32, h.patch_width, n, count)
        x = self.patch(patches)
        # The class token is last, at position 0; patches count from 1.
        x = x.concat(self.whole.repeat_4d(h.vit_width, 1, count, 1), 1)
        x = self.pre_norm(x + self.positions, h.vit_eps)
        at = np.arange(n)
        columns = ctx.constant(np.append(at % h.side + 1, 0))
        rows = ctx.constant(np.append(at // h.side + 1, 0))
        for layer in self.layers:
            x = layer(x, columns, rows)
        return nn.merge_patches(self.post_norm(x, h.vit_eps).slice(1, 0, n), h.side, h.merged)


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
