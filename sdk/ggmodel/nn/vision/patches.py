"""From pixels to patches, and from patches to fewer, wider rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ...errors import ConfigError
from ...ml import Tensor
from ...model.fields import gguf
from ...model.module import Module
from ...model.operations import Sources


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
