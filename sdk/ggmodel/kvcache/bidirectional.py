"""Attention in both directions: a text is computed in one step, and nothing is cached."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ..errors import Error, TensorError
from ..ml import Backend, Context, DType, Tensor
from ..ml.node import Rows
from ..ml.ops.mixing import ORDER_ROW
from ..model.batch import Step
from ..model.cache import Cache, CacheSpec, LayerMemory, Rotation, Size
from .cells import Masks
from .order import Listed, Order, lists_size
from .specs import need_span


@dataclass(frozen=True)
class Bidirectional(CacheSpec):
    """A layer whose tokens see all tokens of their sequence in the same step.

    Attributes:
        window: position p sees q if |p − q| < window; None is no limit.
        rope: the rotation of the layer's keys, for `cache.rotate`.

    Raises:
        ConfigError: a window below one position.
    """

    window: int | None = None
    rope: Rotation | None = None
    single_step: ClassVar[bool] = True

    def __post_init__(self):
        if self.window is not None:
            need_span("window", self.window)

    @property
    def kind(self) -> Hashable:
        return ("bidirectional", self.window)

    def new_cache(
        self, backend: Backend, layers: Mapping[int, Bidirectional], dtype: DType, size: Size
    ) -> BidirectionalCache:
        return BidirectionalCache(backend, self, layers, dtype, size)


@dataclass(frozen=True)
class Placed:
    """The sight of one step's tokens.

    Attributes:
        mask: of the backend's mask dtype, [n, n] with paddings; None with an order, and when only
            reserving.
        lengths: int32 [sequences], before the step.
        order: in place of the mask where the backend's attention is ordered.
        lists: the numbers of its lists.
    """

    mask: np.ndarray | Rows | None = None
    lengths: np.ndarray | None = None
    order: Order | None = None
    lists: int = 0


class BidirectionalCache(Cache):
    """The masks of steps in which tokens see each other; it stores no keys and values."""

    def __init__(
        self,
        backend: Backend,
        spec: Bidirectional,
        layers: Mapping[int, Bidirectional],
        dtype: DType,
        size: Size,
    ):
        self.window, self.config, self.dtype = spec.window, backend.cache_config, dtype
        self.max_batch = self.ranges = size.max_batch  # each number of tokens takes a graph
        self.lengths = np.zeros(size.sequences, np.int32)
        self._ropes = {layer: declared.rope for layer, declared in layers.items()}
        self._masks = Masks(backend.cache_config)

    def start_forward(self, step: Step, reserve: bool = False) -> None:
        """Notes what tokens see, and the lengths before the step, in `step.placed[self]`.

        Raises:
            Error: a sequence does not start at position 0.
        """
        if reserve:
            step.placed[self] = Placed(lists=lists_size(len(step.positions)))
            return
        first = np.full(len(self.lengths), -1, np.int32)
        first[step.sequences[::-1]] = step.positions[::-1]
        if (first > 0).any():
            raise Error(
                f"sequence {int(first.argmax())} goes on at position {int(first.max())}; tokens "
                "that see each other in both directions are computed in one step, from 0 on"
            )
        lengths = self.lengths.copy()
        if self.config.ordered:
            order = self._order(step)
            lists = order.lists(len(step.positions))
            step.placed[self] = Placed(None, lengths, order, lists)
        else:
            step.placed[self] = Placed(self._mask(step), lengths)
        np.maximum.at(self.lengths, step.sequences, step.positions + 1)

    def _mask(self, step: Step) -> np.ndarray | Rows:
        n = len(step.positions)
        size = self._masks.padded(n)

        def visible(rows: slice) -> np.ndarray:
            alike = step.sequences[rows, None] == step.sequences
            if self.window is not None:
                distance = np.abs(step.positions[rows, None].astype(np.int64) - step.positions)
                alike &= distance < self.window
            return np.pad(alike, ((0, 0), (0, size - n)))

        return self._masks.by_rows(n, size, visible)

    def _order(self, step: Step) -> Order:
        sequences, which = np.unique(step.sequences, return_inverse=True)
        lists = [Listed(np.flatnonzero(step.sequences == s), 0) for s in sequences]
        which, positions = which.reshape(-1), step.positions.astype(np.int64)
        lengths = np.array([len(one.cells) for one in lists])[which]
        if self.window is None:
            return Order.of(lists, which, np.zeros_like(positions), lengths)
        first, end = positions - self.window + 1, positions + self.window
        return Order.of(lists, which, first, np.minimum(end, lengths))

    def undo(self, step: Step) -> None:
        placed: Placed = step.placed.pop(self, Placed())
        self.lengths = self.lengths if placed.lengths is None else placed.lengths

    def shape_key(self, step: Step) -> Hashable:
        return step.placed[self].lists  # and the number of tokens

    def layers(self, ctx: Context, step: Step) -> dict[int, LayerStep]:
        n = len(step.positions)
        if self.config.ordered:
            shape, dtype, size = (ORDER_ROW * n + step.placed[self].lists,), DType.I32, n
            mask = ctx.feed(lambda s: s.placed[self].order.numbers, dtype, *shape, name="order")
        else:
            size = self._masks.padded(n)
            shape, dtype = (size, self._masks.rows(n)), self.config.mask_dtype
            mask = ctx.feed(lambda s: s.placed[self].mask, dtype, *shape, name="mask")
        return {
            i: LayerStep(i, rope, mask, size, self.dtype, self.config.permuted_v)
            for i, rope in self._ropes.items()
        }

    def can_resume(self, sequence: int, position: int) -> bool:
        """Only from the beginning: nothing is remembered."""
        return position == 0

    def copy_prefix(self, source: int, target: int, n: int) -> None:
        self.lengths[target] = min(n, self.length(source))

    def remove(
        self, sequence: int, begin: int, end: int | None, moves: np.ndarray | None = None
    ) -> None:
        self.shorten(sequence, begin, end)

    def wipe(self, sequence: int) -> None:
        self.remove(sequence, 0, None)

    def close(self) -> None:
        """Nothing to free."""


class LayerStep(LayerMemory):
    """One layer's keys and values of a single step, in a graph being recorded.

    Args:
        mask: of tokens, or their order. size: the tokens that keys and values are padded to.
    """

    def __init__(
        self,
        layer: int,
        rope: Rotation | None,
        mask: Tensor,
        size: int,
        dtype: DType,
        permuted_v: bool,
    ):
        super().__init__(layer, rope)
        self.mask, self.size, self.dtype, self.permuted_v = mask, size, dtype, permuted_v
        self._kv: tuple[Tensor, Tensor] | None = None

    def put(self, k: Tensor, v: Tensor) -> None:
        self._take()
        more = self.size - k.dim(2)
        self._kv = (k.pad(0, 0, more), v.pad(0, 0, more)) if more else (k, v)

    def get(self) -> tuple[Tensor, Tensor, Tensor]:
        if self._kv is None:
            raise TensorError(f"get() before put() on the cache of layer {self.layer}")
        k, v = self._kv
        if self.permuted_v:
            v = v.permute(1, 2, 0).contiguous()
        return k.cast(self.dtype), v.cast(self.dtype), self.mask
