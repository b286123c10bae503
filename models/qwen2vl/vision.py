"""The tower of Qwen 2-VL and 2.5-VL: patches of pairs of frames, layers that see all patches or
those of their window, and the merger of squares of patches."""

from __future__ import annotations

import numpy as np

from ggmodel import Module, Tensor, gguf, nn
from ggmodel.ml import Context, DType, RopeType
from ggmodel.model import Part, Prepared
from ggmodel.nn import LayerNorm, Linear

from .config import Qwen2VLConfig

Grid = tuple[int, int, int]  # frames, rows and columns of patches


class Norm(LayerNorm):
    """A norm of Qwen 2-VL; those of Qwen 2.5-VL have no bias and take no mean away."""

    def forward(self, x: Tensor, eps: float | None = None) -> Tensor:
        used: float = self.config.vit_eps if eps is None else eps
        return x.rms_norm(self.weight, used) if self.bias is None else super().forward(x, used)


def _part(name: str, index: int) -> Linear:
    source = Part("qkv", index, ("vit_width",) * 3)
    return gguf(name, hf=source, shape=("vit_width", "vit_width"))


class Attention(Module):
    config: Qwen2VLConfig
    q: Linear = _part("attn_q", 0)
    k: Linear = _part("attn_k", 1)
    v: Linear = _part("attn_v", 2)
    out: Linear = gguf("attn_out", hf="proj", shape=("vit_width", "vit_width"))

    def forward(self, x: Tensor, positions: Tensor, blocks: list[int], frames: int) -> Tensor:
        """x [width, n]; a patch sees those of its block, and frames have equal blocks."""
        h = self.config
        d = h.vit_width // h.vit_heads
        q, k, v = (p(x).reshape(d, h.vit_heads, -1) for p in (self.q, self.k, self.v))
        q, k = (
            y.rope(positions, d // 2, 1e4, type=RopeType.VISION, sections=(d // 4, d // 4, 0, 0))
            for y in (q, k)
        )
        y = nn.attention_in_blocks(q, k, v, blocks, d**-0.5, frames)
        return self.out(y.reshape(h.vit_width, -1))


class MLP(Module):
    config: Qwen2VLConfig
    up: Linear = gguf("ffn_up", hf=("up_proj", "fc1"), shape=("vit_width", None))
    down: Linear = gguf("ffn_down", hf=("down_proj", "fc2"), shape=(None, "vit_width"))
    gate: Linear | None = gguf("ffn_gate", hf="gate_proj", shape=("vit_width", None))

    def forward(self, x: Tensor) -> Tensor:
        act, up = self.config.vit_activation, self.up(x)
        gated = nn.activate(act, up) if self.gate is None else nn.activate(act, self.gate(x), up)
        return self.down(gated)


class Layer(Module):
    config: Qwen2VLConfig
    norm1: Norm = gguf("ln1", hf="norm1", shape=("vit_width",))
    attn: Attention = gguf(hf="attn")
    norm2: Norm = gguf("ln2", hf="norm2", shape=("vit_width",))
    ffn: MLP = gguf(hf="mlp")

    def forward(self, x: Tensor, positions: Tensor, blocks: list[int], frames: int) -> Tensor:
        x = x + self.attn(self.norm1(x), positions, blocks, frames)
        return x + self.ffn(self.norm2(x))


class Vision(Module):
    config: Qwen2VLConfig
    patches: nn.FramePatchEmbedding = gguf(
        "patch_embd", hf="patch_embed.proj", shape=("patch", "patch", 3, "vit_width")
    )
    layers: list[Layer] = gguf("blk", hf="blocks", n="vit_layers")
    norm: Norm = gguf("post_ln", hf="merger.ln_q", shape=("vit_width",))

    def forward(self, ctx: Context, grid: Grid) -> Tensor:
        """The item's pixels [n, 3 · 2 · patch²], squares of patches one after the other → [merged
        width, n / merge²]."""
        h, (frames, rows, columns) = self.config, grid
        square = h.merge**2
        cells, windows = self._windows(grid)
        order = (cells[:, None] * square + np.arange(square)).reshape(-1)

        def pixels(frame: int) -> Tensor:
            def fill(item: Prepared) -> np.ndarray:
                one = item.values.reshape(len(order), 3, 2, -1)[order, :, frame]
                return one.reshape(len(order), -1)

            return ctx.feed(fill, DType.F32, h.patch_width, len(order))

        x = self.patches(pixels(0), pixels(1))
        at = _places(grid, h.merge)[:, order]
        at = np.concatenate([*at, 0 * at[0], 0 * at[0]]).astype(np.int32)
        positions = ctx.constant(at)
        whole, parts = [rows * columns], [n * square for n in windows]
        for i, layer in enumerate(self.layers):
            full = not h.full_every or (i + 1) % h.full_every == 0
            x = layer(x, positions, whole if full else parts, frames)
        x = self.norm(x).reshape(h.merged_width, -1)
        back = np.argsort(cells).astype(np.int32)
        return x.rows(ctx.constant(back))

    def _windows(self, grid: Grid) -> tuple[np.ndarray, list[int]]:
        """Squares of patches in the order of their windows, int [n], and the length of each window
        of a frame; the order of the picture where there are none."""
        h, (frames, rows, columns) = self.config, grid
        down, across = rows // h.merge, columns // h.merge
        if not h.full_every:
            return np.arange(frames * down * across), []
        cells, lengths = nn.vision_windows(down, across, h.window_side)
        each = [cells + frame * down * across for frame in range(frames)]
        return np.concatenate(each), lengths


def _places(grid: Grid, merge: int) -> np.ndarray:
    """Row and column of each patch, int [2, n], squares one after the other."""
    frames, rows, columns = grid
    at = np.indices((rows, columns)).reshape(2, rows // merge, merge, columns // merge, merge)
    return np.tile(at.transpose(0, 1, 3, 2, 4).reshape(2, -1), frames)


class Merger(Module):
    config: Qwen2VLConfig
    first: Linear = gguf("0", hf="0", shape=("merged_width", "merged_width"))
    second: Linear = gguf("2", hf="2", shape=("merged_width", "width"))

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x).gelu_erf())
