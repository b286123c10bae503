"""A batch as `forward` sees it, and the host arrays behind it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, TypeVar

import numpy as np

from ..errors import TensorError
from ..ml import Context, DType, Tensor
from .multimodal import Span

L = TypeVar("L")


@dataclass
class Step:
    """One batch of tokens as host arrays, computed in one run of a graph. `model.cache` draws its
    states in a cache.

    Attributes:
        tokens, positions, sequences: int32 [n].
        outputs: int32 [m], the rows whose results are wanted; may be empty.
        groups: int32 [n]; tokens of one sequence with an equal number above 0, such as those of an
            image, see each other in both directions. They are always in one step. None is 0
            everywhere.
        placed: cache → its notes on this step.
        spans: rows of images that belong to inputs of this step.
        begun: the computation has begun, and has overwritten its cells.
    """

    tokens: np.ndarray
    positions: np.ndarray
    sequences: np.ndarray
    outputs: np.ndarray
    groups: np.ndarray | None = None
    placed: dict[Any, Any] = field(default_factory=dict, kw_only=True)
    spans: tuple[Span, ...] = field(default=(), kw_only=True)
    begun: bool = field(default=False, kw_only=True)

    @property
    def shape(self) -> tuple[int, int, tuple[int, int]]:
        """(tokens, outputs, (rows, width) of the spans): graphs depend on these."""
        rows = width = 0
        if self.spans:
            rows = sum(span.count for span in self.spans)
            width = self.spans[0].embedding.width
        return len(self.tokens), len(self.outputs), (rows, width)

    def compute_images(self) -> None:
        """Computes the images of all spans that have not been."""
        for span in self.spans:
            span.embedding.compute()

    @property
    def rows(self) -> np.ndarray:
        """The rows of all spans, float32 [rows, width]."""
        return np.concatenate([span.rows for span in self.spans])

    @property
    def filled(self) -> np.ndarray:
        """The inputs that the rows of all spans fill, int32 [rows]."""
        filled = [np.arange(s.index, s.index + s.count, dtype=np.int32) for s in self.spans]
        return np.concatenate(filled)


class Batch:
    """A batch while its graph is recorded: tensors whose values arrive later.

    Attributes:
        size: number of inputs, n.
        inputs: I32 [n], token ids.
        positions: I32 [n].
        outputs: I32 [m], rows to give results for; not empty while recording.
        cache: the memory of each layer, a `LayerMemory` or an object of the cache's own.
        states: F32 [width, outputs], the hidden states of `outputs`, once they are recorded.
        multimodal: F32 [width, rows], the rows of the images that belong to inputs of this batch,
            one image after the other; None without images.
    """

    def __init__(
        self,
        ctx: Context,
        size: int,
        n_outputs: int,
        cache: Mapping[int, Any],
        embedded: tuple[int, int] = (0, 0),
    ):
        self.ctx = ctx
        self.size = size
        self.cache = [cache[layer] for layer in sorted(cache)]
        self.states: Tensor | None = None
        self._rows, width = embedded
        self.multimodal: Tensor | None = None
        if self._rows:
            self.multimodal = ctx.feed(
                lambda s: s.rows, DType.F32, width, self._rows, name="multimodal"
            )
        i32 = DType.I32
        self.inputs = ctx.feed(attrgetter("tokens"), i32, size, name="tokens")
        self.positions = ctx.feed(attrgetter("positions"), i32, size, name="positions")
        self.outputs = ctx.feed(
            attrgetter("outputs"), i32, max(1, n_outputs), trusted=True, name="outputs"
        )

    def through(self, layers: Sequence[L]) -> Iterator[tuple[L, Any, Tensor | None]]:
        """Each layer, its memory, and the rows to keep after its attention: `outputs` in the last
        layer, None (all rows) before.

        Raises:
            TensorError: another number of layers than `caches` declared.
        """
        if len(layers) != len(self.cache):
            raise TensorError(f"{len(layers)} layers, but caches() declared {len(self.cache)}")
        last = len(layers) - 1
        for i, (layer, cache) in enumerate(zip(layers, self.cache, strict=True)):
            yield layer, cache, self.outputs if i == last else None

    def lay_images(self, x: Tensor) -> Tensor:
        """Replaces rows of x F32 [width, n], which an op has computed, by those of images.

        Raises:
            TensorError: images have another width.
        """
        if self.multimodal is None:
            return x
        at = self.ctx.feed(lambda s: s.filled, DType.I32, self._rows, name="filled")
        return x.set_rows(self.multimodal, at)

    def feed(self, fill: Callable[[Step], Any], dtype: DType, *shape: int) -> Tensor:
        """An input that follows from the step: `fill(step)` is called before each run and returns
        an array that broadcasts to the reversed shape."""
        return self.ctx.feed(fill, dtype, *shape)
