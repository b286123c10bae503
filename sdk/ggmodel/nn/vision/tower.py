"""Blocks of a vision tower: patches, positions, attention in blocks, and SigLIP's layers.

The layers have the names of Ollama's and llama.cpp's files, and read the config's `vit_width`,
`vit_heads`, `vit_ffn`, `vit_eps` and `vit_activation`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import ConfigError, PromptError
from ...ml import Tensor
from ...model import Input
from ...model.module import Module, gguf
from ...model.operations import Sources
from ..layers import LayerNorm, Linear, activate
from ..rope import Rope


@dataclass(frozen=True)
class Frame(Sources):
    """One frame of a kernel [out, channels, frames, height, width].

    Args:
        name: of the kernel.
        index: of the frame.
    """

    name: str
    index: int

    def names(self, config: Any) -> list[str]:
        return [self.name]

    def shape(self, shapes: list[tuple[int, ...]], config: Any) -> tuple[int, ...]:
        (whole,) = shapes
        if len(whole) != 5 or whole[2] != 2:
            raise ConfigError(f"{self.name} is {list(whole)}; two frames in dim 2 of five are read")
        return (*whole[:2], *whole[3:])

    def join(self, parts: list[np.ndarray], config: Any) -> np.ndarray:
        self.shape([parts[0].shape], config)
        return parts[0][:, :, self.index]

    def split(self, x: np.ndarray, config: Any) -> dict[str, Any]:
        return {self.name: ((slice(None), slice(None), self.index), x)}


class PatchEmbedding(Module):
    """A kernel that looks at each patch once, + bias. As a field: shape=(width, height, channels,
    out)."""

    dims = {"weight": (0, 1, 2, 3), "bias": (3,)}

    weight: Tensor = gguf("weight")
    bias: Tensor | None = gguf("bias")

    def forward(self, patches: Tensor) -> Tensor:
        """Patches [channels · height · width, n, …], as `image.unfold` orders them → [out, n, …]
        F32."""
        y = _flat(self.weight).mulmat(patches)
        return y if self.bias is None else y.add(self.bias)


class FramePatchEmbedding(Module):
    """The same over pairs of frames, a kernel of five dims in checkpoints; files have one of four
    dims for each frame, as llama.cpp's do. As a field: shape=(width, height, channels, out)."""

    dims = {"weight": (0, 1, 2, 3), "second": (0, 1, 2, 3), "bias": (3,)}

    weight: Tensor = gguf("weight", hf=Frame("weight", 0))
    second: Tensor = gguf("weight.1", hf=Frame("weight", 1))
    bias: Tensor | None = gguf("bias")

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        """Patches of two frames, each [channels · height · width, n] → [out, n] F32. Both are the
        same for a still image."""
        y = _flat(self.weight).mulmat(first) + _flat(self.second).mulmat(second)
        return y if self.bias is None else y.add(self.bias)


def _flat(kernel: Tensor) -> Tensor:
    return kernel.reshape(-1, kernel.dim(3))


