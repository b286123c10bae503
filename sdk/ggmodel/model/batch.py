"""A batch as `forward` sees it, and the host arrays behind it."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from ..errors import TensorError
from ..ml import Context, DType, Tensor
from .multimodal import Span

if TYPE_CHECKING:
    from typing_extensions import Self

L = TypeVar("L")


@dataclass(eq=False)
class Adapted:
    """The rows of a step that an adapter changes.

    Attributes:
        adapter: of the engine's; steps with the same one share graphs.
        strengths: float32 [n], of its change; 0 for tokens that it leaves alone.
    """

    adapter: Any
    strengths: np.ndarray

    def key(self, outputs: np.ndarray) -> tuple[Hashable, ...]:
        """The adapter, and `layout` of all rows and of those of the outputs: graphs depend on
        these."""
        return self.adapter, *map(self.layout, (self.strengths, self.strengths[outputs]))

    @staticmethod
    def layout(strengths: np.ndarray) -> int:
        """The number of rows that are changed; −1 for all of them, by one strength."""
        if not len(strengths) or (strengths != strengths[0]).any():
            return int(np.count_nonzero(strengths))
        return -1 if strengths[0] else 0


@dataclass
class Step:
    """One batch of tokens as host arrays, computed in one run of a graph. `model.cache` draws its
    states in a cache.

    Attributes:
        tokens, positions, sequences: int32 [n]; a position is the place in its sequence.
        outputs: int32 [m], the rows whose results are wanted; may be empty.
        groups: int32 [n]; tokens of one sequence with an equal number above 0, such as those of an
            image, see each other in both directions. They are always in one step. None is 0
            everywhere.
        placed: cache → its notes on this step.
        spans: rows of images and other items that belong to inputs of this step.
        components: int32 [k, n], see `Model.positions`; None if a model has no positions of its
            own.
        segments: int32 [n], the text of a pair that each token belongs to, 0 or 1; None is 0
            everywhere.
        begun: the computation has begun, and has overwritten its cells.
        adapted: the rows that adapters change.
        tentative: sequences whose latest tokens may be taken back after the step: a cache that
            cannot remove them one by one remembers where they began.
        probes: captures and patches of requests, each with its rows.
    """

    tokens: np.ndarray
    positions: np.ndarray
    sequences: np.ndarray
    outputs: np.ndarray
    groups: np.ndarray | None = None
    placed: dict[Any, Any] = field(default_factory=dict, kw_only=True)
    spans: tuple[Span, ...] = field(default=(), kw_only=True)
    components: np.ndarray | None = field(default=None, kw_only=True)
    segments: np.ndarray | None = field(default=None, kw_only=True)
    begun: bool = field(default=False, kw_only=True)
    adapted: tuple[Adapted, ...] = field(default=(), kw_only=True)
    tentative: frozenset[int] = field(default=frozenset(), kw_only=True)
    probes: tuple[Any, ...] = field(default=(), kw_only=True)

    @classmethod
    def blank(cls, n: int, outputs: int, components: int = 0, **attributes: Any) -> Self:
        """A step for recording graphs: n zeros everywhere, of which the first have outputs.

        Args:
            components: see `Model.own_components`.
            attributes: further ones.
        """
        zeros = np.zeros(n, np.int32)
        own = np.zeros((components, n), np.int32) if components else None
        return cls(zeros, zeros, zeros, zeros[:outputs], components=own, **attributes)

    @property
    def shape(self) -> tuple[int, int, tuple[int, ...]]:
        """(tokens, outputs, (rows of the spans, their width, widths of their parts …)): graphs
        depend on these."""
        embedded: tuple[int, ...] = (0, 0)
        if self.spans:
            rows = sum(span.count for span in self.spans)
            widths = max((span.embedding.widths for span in self.spans), key=len)
            embedded = rows, self.spans[0].embedding.width, *widths
        return len(self.tokens), len(self.outputs), embedded

    @property
    def adapted_key(self) -> tuple[Hashable, ...]:
        """Equal for steps whose graphs have the same changes by adapters."""
        return tuple(one.key(self.outputs) for one in self.adapted)

    def adapt(self, adapters: Sequence[tuple[Any, float]]) -> Self:
        """Has adapters change all rows, each by its strength; the step itself."""
        ones = np.ones(len(self.tokens), np.float32)
        self.adapted = tuple(Adapted(one, ones * strength) for one, strength in adapters)
        return self

    def compute_images(self) -> None:
        """Computes the items of all spans that have not been."""
        for span in self.spans:
            span.embedding.compute()

    @property
    def rows(self) -> np.ndarray:
        """The rows of all spans, float32 [rows, width]."""
        return np.concatenate([span.rows for span in self.spans])

    def part(self, index: int, width: int) -> np.ndarray:
        """Part `index` of the rows of all spans, float32 [rows, width]; zeros for spans that have
        no such part."""
        parts = ((span.part(index), span.count) for span in self.spans)
        return np.concatenate(
            [np.zeros((n, width), np.float32) if p is None else p for p, n in parts]
        )

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
        positions: I32 [n], the places in their sequences. For a model with `Model.positions` of
            its own I32 [k · n], these, one component after the other.
        outputs: I32 [m], rows to give results for; not empty while recording.
        n_outputs: m of the steps to compute; 0 where they fill the cache alone.
        cache: the memory of each layer, a `LayerMemory` or an object of the cache's own.
        states: F32 [width, outputs], the hidden states of `outputs`, once they are recorded.
        multimodal: F32 [width, rows], the rows of the images and other items that belong to inputs
            of this batch, one item after the other; None without any.
        whole: the last layer computes all rows, too: somebody looks at them.
    """

    def __init__(
        self,
        ctx: Context,
        size: int,
        n_outputs: int,
        cache: Mapping[int, Any],
        embedded: tuple[int, ...] = (0, 0),
        components: int = 0,
    ):
        self.ctx = ctx
        self.size, self.n_outputs = size, n_outputs
        self.cache = [cache[layer] for layer in sorted(cache)]
        self.states: Tensor | None = None
        self.whole = False
        self._rows, width, *self._widths = embedded
        self._filled: Tensor | None = None
        self.multimodal: Tensor | None = None
        if self._rows:
            self.multimodal = ctx.feed(
                lambda s: s.rows, DType.F32, width, self._rows, name="multimodal"
            )
        i32 = DType.I32
        self.inputs = ctx.feed(attrgetter("tokens"), i32, size, name="tokens")
        places = (lambda s: s.components.reshape(-1)) if components else attrgetter("positions")
        self.positions = ctx.feed(places, i32, (components or 1) * size, name="positions")
        self.outputs = ctx.feed(
            attrgetter("outputs"), i32, max(1, n_outputs), trusted=True, name="outputs"
        )

    def through(self, layers: Sequence[L]) -> Iterator[tuple[L, Any, Tensor | None]]:
        """Each layer, its memory, and the rows to keep after its attention: `outputs` in the last
        layer, unless the batch is `whole`, None (all rows) before.

        Raises:
            TensorError: another number of layers than `caches` declared.
        """
        if len(layers) != len(self.cache):
            raise TensorError(f"{len(layers)} layers, but caches() declared {len(self.cache)}")
        last = len(layers) - 1
        for i, (layer, cache) in enumerate(zip(layers, self.cache, strict=True)):
            yield layer, cache, self.outputs if i == last and not self.whole else None

    def merge_embeddings(self, x: Tensor) -> Tensor:
        """Replaces rows of x F32 [width, n], which an op has computed, by those of images and
        other items.

        Raises:
            TensorError: items have another width.
        """
        return x if self.multimodal is None else x.set_rows(self.multimodal, self._at)

    def add(self, x: Tensor, part: int) -> Tensor:
        """Adds part `part` of the items' rows to x F32 [width, n], which an op has computed, at
        their inputs; see `Multimodal.parts`. Without such a part it is x.

        Raises:
            TensorError: the part has another width, or x not a row for each input.
        """
        if part >= len(self._widths):
            return x
        if x.n_elements != x.dim(0) * self.size:
            raise TensorError(
                f"{x.describe()} has not a row for each of {self.size} inputs: add parts before "
                "the rows of the outputs are taken"
            )
        width = self._widths[part]
        rows = self.ctx.feed(lambda s: s.part(part, width), DType.F32, width, self._rows)
        return x.set_rows(x.rows(self._at) + rows, self._at)

    @property
    def _at(self) -> Tensor:
        """I32 [rows], the inputs that the items' rows fill."""
        if self._filled is None:
            self._filled = self.ctx.feed(lambda s: s.filled, DType.I32, self._rows, name="filled")
        return self._filled

    def feed(self, fill: Callable[[Step], Any], dtype: DType, *shape: int) -> Tensor:
        """An input that follows from the step: `fill(step)` is called before each run and returns
        an array that broadcasts to the reversed shape."""
        return self.ctx.feed(fill, dtype, *shape)
