"""Layers: linear maps, convolutions, embeddings, norms, activations and feed-forward blocks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ..errors import ConfigError
from ..ml import Tensor
from ..model.config import descend
from ..model.module import Module, gguf, kv


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


class HeadNorm(LayerNorm):
    """A layer norm with weights of its own for each head. As a field: shape=(head dim, heads)."""

    dims = {"weight": (0, 1)}


def _gelu_erf(x: Tensor, up: Tensor | None) -> Tensor:
    return x.gelu_erf() if up is None else x.gelu_erf() * up


def _relu2(x: Tensor, up: Tensor | None) -> Tensor:
    return x.relu().sqr() if up is None else x.relu().sqr() * up


def _tanh(x: Tensor, up: Tensor | None) -> Tensor:
    return x.tanh() if up is None else x.tanh() * up


_KEY = "hidden_activation"  # none of llama.cpp's
# Names in transformers; "gelu" is the exact form there, and others its tanh form.
_ACTIVATIONS: dict[str, Callable[[Tensor, Tensor | None], Tensor]] = {
    "silu": Tensor.silu,
    "swish": Tensor.silu,
    "gelu": _gelu_erf,
    "gelu_new": Tensor.gelu,
    "gelu_fast": Tensor.gelu,
    "gelu_pytorch_tanh": Tensor.gelu,
    "quick_gelu": Tensor.quick_gelu,
    "relu": Tensor.relu,
    "relu2": _relu2,
    "tanh": _tanh,
}


def check_activation(name: Any, key: str = f"{_KEY} (hidden_act)") -> None:
    """
    Args:
        key: the name of the hyperparameter, for the message.

    Raises:
        ConfigError: an unknown activation; lists the supported ones.
    """
    if not isinstance(name, str) or name not in _ACTIVATIONS:
        raise ConfigError(
            f"{key} {name!r:.60} is unsupported; supported: {', '.join(sorted(_ACTIVATIONS))}"
        )


def activate(name: str, x: Tensor, up: Tensor | None = None) -> Tensor:
    """An activation by its name in transformers: […] → […]; with up […] multiplied by that.

    Raises:
        ConfigError: an unknown activation; lists the supported ones.
    """
    check_activation(name)
    return _ACTIVATIONS[name](x, up)


def unless(usual: Any, *keys: str) -> Callable[[Mapping[str, Any]], Any]:
    """For `kv(hf=…)`: the first of these keys that a config has, unless it is the usual value.
    Files then have the metadata key only where other programs need to know."""

    def find(hf: Mapping[str, Any]) -> Any:
        values = [descend(hf, key) for key in keys]
        value = next((value for value in values if value is not None), None)
        return None if value == usual else value

    return find


def activation(usual: str, hf: str | tuple[str, ...] = "hidden_act", *names: str) -> Any:
    """A hyperparameter: the name of an activation, written to files only if it is not the usual
    one, as other programs' formats have no key for it.

    Args:
        usual: the activation of files, and of configs, without the key.
        hf: the key in a Hugging Face config, or several.
        names: the keys in files; "hidden_activation" by default.

    Raises:
        ConfigError: when a config is read that has an unknown activation; lists the supported ones.
    """
    keys = (hf,) if isinstance(hf, str) else hf
    unusual = unless(usual, *keys)

    def find(config: Mapping[str, Any]) -> Any:
        value = unusual(config)
        if value is not None:
            check_activation(value, " or ".join(keys))
        return value

    return kv(*(names or (_KEY,)), hf=find, default=usual)


class MLP(Module):
    """down(activation(up(x))). Reads the config's `width`, `ffn` and `activation`.

    Raises:
        ConfigError: an unknown activation; lists the supported ones.
    """

    up: Linear = gguf("ffn_up", hf=("up_proj", "c_fc", "dense_h_to_4h"), shape=("width", "ffn"))
    down: Linear = gguf(
        "ffn_down", hf=("down_proj", "c_proj", "dense_4h_to_h"), shape=("ffn", "width")
    )

    def __init__(self, config: Any = None):
        super().__init__(config)
        check_activation(self.activation)

    @property
    def activation(self) -> str:
        """The config's; "silu" for a config without."""
        return getattr(self.config, "activation", "silu")

    def forward(self, x: Tensor) -> Tensor:
        """x [width, n] → [width, n]."""
        return self.down(activate(self.activation, self.up(x)))


class GatedMLP(MLP):
    """down(activation(gate(x)) · up(x)). Reads the config's `width`, `ffn` and `activation`.

    Raises:
        ConfigError: an unknown activation; lists the supported ones.
    """

    gate: Linear = gguf("ffn_gate", hf="gate_proj", shape=("width", "ffn"))
    up: Linear = gguf("ffn_up", hf="up_proj", shape=("width", "ffn"))
    down: Linear = gguf("ffn_down", hf="down_proj", shape=("ffn", "width"))

    def forward(self, x: Tensor) -> Tensor:
        """x [width, n] → [width, n]."""
        return self.down(activate(self.activation, self.gate(x), self.up(x)))


class FusedGatedMLP(MLP):
    """The same with gate and up as one matrix, the gate's rows first. Reads the config's
    `gate_up_width`, too."""

    up: Linear = gguf("ffn_up", hf="gate_up_proj", shape=("width", "gate_up_width"))

    def forward(self, x: Tensor) -> Tensor:
        """x [width, n] → [width, n]."""
        gate, up = self.up(x).chunk(0, self.config.ffn)
        return self.down(activate(self.activation, gate, up))
