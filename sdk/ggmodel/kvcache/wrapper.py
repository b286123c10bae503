"""One cache for all layers of a model, of one or of several kinds."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

from ..errors import TensorError
from ..ml import Backend, Context, DType
from ..model.batch import Step
from ..model.cache import Cache, CacheSpec, Size
from .specs import Causal


class WrapperCache(Cache):
    """Several caches that hold different layers of the same sequences.

    Args:
        caches: at least one.
    """

    def __init__(self, caches: Sequence[Cache]):
        self.caches = list(caches)
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
        merged: dict[int, Any] = {}
        for cache in self.caches:
            merged |= cache.layers(ctx, step)
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

    def expect(self, sequence: int, length: int) -> None:
        for cache in self.caches:
            cache.expect(sequence, length)

    def copy_prefix(self, source: int, target: int, n: int) -> None:
        for cache in self.caches:
            cache.copy_prefix(source, target, n)

    def check_remove(self, sequence: int, begin: int, end: int | None) -> None:
        for cache in self.caches:
            cache.check_remove(sequence, begin, end)

    def remove(self, sequence: int, begin: int, end: int | None) -> None:
        self.check_remove(sequence, begin, end)  # before any cache has changed
        for cache in self.caches:
            cache.remove(sequence, begin, end)

    def wipe(self, sequence: int) -> None:
        for cache in self.caches:
            cache.wipe(sequence)

    def close(self) -> None:
        for cache in self.caches:
            cache.close()


def new_cache(
    backend: Backend,
    specs: Sequence[CacheSpec],
    *,
    dtype: DType,
    sequences: int,
    capacity: int,
    max_batch: int,
) -> Cache:
    """A cache for a model: one cache for each kind that its layers declare, wrapped in one.

    Args:
        specs: one declaration a layer.
        dtype: of keys and values.
        sequences: sequences are numbered 0 to sequences − 1.
        capacity: positions a sequence.
        max_batch: the most tokens in a step.

    Raises:
        TensorError: an entry that is no declaration.
        Unsupported: a dtype that keys and values cannot have.
        OutOfMemory: the host has no memory for the bookkeeping.
    """
    kinds: dict[Hashable, dict[int, Any]] = {}
    for i, spec in enumerate(specs):
        if not isinstance(spec, CacheSpec):
            raise TensorError(
                f"caches() must give one declaration, such as Causal(...), a layer; entry {i} is "
                f"{spec!r}"
            )
        kinds.setdefault(spec.kind, {})[i] = spec
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
    return caches[0] if len(caches) == 1 else WrapperCache(caches)
