"""Declarations of layers that store keys and values by position, and the cache of a whole model."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, ClassVar, TypeVar, cast

import numpy as np

from ..errors import ConfigError, TensorError
from ..ml import Backend, Context, DType
from ..model.batch import Step
from ..model.cache import Cache, CacheSpec, Rotation, Saved, Size
from .causal import CausalCache
from .seen import P, Rule

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
        relative: attention adds scores that follow from distances: `LayerCache.by_distance`.
        max_bias: of ALiBi, usually 8: what scores lose by distance, see
            `Tensor.scaled_dot_product_attention`; 0 is none. Such layers need no rope.

    Raises:
        ConfigError: a `max_bias` below 0.
    """

    rope: Rotation | None = None
    shares: int | None = None
    absolute: bool = False
    ahead: bool = True
    relative: bool = False
    max_bias: float = 0.0
    bounded: ClassVar[bool] = False

    def __post_init__(self):
        if not 0 <= self.max_bias < math.inf:
            raise ConfigError(f"ALiBi with a max_bias of {self.max_bias}; it must be 0 or more")

    @property
    def kind(self) -> Hashable:
        return "causal", self.absolute, self.ahead, self.relative, self.max_bias

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
        absolute: as of `Causal`; of layers whose values are rotated, too.

    Raises:
        ConfigError: a window below one position, or above the memory.
    """

    window: int
    memory: int | None = None
    rope: Rotation | None = None
    shares: int | None = None
    absolute: bool = False

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
        return ("sliding", self.window, self.span, self.absolute)

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
    """Raises ConfigError unless a window or chunk has a position."""
    if n < 1:
        raise ConfigError(f"a {what} of {n} positions; it must be at least 1")


class WrapperCache(Cache):
    """Several caches that hold different layers of the same sequences.

    Args:
        caches: at least one.
        together: layer with several memories → the numbers of their caches, in its order.
    """

    def __init__(
        self, caches: Sequence[Cache], together: Mapping[int, tuple[int, ...]] | None = None
    ):
        self.caches, self._together = list(caches), together or {}
        self.max_batch = min(cache.max_batch for cache in self.caches)
        self.advances = all(cache.advances for cache in self.caches)
        self.ranges = max(cache.ranges for cache in self.caches)

    def start_forward(self, step: Step, reserve: bool = False) -> None:
        for i, cache in enumerate(self.caches):
            try:
                cache.start_forward(step, reserve)
            except BaseException:
                for placed in reversed(self.caches[: i + 1]):
                    placed.undo(step)
                raise

    def advance(self, step: Step) -> bool:
        computed = [step.placed.get(cache) for cache in self.caches]
        moved = False
        try:
            moved = all(cache.advance(step) for cache in self.caches)
        finally:
            if not moved:
                for cache, before in zip(self.caches, computed, strict=True):
                    if step.placed.get(cache) is not before:
                        cache.undo(step)
        return moved

    def undo(self, step: Step) -> None:
        for cache in reversed(self.caches):
            cache.undo(step)

    def shape_key(self, step: Step) -> Hashable:
        return tuple(cache.shape_key(step) for cache in self.caches)

    def layers(self, ctx: Context, step: Step) -> dict[int, Any]:
        each = [cache.layers(ctx, step) for cache in self.caches]
        merged: dict[int, Any] = {}
        for layers in each:
            merged |= layers
        for layer, caches in self._together.items():
            merged[layer] = tuple(each[i][layer] for i in caches)
        return merged

    def length(self, sequence: int) -> int:
        return max(cache.length(sequence) for cache in self.caches)

    def can_resume(self, sequence: int, position: int) -> bool:
        return all(cache.can_resume(sequence, position) for cache in self.caches)

    def resume_point(self, sequence: int, position: int) -> int:
        while True:
            point = min(cache.resume_point(sequence, position) for cache in self.caches)
            if point == position:
                return point
            position = point  # another cache may not be able to resume there

    def allocate(self, sequence: int, length: int) -> None:
        for cache in self.caches:
            cache.allocate(sequence, length)

    def copy_prefix(self, source: int, target: int, n: int) -> None:
        for cache in self.caches:
            cache.copy_prefix(source, target, n)

    def save(self, sequence: int, begin: int = 0, end: int | None = None) -> Saved | None:
        each = [cache.save(sequence, begin, end) for cache in self.caches]
        whole = [saved for saved in each if saved is not None]
        if len(whole) < len(each):
            return None
        return Saved(whole[0].length, [part for saved in whole for part in saved.parts])

    def restore(self, sequence: int, saved: Saved) -> None:
        try:
            parts = iter(saved.parts)
            for cache in self.caches:
                own = [*islice(parts, len(cache.needs_from(saved.length)))]
                cache.restore(sequence, Saved(saved.length, own))
        except BaseException:
            self.remove(sequence, 0, None)
            raise

    def needs_from(self, length: int) -> list[int]:
        return [first for cache in self.caches for first in cache.needs_from(length)]

    def check_remove(self, sequence: int, begin: int, end: int | None) -> None:
        for cache in self.caches:
            cache.check_remove(sequence, begin, end)

    def remove(
        self, sequence: int, begin: int, end: int | None, moves: np.ndarray | None = None
    ) -> None:
        self.check_remove(sequence, begin, end)  # before any cache has changed
        for cache in self.caches:
            cache.remove(sequence, begin, end, moves)

    def wipe(self, sequence: int) -> None:
        for cache in self.caches:
            cache.wipe(sequence)

    def close(self) -> None:
        for cache in self.caches:
            cache.close()


Declared = Sequence[CacheSpec | tuple[CacheSpec, ...]]


def several(entry: CacheSpec | tuple[CacheSpec, ...]) -> tuple[CacheSpec, ...]:
    """The declarations of one layer."""
    return entry if isinstance(entry, tuple) else (entry,)


def new_cache(
    backend: Backend,
    specs: Declared,
    *,
    dtype: DType,
    sequences: int,
    capacity: int,
    max_batch: int,
) -> Cache:
    """A cache for a model: one cache for each kind that its layers declare, wrapped in one.

    Args:
        specs: one declaration a layer, or a tuple of several kinds: its entry of `Batch.cache` is
            then a tuple, too.
        dtype: of keys and values.
        sequences: sequences are numbered 0 to sequences − 1.
        capacity: positions a sequence.
        max_batch: the most tokens in a step.

    Raises:
        TensorError: an entry that is no declaration, or of one kind twice.
        ConfigError: a layer shares the keys and values of one that is not declared alike.
        Unsupported: a dtype that keys and values cannot have.
        OutOfMemory: the host has no memory for the bookkeeping.
    """
    kinds: dict[Hashable, dict[int, Any]] = {}
    for i, entry in enumerate(specs):
        for spec in several(entry):
            if not isinstance(spec, CacheSpec):
                raise TensorError(
                    f"caches() must give one declaration, such as Causal(...), a layer; entry {i} "
                    f"is {entry!r}"
                )
            _check_sharing(specs, i, spec)
            layers = kinds.setdefault(spec.kind, {})
            if i in layers:
                raise TensorError(
                    f"entry {i} of caches() declares two memories of one kind: {entry!r}"
                )
            layers[i] = spec
    numbers = {kind: n for n, kind in enumerate(kinds)}
    together = {
        i: tuple(numbers[spec.kind] for spec in entry)
        for i, entry in enumerate(specs)
        if isinstance(entry, tuple)
    }
    size = Size(sequences, capacity, max_batch)
    caches: list[Cache] = []
    try:
        for layers in kinds.values() or [{}]:
            first: CacheSpec = next(iter(layers.values()), Causal())
            caches.append(first.new_cache(backend, layers, dtype, size))
    except BaseException:
        for cache in caches:
            cache.close()
        raise
    return caches[0] if len(caches) == 1 and not together else WrapperCache(caches, together)


def _check_sharing(specs: Declared, layer: int, spec: CacheSpec) -> None:
    """Raises if the layer shares the keys and values of one that has none for it."""
    if not isinstance(spec, Positions) or spec.shares is None:
        return
    source = specs[spec.shares] if 0 <= spec.shares < layer else None
    alike = replace(cast("Any", spec), shares=None)  # all kinds are data classes
    if source is None or alike not in several(source):
        raise ConfigError(
            f"layer {layer} shares the keys and values of layer {spec.shares}, which is declared "
            f"as {source}, not as {alike}: it must be an earlier one, see the same positions and "
            "rotate alike"
        )
