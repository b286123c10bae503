"""Feed-forward blocks, and their activations by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ..errors import ConfigError
from ..ml import Tensor
from ..model.fields import gguf
from ..model.module import Module
from .layers import Linear


def _gelu_erf(x: Tensor, up: Tensor | None) -> Tensor:
    return x.gelu_erf() if up is None else x.gelu_erf() * up


def _relu2(x: Tensor, up: Tensor | None) -> Tensor:
    return x.relu().sqr() if up is None else x.relu().sqr() * up


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
}


def check_activation(name: str, key: str = "hidden_activation (hidden_act)") -> None:
    """
    Args:
        key: the name of the hyperparameter, for the message.

    Raises:
        ConfigError: an unknown activation; lists the supported ones.
    """
    if name not in _ACTIVATIONS:
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
        value = next((hf[key] for key in keys if hf.get(key) is not None), None)
        return None if value == usual else value

    return find


class GatedMLP(Module):
    """down(activation(gate(x)) · up(x)). Reads the config's `width`, `ffn` and `activation`.

    Raises:
        ConfigError: an unknown activation; lists the supported ones.
    """

    gate: Linear = gguf("ffn_gate", hf="gate_proj", shape=("width", "ffn"))
    up: Linear = gguf("ffn_up", hf="up_proj", shape=("width", "ffn"))
    down: Linear = gguf("ffn_down", hf="down_proj", shape=("ffn", "width"))

    def __init__(self, config: Any = None):
        super().__init__(config)
        check_activation(self.activation)

    @property
    def activation(self) -> str:
        """The config's; "silu" for a config without."""
        return getattr(self.config, "activation", "silu")

    def forward(self, x: Tensor) -> Tensor:
        """x [width, n] → [width, n]."""
        return self.down(activate(self.activation, self.gate(x), self.up(x)))
