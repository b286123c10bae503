"""The encoder of Qwen3-ASR: three convolutions over each second, then Whisper's layers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ggmodel import Module, Tensor, gguf, nn
from ggmodel.model import Computed, Reshape
from ggmodel.nn import LayerNorm, Linear

from .config import CHUNK, ROWS, Qwen3ASRConfig

TABLE = 1500  # positions, as many as llama.cpp's converter writes
SLOWEST = 10_000  # 2π times this is the longest period, in rows


def _waves(hf: Mapping[str, Any], h: Any) -> np.ndarray:
    """Sines, then cosines, float32 [positions, width]."""
    tower = hf.get("audio_config") or {}
    half = tower.get("d_model", tower.get("hidden_size", 1024)) // 2
    step = np.float32(-np.log(SLOWEST) / (half - 1))
    rates = np.exp(step * np.arange(half, dtype=np.float32))
    turns = np.arange(TABLE, dtype=np.float32)[:, None] * rates
    return np.concatenate([np.sin(turns), np.cos(turns)], axis=1).astype(np.float32)


def rows_of(frames: int) -> int:
    """The rows of so many frames."""
    rest = frames % CHUNK
    return frames // CHUNK * ROWS + -(-rest // 8)


class Convolution(nn.Conv2D):
    """A kernel over frames and mels that halves both, with a bias as llama.cpp adds it, [1, 1,
    out]. As a field: shape=(3, 3, in, out, 1)."""

    dims = {"weight": (0, 1, 2, 3), "bias": (4, 4, 3)}

    bias: Tensor = gguf("bias", op=Reshape((0, 1, 1), (0,)))

    def forward(self, x: Tensor, stride: int = 2) -> Tensor:
        """x [frames, mels, in, chunks] → [⌈frames / 2⌉, ⌈mels / 2⌉, out, chunks] F32."""
        return (self.weight.conv_2d(x, stride, stride, 1, 1) + self.bias).gelu_erf()


class Encoder(Module):
    config: Qwen3ASRConfig
    conv1: Convolution = gguf("conv2d.1", hf="conv2d1", shape=(3, 3, 1, None, 1))
    conv2: Convolution = gguf("conv2d.2", hf="conv2d2", shape=(3, 3, None, None, 1))
    conv3: Convolution = gguf("conv2d.3", hf="conv2d3", shape=(3, 3, None, None, 1))
    into: Linear = gguf("conv_out", hf="conv_out", shape=(None, "audio_width"))
    positions: Tensor = gguf(
        "position_embd.weight", hf=Computed(_waves), shape=("audio_width", "positions")
    )
    layers: list[nn.AudioLayer] = gguf("blk", hf="layers", n="audio_layers")
    norm: LayerNorm = gguf("post_ln", hf="ln_post", shape=("audio_width",))

    def forward(self, x: Tensor, rows: int) -> Tensor:
        """A window's spectrum [CHUNK, mels, 1, chunks] → [width, rows], the first rows, which see
        only each other."""
        h = self.config
        y = self.conv3(self.conv2(self.conv1(x)))
        y = y.permute(2, 0, 1, 3).contiguous()  # [mels, channels, rows, chunks]
        y = self.into(y.reshape(y.dim(0) * y.dim(1), ROWS, -1)) + self.positions.slice(1, 0, ROWS)
        y = y.reshape(h.audio_width, -1).slice(1, 0, rows)
        for layer in self.layers:
            y = layer(y)
        return self.norm(y, h.audio_eps)


class Projector(Module):
    config: Qwen3ASRConfig
    first: Linear = gguf("mlp.1", hf="linear_1", shape=("audio_width", "audio_width"))
    second: Linear = gguf("mlp.2", hf="linear_2", shape=("audio_width", "width"))

    def forward(self, x: Tensor) -> Tensor:
        """[audio_width, rows] → [width, rows]."""
        return self.second(nn.activate(self.config.audio_activation, self.first(x)))
