"""What `forward` sees of a batch, and the host arrays behind it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..ml import Context, DType, Tensor

if TYPE_CHECKING:
    import numpy as np


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
    """

    tokens: np.ndarray
    positions: np.ndarray
    sequences: np.ndarray
    outputs: np.ndarray
    groups: np.ndarray | None = None
    placed: dict[Any, Any] = field(default_factory=dict, kw_only=True)


class Batch:
    """A batch while its graph is recorded: tensors whose values arrive later.

    Attributes:
        size: number of inputs, n.
        inputs: I32 [n], token ids.
        positions: I32 [n].
        outputs: I32 [m], rows to give results for; not empty while recording.
        cache: for each layer what stores and returns what it remembers.
        multimodal: (index into the inputs, tensor) of each embedding to lay over the inputs.
    """

    def __init__(self, ctx: Context, size: int, n_outputs: int, cache: Mapping[int, Any]):
        self.ctx = ctx
        self.size = size
        self.cache = [cache[layer] for layer in sorted(cache)]
        self.multimodal: tuple[tuple[int, Tensor], ...] = ()
        i32 = DType.I32
        self.inputs = ctx.feed(lambda s: s.tokens, i32, size, name="tokens")
        self.positions = ctx.feed(lambda s: s.positions, i32, size, name="positions")
        self.outputs = ctx.feed(
            lambda s: s.outputs, i32, max(1, n_outputs), trusted=True, name="outputs"
        )

    def feed(self, fill: Callable[[Step], Any], dtype: DType, *shape: int) -> Tensor:
        """An input derived from the batch: `fill(step)` is called before each run and returns an
        array that broadcasts to the reversed shape."""
        return self.ctx.feed(fill, dtype, *shape)