def merge_patches(x: Tensor, columns: int, side: int) -> Tensor:
    """Squares of side × side neighbouring patches as one row each: [width, n, images] →
    [side² · width, n / side², images]. Within a row patches follow row by row, and so do the
    squares.

    Args:
        columns: of the grid of the n patches, which go row by row; both of its sides are multiples
            of `side`.
    """
    images, wide = x.dim(2), x.dim(0) * side
    x = x.reshape(wide, columns // side, -1, images).permute(0, 2, 1, 3)
    x = x.contiguous(wide * side, -1, columns // side, images).permute(0, 2, 1, 3)
    return x.contiguous(wide * side, -1, images)


Grid = tuple[int | Sequence[int], int, int]


def grid_positions(
    inputs: Sequence[Input], before: np.ndarray, grid: Callable[[Any], Grid]
) -> np.ndarray:
    """The result of `Model.positions`, int32 [n, 4], where the rows of an image are a grid: frame,
    row, column and the frame again (arXiv 2409.12191, 2.1; transformers, modeling_qwen2_vl,
    `get_rope_index`). The fourth turns the pairs of `RopeType.IMROPE` that no section covers, which
    are temporal in transformers (modeling_qwen3_vl, `apply_interleaved_mrope`).

    A token has the next number four times. Frames, rows and columns of an image count from that
    number on, and the next token is behind its longer side, however many frames there are.

    Args:
        before: int32 [m, 4].
        grid: `Multimodal.data` → (frames, rows, columns); frames are their number, or the time of
            each in positions, from 0 on.

    Raises:
        PromptError: an embedding's rows are another number than its grid has.
    """
    positions = np.zeros((len(inputs), 4), np.int32)
    at = int(before[-1, 1:3].max()) + 1 if len(before) else 0
    if len(inputs) == 1 and inputs[0].multimodal is None:  # a token of an answer
        positions[0] = at
        return positions
    begin = 0
    images = [i for i, one in enumerate(inputs) if one.multimodal is not None]
    for i in (*images, len(inputs)):
        positions[begin:i] = np.arange(at, at + i - begin)[:, None]
        at += i - begin
        if i < len(inputs):
            embedding = inputs[i].multimodal
            assert embedding is not None
            frames, rows, columns = grid(embedding.data)
            times = np.arange(frames) if isinstance(frames, int) else np.array(frames)
            begin = i + len(times) * rows * columns
            if begin - i != len(embedding):
                raise PromptError(
                    f"an image of {len(embedding)} rows, which are no grid of {len(times)} x "
                    f"{rows} x {columns}"
                )
            axes = np.meshgrid(times, np.arange(rows), np.arange(columns), indexing="ij")
            positions[i:begin] = np.stack([axes[k].reshape(-1) for k in (0, 1, 2, 0)], axis=1) + at
            at += max(rows, columns)
    return positions


@dataclass(frozen=True)
class Rope2D:
    """Rotates the first half of a head by one position and the second by another. Pairs are
    neighbours, as ggml's norm type has them.

    Attributes:
        dims: elements of a head.
        base: of the frequencies.
        scale: factor on the second positions.
    """

    dims: int
    base: float = 10000.0
    scale: float = 1.0

    def __call__(self, x: Tensor, first: Tensor, second: Tensor) -> Tensor:
        """x [dims, heads, n, …] rotated by positions I32 [n]."""
        half = self.dims // 2
        a, b = x.chunk(0, half)
        rotated = Rope(half, self.base)(a, first)
        return rotated.concat(Rope(half, self.base, self.scale)(b, second), 0)


def attention_in_blocks(
    q: Tensor, k: Tensor, v: Tensor, lengths: Sequence[int], scale: float, frames: int = 1
) -> Tensor:
    """softmax(scale · K·q) · V for each head, in which a row sees only the rows of its own block.
    It needs no mask, and as much time and memory as the blocks do alone.

    Args:
        q, k, v: [head dim, heads, n].
        lengths: of the blocks of one frame, whose rows follow one another; their sum is n / frames.
            Blocks of equal length that are neighbours are computed together, in all frames.
        frames: parts of n with such blocks each; their number adds no ops.

    Returns:
        [head dim, heads, n] F32.
    """
    blocks, start, rows = [], 0, sum(lengths)
    whole = [x.reshape(x.dim(0), x.dim(1), rows, frames) for x in (q, k, v)]
    for length, equal in groupby(lengths):
        stop = start + length * len(list(equal))
        query, key, value = (
            x.slice(2, start, stop).reshape(x.dim(0), x.dim(1), length, -1) for x in whole
        )
        y = query.scaled_dot_product_attention(key, value, scale=scale)
        blocks.append(y.reshape(v.dim(0), q.dim(1), stop - start, frames))
        start = stop
    y = blocks[0] if len(blocks) == 1 else blocks[0].stack(2, *blocks[1:])
    return y.reshape(v.dim(0), q.dim(1), rows * frames)


def vision_windows(rows: int, columns: int, side: int) -> tuple[NDArray[np.int32], list[int]]:
    """A grid of cells cut into windows of at most side × side cells from the top left corner on.

    Returns:
        the cells in the order of the windows, int32 [rows · columns], counted row by row, and the
        length of each window, for `attention_in_blocks`. Windows of equal length are neighbours.
    """
    cells = np.arange(rows * columns, dtype=np.int32).reshape(rows, columns)
    windows = [
        cells[top : top + side, left : left + side].ravel()
        for top in range(0, rows, side)
        for left in range(0, columns, side)
    ]
    windows.sort(key=len, reverse=True)
    return np.concatenate(windows), [len(window) for window in windows]


_SQUARE = ("vit_width", "vit_width")


class VisionAttention(Module):
    """Every row sees all rows."""

    q: Linear = gguf("attn_q", hf="q_proj", shape=_SQUARE)
    k: Linear = gguf("attn_k", hf="k_proj", shape=_SQUARE)
    v: Linear = gguf("attn_v", hf="v_proj", shape=_SQUARE)
    out: Linear = gguf("attn_output", "attn_out", hf="out_proj", shape=_SQUARE)

    def forward(self, x: Tensor) -> Tensor:
        """x [width, n, images] → [width, n, images]."""
        h = self.config
        heads = h.vit_width // h.vit_heads, h.vit_heads, x.dim(1), x.dim(2)
        q, k, v = (p(x).reshape(*heads) for p in (self.q, self.k, self.v))
        y = q.scaled_dot_product_attention(k, v, scale=heads[0] ** -0.5)
        return self.out(y.reshape(*x.shape))


class VisionMLP(Module):
    """second(activation(first(x)))."""

    first: Linear = gguf("mlp.fc1", "ffn_up", hf="fc1", shape=("vit_width", "vit_ffn"))
    second: Linear = gguf("mlp.fc2", "ffn_down", hf="fc2", shape=("vit_ffn", "vit_width"))

    def forward(self, x: Tensor) -> Tensor:
        """x [width, …] → [width, …]."""
        return self.second(activate(self.config.vit_activation, self.first(x)))


class SwappedVisionMLP(VisionMLP):
    """Older mmproj files, in which each has the other's name: the shapes tell."""

    first: Linear = gguf("ffn_down", shape=("vit_width", "vit_ffn"))
    second: Linear = gguf("ffn_up", shape=("vit_ffn", "vit_width"))


class VisionLayer(Module):
    """x + attn(norm(x)), then x + ffn(norm(x))."""

    norm1: LayerNorm = gguf("layer_norm1", "ln1", hf="layer_norm1", shape=("vit_width",))
    attn: VisionAttention = gguf(hf="self_attn")
    norm2: LayerNorm = gguf("layer_norm2", "ln2", hf="layer_norm2", shape=("vit_width",))
    ffn: VisionMLP | SwappedVisionMLP = gguf(hf="mlp")

    def forward(self, x: Tensor) -> Tensor:
        """x [width, n, images] → [width, n, images]."""
        eps = self.config.vit_eps
        x = x + self.attn(self.norm1(x, eps))
        return x + self.ffn(self.norm2(x, eps))
