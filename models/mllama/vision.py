"""Llama 3.2 Vision's eyes: a tower that looks at all tiles of an image together.

The rows of a tile are its class token and its patches. Rows for patches are added until 8 divides
their number, and tiles until there are as many as ever. Such padding is seen by real rows, but not
by other padding. Here it all stands at the end, which attention does not mind, so that no mask is
needed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ggmodel import Module, Tensor, gguf
from ggmodel.model import Operation
from ggmodel.nn import LayerNorm, Linear

from .config import Hyper

NORM_EPS = 1e-5  # around the tower, whatever the layers have


@dataclass(frozen=True)
class Tanh(Operation):
    """A gate as it is used: tanh(x), or 1 − tanh(x)."""

    rest: bool = False

    def to_gguf(self, x: np.ndarray, config: Hyper) -> np.ndarray:
        return 1 - np.tanh(x) if self.rest else np.tanh(x)

    def to_hf(self, x: np.ndarray, config: Hyper) -> np.ndarray:
        return np.arctanh(1 - x if self.rest else x)


class Attention(Module):
    config: Hyper
    q: Linear = gguf("attn_q", hf="q_proj", shape=("vision_hidden", "vision_hidden"))
    k: Linear = gguf("attn_k", hf="k_proj", shape=("vision_hidden", "vision_hidden"))
    v: Linear = gguf("attn_v", hf="v_proj", shape=("vision_hidden", "vision_hidden"))
    out: Linear = gguf("attn_output", hf="o_proj", shape=("vision_hidden", "vision_hidden"))

    def forward(self, x: Tensor, n: int) -> Tensor:
        """x [width, rows]; the first n rows see all, the others those n."""
        h = self.config
        d = h.vision_hidden // h.vision_heads
        scale = d**-0.5
        q, k, v = (part(x).reshape(d, h.vision_heads, -1) for part in (self.q, self.k, self.v))
        real = q.slice(2, 0, n).scaled_dot_product_attention(k, v, scale=scale)
        # There always is padding: 8 divides no square and one.
        q, k, v = q.slice(2, n, q.dim(2)), k.slice(2, 0, n), v.slice(2, 0, n)
        y = real.concat(q.scaled_dot_product_attention(k, v, scale=scale), 2)
        return self.out(y.reshape(h.vision_hidden, -1))


class Layer(Module):
    config: Hyper
    attn_norm: LayerNorm = gguf("attn_norm", hf="input_layernorm", shape=("vision_hidden",))
    attn: Attention = gguf(hf="self_attn")
    attn_gate: Tensor | None = gguf("attn_gate", hf="gate_attn", op=Tanh(), shape=(1,))
    ffn_norm: LayerNorm = gguf("ffn_norm", hf="post_attention_layernorm", shape=("vision_hidden",))
    up: Linear = gguf("ffn_up", hf="mlp.fc1", shape=("vision_hidden", "vision_ffn"))
    down: Linear = gguf("ffn_down", hf="mlp.fc2", shape=("vision_ffn", "vision_hidden"))
    ffn_gate: Tensor | None = gguf("ffn_gate", hf="gate_ffn", op=Tanh(), shape=(1,))

    def forward(self, x: Tensor, n: int) -> Tensor:
        eps = self.config.vision_eps
        y = self.attn(self.attn_norm(x, eps), n)
        x = x + (y if self.attn_gate is None else y * self.attn_gate)
        y = self.down(self.up(self.ffn_norm(x, eps)).gelu_erf())
        return x + (y if self.ffn_gate is None else y * self.ffn_gate)


class TileEmbedding(Module):
    """One vector a tile, for each way in which tiles can lie."""

    config: Hyper
    weight: Tensor = gguf("weight", hf="embedding.weight", shape=("tiles_width", None))
    gate: Tensor = gguf("gate", op=Tanh(), shape=(1,))

    def forward(self, ratio: Tensor) -> Tensor:
        """[width, tiles]."""
        return self.weight.rows(ratio).reshape(self.config.vision_hidden, -1) * self.gate


class Positions(Module):
    """The position within a tile, and beside it the one within all tiles as they lie."""

    config: Hyper
    weight: Tensor = gguf("position_embd.weight", hf="embedding", shape=("vision_hidden", None))
    gate: Tensor = gguf("position_embd.gate", hf="gate", op=Tanh(rest=True), shape=(1,))
    tiles: Tensor = gguf("tile_position_embd.weight", hf="tile_embedding.weight")
    tile_gate: Tensor = gguf("tile_position_embd.gate", hf="gate", op=Tanh(), shape=(1,))

    def forward(self, ratio: Tensor) -> Tensor:
        """[width, positions, tiles]."""
        h = self.config
        tiles = self.tiles.rows(ratio).reshape(h.vision_hidden, h.positions, h.tiles)
        return tiles * self.tile_gate + self.weight * self.gate


class Vision(Module):
    config: Hyper
    patch: Tensor = gguf(
        "patch_embd.weight",
        hf="patch_embedding.weight",
        shape=("patch", "patch", "channels", "vision_hidden"),
    )
    whole: Tensor = gguf("class_embd", hf="class_embedding", shape=("vision_hidden",))
    positions: Positions = gguf(hf="gated_positional_embedding")
    pre_tile: TileEmbedding = gguf("pre_tile_position_embd", hf="pre_tile_positional_embedding")
    post_tile: TileEmbedding = gguf("post_tile_position_embd", hf="post_tile_positional_embedding")
    pre_norm: LayerNorm = gguf("pre_ln", hf="layernorm_pre", shape=("vision_hidden",))
    post_norm: LayerNorm = gguf("post_ln", hf="layernorm_post", shape=("vision_hidden",))
    layers: list[Layer] = gguf("blk", hf="transformer.layers", n="vision_layers")
    all_tiles: list[Layer] = gguf("global.blk", hf="global_transformer.layers", n="global_layers")

    def forward(self, ctx, tiles: np.ndarray, ratio: int, used: int) -> Tensor:
        """Tiles [tiles, 3, side, side], of which the first are used → [encoded width, rows]."""
        h, host = self.config, ctx.input()
        at = host.from_ints([ratio])
        n, rows = used * h.positions, h.tiles * h.positions
        x = self.patch.conv_2d(host.from_floats(tiles), h.patch, h.patch)
        x = x.reshape(-1, h.vision_hidden, h.tiles).permute(1, 0, 2).contiguous()
        x = x + self.pre_tile(at).reshape(h.vision_hidden, 1, h.tiles)
        x = self.whole.repeat_4d(h.vision_hidden, 1, h.tiles, 1).concat(x, 1)
        x = self.pre_norm(x + self.positions(at), NORM_EPS).reshape(h.vision_hidden, rows)
        x = x.pad(0, h.tiles * (-h.positions % 8))
        entered = []
        for layer in self.layers:
            entered.append(x)
            x = layer(x, n)
        x = self.post_norm(x, NORM_EPS) + self.post_tile(at).rows(
            host.from_ints(self.tile_of_row())
        )
        for layer in self.all_tiles:
            x = layer(x, n)
        # Beside the result what entered some layers, element by element in turn.
        states = [entered[i].slice(1, 0, rows).reshape(1, -1, rows) for i in h.intermediate]
        beside = states[0].stack(0, *states[1:]).reshape(-1, rows)
        return x.slice(1, 0, rows).concat(beside, 0)

    def tile_of_row(self) -> np.ndarray:
        h = self.config
        tiles = np.arange(h.tiles)
        return np.append(tiles.repeat(h.positions), tiles.repeat(-h.positions % 8))
