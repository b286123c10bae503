"""Llama 3.2 Vision's tower, which encodes all tiles of an image together.

The rows of a tile are its class token and its patches. The reference pads rows to a multiple of 8,
and tiles to the greatest number; real rows see the padding, other padding does not. Here all
padding is at the end, which leaves the result of attention unchanged and needs no mask.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ggmodel import Module, Tensor, gguf, nn
from ggmodel.ml import Context, DType
from ggmodel.model import Operation
from ggmodel.nn import LayerNorm, Linear

from .config import MllamaConfig
from .image import filled

NORM_EPS = 1e-5  # before and after the layers, which have their own


@dataclass(frozen=True)
class Tanh(Operation):
    """A gate as it is applied: tanh(x), or 1 − tanh(x)."""

    rest: bool = False

    def to_gguf(self, x: np.ndarray, config: MllamaConfig) -> np.ndarray:
        return 1 - np.tanh(x) if self.rest else np.tanh(x)

    def to_hf(self, x: np.ndarray, config: MllamaConfig) -> np.ndarray:
        return np.arctanh(1 - x if self.rest else x)


class Attention(Module):
    config: MllamaConfig
    q: Linear = gguf("attn_q", hf="q_proj", shape=("vit_width", "vit_width"))
    k: Linear = gguf("attn_k", hf="k_proj", shape=("vit_width", "vit_width"))
    v: Linear = gguf("attn_v", hf="v_proj", shape=("vit_width", "vit_width"))
    out: Linear = gguf("attn_output", hf="o_proj", shape=("vit_width", "vit_width"))

    def forward(self, x: Tensor, n: int) -> Tensor:
        """x [width, rows]; the first n rows see all, the others those n."""
        h = self.config
        d = h.vit_width // h.vit_heads
        scale = d**-0.5
        q, k, v = (part(x).reshape(d, h.vit_heads, -1) for part in (self.q, self.k, self.v))
        real = q.slice(2, 0, n).scaled_dot_product_attention(k, v, scale=scale)
        # There is always padding: no square + 1 is a multiple of 8.
        q, k, v = q.slice(2, n, q.dim(2)), k.slice(2, 0, n), v.slice(2, 0, n)
        y = real.concat(q.scaled_dot_product_attention(k, v, scale=scale), 2)
        return self.out(y.reshape(h.vit_width, -1))


class Layer(Module):
    config: MllamaConfig
    attn_norm: LayerNorm = gguf("attn_norm", hf="input_layernorm", shape=("vit_width",))
    attn: Attention = gguf(hf="self_attn")
    attn_gate: Tensor | None = gguf("attn_gate", hf="gate_attn", op=Tanh(), shape=(1,))
    ffn_norm: LayerNorm = gguf("ffn_norm", hf="post_attention_layernorm", shape=("vit_width",))
    up: Linear = gguf("ffn_up", hf="mlp.fc1", shape=("vit_width", "vit_ffn"))
    down: Linear = gguf("ffn_down", hf="mlp.fc2", shape=("vit_ffn", "vit_width"))
    ffn_gate: Tensor | None = gguf("ffn_gate", hf="gate_ffn", op=Tanh(), shape=(1,))

    def forward(self, x: Tensor, n: int) -> Tensor:
        h = self.config
        y = self.attn(self.attn_norm(x, h.vit_eps), n)
        x = x + (y if self.attn_gate is None else y * self.attn_gate)
        y = self.down(nn.activate(h.vit_activation, self.up(self.ffn_norm(x, h.vit_eps))))
        return x + (y if self.ffn_gate is None else y * self.ffn_gate)


class TileEmbedding(Module):
    """One vector a tile, for each grid of tiles."""

    config: MllamaConfig
    weight: Tensor = gguf("weight", hf="embedding.weight", shape=("tiles_width", None))
    gate: Tensor = gguf("gate", op=Tanh(), shape=(1,))

    def forward(self, ratio: Tensor) -> Tensor:
        """[width, tiles]."""
        return self.weight.rows(ratio).reshape(self.config.vit_width, -1) * self.gate


class Positions(Module):
    """Embeddings of the position within a tile, and of the position in the grid of tiles."""

    config: MllamaConfig
    weight: Tensor = gguf("position_embd.weight", hf="embedding", shape=("vit_width", "positions"))
    gate: Tensor = gguf("position_embd.gate", hf="gate", op=Tanh(rest=True), shape=(1,))
    tiles: Tensor = gguf("tile_position_embd.weight", hf="tile_embedding.weight")
    tile_gate: Tensor = gguf("tile_position_embd.gate", hf="gate", op=Tanh(), shape=(1,))

    def forward(self, ratio: Tensor) -> Tensor:
        """[width, positions, tiles]."""
        h = self.config
        tiles = self.tiles.rows(ratio).reshape(h.vit_width, h.positions, h.tiles)
        return tiles * self.tile_gate + self.weight * self.gate


class Vision(Module):
    config: MllamaConfig
    patch: Tensor = gguf(
        "patch_embd.weight",
        hf="patch_embedding.weight",
        shape=("patch", "patch", "channels", "vit_width"),
    )
    whole: Tensor = gguf("class_embd", hf="class_embedding", shape=("vit_width",))
    positions: Positions = gguf(hf="gated_positional_embedding")
    pre_tile: TileEmbedding = gguf("pre_tile_position_embd", hf="pre_tile_positional_embedding")
    post_tile: TileEmbedding = gguf("post_tile_position_embd", hf="post_tile_positional_embedding")
    pre_norm: LayerNorm = gguf("pre_ln", hf="layernorm_pre", shape=("vit_width",))
    post_norm: LayerNorm = gguf("post_ln", hf="layernorm_post", shape=("vit_width",))
    layers: list[Layer] = gguf("blk", hf="transformer.layers", n="vit_layers")
    all_tiles: list[Layer] = gguf("global.blk", hf="global_transformer.layers", n="global_layers")

    def forward(self, ctx: Context, ratio: int, used: int) -> Tensor:
        """Tiles [tiles, 3, side, side], the first `used` of them real → [encoded width, rows]."""
        h = self.config
        at = ctx.constant([ratio])
        tiles = ctx.feed(lambda i: filled(i.values, h.tiles), DType.F32, h.tile, h.tile, 3, h.tiles)
        n, rows = used * h.positions, h.tiles * h.positions
        x = self.patch.conv_2d(tiles, h.patch, h.patch)
        x = x.reshape(-1, h.vit_width, h.tiles).permute(1, 0, 2).contiguous()
        x = x + self.pre_tile(at).reshape(h.vit_width, 1, h.tiles)
        x = self.whole.repeat_4d(h.vit_width, 1, h.tiles, 1).concat(x, 1)
        x = self.pre_norm(x + self.positions(at), NORM_EPS).reshape(h.vit_width, rows)
        x = x.pad(0, h.tiles * (-h.positions % 8))
        inputs = []
        for layer in self.layers:
            inputs.append(x)
            x = layer(x, n)
        tile = ctx.constant(self.tile_of_row())
        x = self.post_norm(x, NORM_EPS) + self.post_tile(at).rows(tile)
        for layer in self.all_tiles:
            x = layer(x, n)
        # The result, and after it the inputs of some layers, interleaved element by element.
        states = [inputs[i].slice(1, 0, rows).reshape(1, -1, rows) for i in h.intermediate]
        interleaved = states[0].stack(0, *states[1:]).reshape(-1, rows)
        return x.slice(1, 0, rows).concat(interleaved, 0)

    def tile_of_row(self) -> np.ndarray:
        h = self.config
        tiles = np.arange(h.tiles)
        return np.append(tiles.repeat(h.positions), tiles.repeat(-h.positions % 8))
