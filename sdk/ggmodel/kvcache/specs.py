"""What layers remember of positions: all of them, the last few, or those of a chunk."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, TypeVar

from ..errors import ConfigError
from ..ml import Backend, DType
from .cache import CacheSpec, Size
from .causal import CausalCache

if TYPE_CHECKING:
    import numpy as np

    from ..nn.rope import Rope

P = TypeVar("P", int, "np.ndarray")

_MOST = 1 << 30  # positions have 32 bits, and so have sums and differences of them


class Positions(CacheSpec):
    """A layer that remembers keys and values by position; each sees itself and earlier ones.

    Attributes:
        rope: how the layer rotates its keys; None if it does not. Needed to move positions.
        bounded: whether there are earlier positions that are not seen.
    """

    rope: Rope | None
    bounded: ClassVar[bool] = True

    @property
    @abstractmethod
    def span(self) -> int | None:
        """The most positions kept for what comes next; None if all are."""

    @abstractmethod
    def sees_from(self, position: P) -> P:
        """The first position that `position` sees; may be negative."""

    def keeps_from(self, position: int) -> int:
        """The first position that is kept when `position` comes next; may be negative."""
        return self.sees_from(position)

    def new_cache(
        self, backend: Backend, layers: Mapping[int, Positions], dtype: DType, size: Size
    ) -> CausalCache:
        return CausalCache(backend, self, layers, dtype, size)


@dataclass(frozen=True)
class Causal(Positions):
    """A layer that remembers every position."""

    rope: Rope | None = None
    bounded: ClassVar[bool] = False

    @property
    def kind(self) -> Hashable:
        return "causal"

    @property
    def span(self) -> None:
        return None

    def sees_from(self, position: P) -> P:
        return position * 0


@dataclass(frozen=True)
class Sliding(Positions):
    """A layer whose positions see the `window` last ones, their own included.

    Attributes:
        memory: how many positions are kept, where that is more than the window, so that a
            sequence can be resumed further back.

    Raises:
        ConfigError: a window of less than one position, or of more than the memory.
    """

    window: int
    memory: int | None = None
    rope: Rope | None = None

    def __post_init__(self):
        _need_span("window", self.window)
        if self.memory is not None and self.memory < self.window:
            raise ConfigError(f"a memory of {self.memory} positions for a window of {self.window}")

    @classmethod
    def where(
        cls, local: Iterable[bool], window: int, ropes: Iterable[Rope | None]
    ) -> list[Causal | Sliding]:
        """By layer: a window where it is `local`, all positions where it is not.

        Raises:
            ConfigError: a window of less than one position, and layers that are local.
            ValueError: there are not as many ropes as flags.
        """
        each = zip(local, ropes, strict=True)
        return [cls(window, rope=rope) if near else Causal(rope) for near, rope in each]

    @property
    def kind(self) -> Hashable:
        return ("sliding", self.window, self.span)

    @property
    def span(self) -> int:
        return self.window if self.memory is None else self.memory

    def sees_from(self, position: P) -> P:
        return position - min(self.window, _MOST) + 1

    def keeps_from(self, position: int) -> int:
        return position - self.span + 1


@dataclass(frozen=True)
class Chunked(Positions):
    """A layer whose positions see those of their own chunk of `size` positions.

    Raises:
        ConfigError: a chunk of less than one position.
    """

    size: int
    rope: Rope | None = None

    def __post_init__(self):
        _need_span("chunk", self.size)

    @property
    def kind(self) -> Hashable:
        return ("chunked", self.size)

    @property
    def span(self) -> int:
        return self.size

    def sees_from(self, position: P) -> P:
        return position - position % min(self.size, _MOST)


def _need_span(what: str, n: int) -> None:
    if n < 1:
        raise ConfigError(f"a {what} of {n} positions; it must be at least 1")
