"""Named, invertible operations between the tensors of a Hugging Face checkpoint and a GGUF file.

All arrays are numpy, row-major: a linear weight is [out, in]. Each operation knows both ways, so
that one declaration loads checkpoints, writes GGUF and pairs activations.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError

if TYPE_CHECKING:
    import numpy as np


def value_of(config: Any, dim: int | str) -> int:
    """A number, or the config attribute of that name.

    Raises:
        ConfigError: there is no such attribute, or it is no integer.
    """
    if isinstance(dim, int):
        return dim
    try:
        value = getattr(config, dim)
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(f"{type(config).__name__}.{dim} has no value: {error}") from error
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigError(f"{type(config).__name__}.{dim} is {value!r:.40}, not an integer")
    return value


class Operation(ABC):
    """One tensor to one tensor."""

    @abstractmethod
    def to_gguf(self, x: np.ndarray, config: Any) -> np.ndarray:
        """The GGUF tensor of a checkpoint's tensor."""

    @abstractmethod
    def to_hf(self, x: np.ndarray, config: Any) -> np.ndarray:
        """The inverse of `to_gguf`."""


@dataclass(frozen=True)
class PermuteRope(Operation):
    """Rows from rotary halves, as transformers rotates, to neighbours, as ggml's norm type does.

    Within each head row i of the first half and row i of the second become rows 2i and 2i + 1.

    Args:
        heads: number of heads or the config attribute that holds it.
    """

    heads: int | str

    def to_gguf(self, x: np.ndarray, config: Any) -> np.ndarray:
        return self._swap(x, config, 2, -1)

    def to_hf(self, x: np.ndarray, config: Any) -> np.ndarray:
        return self._swap(x, config, -1, 2)

    def _swap(self, x: np.ndarray, config: Any, a: int, b: int) -> np.ndarray:
        heads = value_of(config, self.heads)
        if heads < 1 or x.shape[0] % (2 * heads):
            raise ConfigError(f"{x.shape[0]} rows are not {heads} heads of pairs")
        return x.reshape(heads, a, b, *x.shape[1:]).swapaxes(1, 2).reshape(x.shape)


@dataclass(frozen=True)
class Transpose(Operation):
    """Swaps the last two dims: of a matrix or of a stack of them; a bias stays as it is."""

    def to_gguf(self, x: np.ndarray, config: Any) -> np.ndarray:
        return x.swapaxes(-1, -2) if x.ndim > 1 else x

    def to_hf(self, x: np.ndarray, config: Any) -> np.ndarray:
        return self.to_gguf(x, config)


@dataclass(frozen=True)
class Plus(Operation):
    """Adds a constant: a norm that multiplies by 1 + w is stored with the one baked in."""

    amount: float

    def to_gguf(self, x: np.ndarray, config: Any) -> np.ndarray:
        return x + x.dtype.type(self.amount)

    def to_hf(self, x: np.ndarray, config: Any) -> np.ndarray:
        return x - x.dtype.type(self.amount)


class Sources(ABC):
    """Where in a checkpoint a tensor comes from when it is no single tensor of its own."""

    @abstractmethod
    def names(self, config: Any) -> list[str]:
        """The names of all sources, relative to the enclosing fields."""

    @abstractmethod
    def join(self, parts: list[np.ndarray], config: Any) -> np.ndarray:
        """One tensor of the sources, in the order of `names`."""

    @abstractmethod
    def split(self, x: np.ndarray, config: Any) -> dict[str, np.ndarray | tuple[Any, np.ndarray]]:
        """The inverse: name → tensor, or (the index of what this field holds of it, that part)."""


@dataclass(frozen=True)
class Stack(Sources):
    """n tensors stacked along a new first dim ("experts.{}.w1").

    Args:
        template: the name with {} where the number goes.
        n: how many, or the config attribute that holds it.
    """

    template: str
    n: int | str

    def names(self, config: Any) -> list[str]:
        return [self.template.format(i) for i in range(value_of(config, self.n))]

    def join(self, parts: list[np.ndarray], config: Any) -> np.ndarray:
        import numpy as np

        return np.stack(parts)

    def split(self, x: np.ndarray, config: Any) -> dict[str, Any]:
        names = self.names(config)
        if len(names) != len(x):
            raise ConfigError(f"{self.template}: {len(x)} tensors are stacked, not {len(names)}")
        return dict(zip(names, x, strict=True))


@dataclass(frozen=True)
class Part(Sources):
    """Some of the rows of a fused tensor ("qkv_proj", "gate_up_proj").

    Args:
        name: of the fused tensor.
        index: which part this is.
        rows: the number of rows of every part, in order: numbers or config attributes.
        axis: what counts as a row; −1 for the columns of stacked experts.
    """

    name: str
    index: int
    rows: tuple[int | str, ...]
    axis: int = 0

    def names(self, config: Any) -> list[str]:
        return [self.name]

    def join(self, parts: list[np.ndarray], config: Any) -> np.ndarray:
        self._check(parts[0], sum(self._sizes(config)))
        return parts[0][self._where(parts[0], config)]

    def split(self, x: np.ndarray, config: Any) -> dict[str, Any]:
        self._check(x, self._sizes(config)[self.index])
        return {self.name: (self._where(x, config), x)}

    def _sizes(self, config: Any) -> list[int]:
        return [value_of(config, r) for r in self.rows]

    def _where(self, x: np.ndarray, config: Any) -> tuple[slice, ...]:
        sizes = self._sizes(config)
        start = sum(sizes[: self.index])
        before = (slice(None),) * (self.axis % x.ndim)
        return *before, slice(start, start + sizes[self.index])

    def _check(self, x: np.ndarray, rows: int) -> None:
        found = x.shape[self.axis] if -x.ndim <= self.axis < x.ndim else 0
        if found != rows:
            raise ConfigError(f"{self.name}: {found} rows, not {rows} as {self.rows} say")


@dataclass(frozen=True)
class Computed(Sources):
    """A tensor that no checkpoint holds: a function of the Hugging Face config."""

    function: Callable[[Mapping[str, Any]], np.ndarray | None]

    def names(self, config: Any) -> list[str]:
        return []

    def join(self, parts: list[np.ndarray], config: Any) -> np.ndarray:
        raise NotImplementedError("a computed tensor has no parts to join")

    def split(self, x: np.ndarray, config: Any) -> dict[str, Any]:
        return {}
