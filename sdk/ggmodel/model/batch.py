"""What `forward` sees of a batch, and the host arrays behind it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from ..errors import TensorError
from ..ml import Context, DType, Tensor

if TYPE_CHECKING:
    from .multimodal import Span

L = TypeVar("L")


@dataclass
class Step:
    """One batch of tokens as host arrays: what is computed in one run of a graph.

    Attributes:
        tokens, positions, sequences: int32 [n].
        outputs: int32 [m], the rows whose results are wanted; may be empty.
        groups: int32 [n]; tokens of one sequence with an equal number above 0, such as those of an
            image, see each other in both directions. They never spread over several steps. None is
            0 everywhere.
        placed: what each cache decided for this step, by cache.
        spans: embeddings of images, or some of their rows, that belong to inputs of this step.
        begun: its computation has begun: what was in its cells before is gone.
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
        """Tokens, outputs, and rows and width of the embeddings: what graphs depend on."""
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
        """The inputs that these rows fill, int32 [rows]."""
        filled = [np.arange(s.index, s.index + s.count, dtype=np.int32) for s in self.spans]
        return np.concatenate(filled)


class Batch:
    """A batch while its graph is recorded: tensors whose values arrive later.

    Attributes:
        size: number of inputs, n.
        inputs: I32 [n], token ids.
        positions: I32 [n].
        outputs: I32 [m], rows to give results for; not empty while recording.
        cache: for each layer what stores and returns what it remembers.
        multimodal: F32 [width, rows], the rows of the images that belong to inputs of this batch,
            one image after the other; None without any.
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
        """Each layer, what remembers for it, and the rows to go on with before its last residual is
        added: `outputs` in the last layer, None (all of them) before.

        Raises:
            TensorError: there are not as many layers as `caches` declared.
        """
        if len(layers) != len(self.cache):
            raise TensorError(f"{len(layers)} layers, but caches() declared {len(self.cache)}")
        last = len(layers) - 1
        for i, (layer, cache) in enumerate(zip(layers, self.cache, strict=True)):
            yield layer, cache, self.outputs if i == last else None

    def lay_images(self, x: Tensor) -> Tensor:
        """Replaces the rows of x F32 [width, n], a tensor just computed, that images fill.

        Raises:
            TensorError: their width is another one.
        """
        if self.multimodal is None:
            return x
        at = self.ctx.feed(lambda s: s.filled, DType.I32, self._rows, name="filled")
        return x.set_rows(self.multimodal, at)

    def feed(self, fill: Callable[[Step], Any], dtype: DType, *shape: int) -> Tensor:
        """An input derived from the batch: `fill(step)` is called before each run and returns an
        array that broadcasts to the reversed shape."""
        return self.ctx.feed(fill, dtype, *shape)
