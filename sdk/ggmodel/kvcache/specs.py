"""Declarations of layers that store keys and values by position: all, the last ones, a chunk."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, TypeVar

from ..errors import ConfigError
from ..ml import Backend, DType
from ..model.cache import Size
from ..model.memory import Rotation
from .causal import CausalCache
from .placed import P, Rule

_MOST = 1 << 30  # positions and their sums and differences have 32 bits


class Positions(Rule):
    """A layer that stores keys and values by position."""

    def new_cache(
        self, backend: Backend, layers: Mapping[int, Positions], dtype: DType, size: Size
    ) -> CausalCache:
        return CausalCache(backend, self, layers, dtype, size)


@dataclass(frozen=True)
class Causal(Positions):
    """A layer that stores every position.

    Attributes:
        absolute: what enters the layer holds its position, as with learned embeddings of positions:
            no rotation moves its keys, and a text whose positions change is computed again.
    """

    rope: Rotation | None = None
    shares: int | None = None
    absolute: bool = False
    ahead: bool = True
    bounded: ClassVar[bool] = False

    @property
    def kind(self) -> Hashable:
        return "causal", self.absolute, self.ahead

    @property
    def span(self) -> None:
        return None

    def sees_from(self, position: P) -> P:
        return position * 0


@dataclass(frozen=True)
class Sliding(Positions):
    """A layer whose positions see the last `window` positions, their own included.

    Attributes:
        memory: number of positions kept, if more than the window: a sequence can then be resumed
            further back.

    Raises:
        ConfigError: a window below one position, or above the memory.
    """

    window: int
    memory: int | None = None
    rope: Rotation | None = None
    shares: int | None = None

    def __post_init__(self):
        need_span("window", self.window)
        if self.memory is not None and self.memory < self.window:
            raise ConfigError(f"a memory of {self.memory} positions for a window of {self.window}")

    @classmethod
    def where(
        cls,
        local: Sequence[bool],
        window: int,
        ropes: Rotation | Iterable[Rotation | None] | None,
    ) -> list[Causal | Sliding]:
        """One declaration a layer: `Sliding(window)` if it is `local`, else `Causal`.

        Args:
            ropes: one for all layers, or one a layer.

        Raises:
            ConfigError: a window below one position, and a layer that is local.
            ValueError: another number of ropes than of flags.
        """
        if not isinstance(ropes, Iterable):
            ropes = [ropes] * len(local)
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
        ConfigError: a chunk below one position.
    """

    size: int
    rope: Rotation | None = None
    shares: int | None = None

    def __post_init__(self):
        need_span("chunk", self.size)

    @property
    def kind(self) -> Hashable:
        return ("chunked", self.size)

    @property
    def span(self) -> int:
        return self.size

    def sees_from(self, position: P) -> P:
        return position - position % min(self.size, _MOST)


S = TypeVar("S", bound="Causal | Sliding | Chunked")


def share_last(layers: Sequence[S], n: int) -> list[S]:
    """Declarations of which the last `n` layers store nothing: each reads the keys and values of
    the last layer of its kind before these.

    Raises:
        ConfigError: `n` is no number of layers, or no layer before these is of the kind of one.
    """
    first = len(layers) - n
    if not 0 <= n <= len(layers):
        raise ConfigError(f"{n} of {len(layers)} layers share keys and values")
    last = {spec.kind: i for i, spec in enumerate(layers[:first])}
    for i, spec in enumerate(layers[first:], first):
        if spec.kind not in last:
            raise ConfigError(
                f"layer {i} shares keys and values, but none of the {first} layers that store "
                "some sees the same positions"
            )
    return [*layers[:first], *(replace(s, shares=last[s.kind]) for s in layers[first:])]


def need_span(what: str, n: int) -> None:
    if n < 1:
        raise ConfigError(f"a {what} of {n} positions; it must be at least 1")
