"""Linear maps, convolutions, embeddings, norms."""

from __future__ import annotations

from ..ml import Tensor
from ..model.fields import gguf
from ..model.module import Module


class Linear(Module):
    """weight · x + bias. As a field: shape=(in, out)."""

    dims = {"weight": (0, 1), "bias": (1,)}

    weight: Tensor = gguf("weight")
    bias: Tensor | None = gguf("bias")

    def forward(self, x: Tensor) -> Tensor:
        """x [in, n] → [out, n] F32."""
        y = self.weight.mulmat(x)
        return y if self.bias is None else y.add(self.bias)


class Conv1D(Module):
    """A kernel moved over a sound, + bias. As a field: shape=(length, in, out)."""

    dims = {"weight": (0, 1, 2), "bias": (2,)}

    weight: Tensor = gguf("weight")
    bias: Tensor | None = gguf("bias")

    def forward(self, x: Tensor, stride: int = 1, pad: int = 0) -> Tensor:
        """x [n, in] → [n', out] F32; n' = ⌊(n + 2 pad − length) / stride⌋ + 1."""
        y = self.weight.conv_1d(x, stride, pad)
        return y if self.bias is None else y.add(self.bias.reshape(1, -1))


class Conv2D(Module):
    """A kernel moved over an image, + bias. As a field: shape=(width, height, in, out)."""

    dims = {"weight": (0, 1, 2, 3), "bias": (3,)}

    weight: Tensor = gguf("weight")
    bias: Tensor | None = gguf("bias")

    def forward(self, x: Tensor, stride: int = 1) -> Tensor:
        """x [w, h, in, n] → [w', h', out, n] F32; w' = ⌊(w − width) / stride⌋ + 1."""
        y = self.weight.conv_2d(x, stride, stride)
        return y if self.bias is None else y.add(self.bias.reshape(1, 1, -1))


class Embedding(Module):
    """A table of rows. As a field: shape=(width, rows)."""

    dims = {"weight": (0, 1)}

    weight: Tensor = gguf("weight")

    def forward(self, ids: Tensor) -> Tensor:
        """ids I32 [n] → [width, n] F32."""
        return self.weight.rows(ids)


class RMSNorm(Module):
    """x / √(mean(x²) + eps) · weight along dim 0. As a field: shape=(width,)."""

    dims = {"weight": (0,)}

    weight: Tensor = gguf("weight")

    def forward(self, x: Tensor, eps: float | None = None) -> Tensor:
        """The shape of x; eps defaults to the config's `eps`."""
        return x.rms_norm(self.weight, self.config.eps if eps is None else eps)


class LayerNorm(Module):
    """(x − mean) / √(variance + eps) · weight + bias along dim 0. As a field: shape=(width,)."""

    dims = {"weight": (0,), "bias": (0,)}

    weight: Tensor = gguf("weight", hf=("weight", "gamma"))  # TensorFlow's names
    bias: Tensor | None = gguf("bias", hf=("bias", "beta"))

    def forward(self, x: Tensor, eps: float | None = None) -> Tensor:
        """The shape of x; eps defaults to the config's `eps`."""
        return x.layer_norm(self.weight, self.bias, self.config.eps if eps is None else eps)
