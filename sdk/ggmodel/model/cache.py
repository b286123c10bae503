"""The contract of a cache: a model's declaration of one, and a layer's memory in a graph.

A `CacheSpec` declares the memory of one layer; a `Cache` holds that memory for all layers of one
kind. The kinds themselves are in `ggmodel.kvcache`.

The life of a step in a cache:

    start_forward ──→ placed ──→ begun ──→ computed ──→ advance ──→ placed (the next tokens)
                        │          │           │
                        └── undo ──┴── undo ───┴──→ not placed

- Placed: `step.placed[cache]` holds the cells of its tokens, its mask, and the state before it.
- Begun: `step.begun` is set right before the computation, which overwrites those cells.
- Computed: the cache remembers the tokens. Nothing marks this state: the next `start_forward`
  of another step may follow.
- `undo` takes back the latest step only, in each of these states. A step that has not begun leaves
  no trace. A step that has begun has overwritten cells that were given up for it: these stay lost.
- `advance` reuses the step object, and with it the recorded graph, for the next token of the same
  sequences. It works only directly after the step's own computation.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np

from ..errors import TensorError
from ..ml import Backend, Context, DType, Tensor
from ..ml.node import Node
from .batch import Step

# Ops behind which a rotation of keys no longer shows: they mix elements or rows.
_MIXING = {
    "mulmat", "mulmat_id", "flash_attention", "softmax", "rows", "conv_1d", "conv_2d", "conv_3d",
    "depthwise_conv_1d", "depthwise_conv_2d", "conv_transpose_1d", "conv_transpose_2d",
    "window_partition", "window_unpartition", "roll", "pad_reflect",
}  # fmt: skip


class Rotation(Protocol):
    """A rotation of heads by position; `nn.Rope` is one."""

    @property
    def components(self) -> int:
        """Components of a position, k."""
        ...

    def __call__(self, x: Tensor, positions: Tensor, /) -> Tensor:
        """x [head dim, heads, n] rotated by positions I32 [k·n], component after component."""
        ...

    def move(self, x: Tensor, amounts: Tensor, /) -> Tensor:
        """x [head dim, heads, n], rotated before, by amounts I32 [k·n] more."""
        ...

    def made(self, op: Node, /) -> bool:
        """Whether an op "rope" rotates as this does."""
        ...


class LayerMemory(ABC):
    """One layer's memory in a graph being recorded: an entry of `Batch.cache`.

    Attributes:
        layer: its number.
        rope: the rotation of its keys that `caches()` declares; None if they are not rotated.
        shares: the number of the layer whose keys and values it reads; nothing is `put` then. None
            if it has its own.
        spreads: keys and values are stored, and given by `get`, in the form of `spread`.
        max_bias: of ALiBi, for `Tensor.scaled_dot_product_attention`: the mask of `get` holds
            distances then. 0 is none.
    """

    shares: int | None = None
    spreads: bool = False

    def __init__(self, layer: int, rope: Rotation | None = None, max_bias: float = 0.0):
        self.layer, self.rope, self.max_bias = layer, rope, max_bias
        self._rotated: set[int] = set()  # nodes
        self._filled = False

    @abstractmethod
    def put(self, k: Tensor, v: Tensor) -> None:
        """Stores keys k [d, kv heads, n] and values v [dv, kv heads, n] of this batch.

        Raises:
            Unsupported: blocks of the cache's dtype do not divide d or dv.
            TensorError: a second call in one forward, a batch with nothing to store, or keys that
                are rotated otherwise than `caches()` declares.
        """

    @abstractmethod
    def get(self) -> tuple[Tensor, Tensor, Tensor]:
        """Keys [d, kv heads, m], values [dv, kv heads, m] (with the backend's `permuted_v`
        [m, dv, kv heads]) and the mask [m, n].

        Raises:
            TensorError: called before `put` in a batch with something to store, or nothing is
                stored that the batch could see.
        """

    def spread(self, x: Tensor) -> Tensor:
        """Queries [d, heads, n] for the keys that `get` gives; or what attention makes of its
        values, [dv, heads, n], in the model's form again."""
        return x

    def _take(self) -> None:
        """Notes that `put` was called; raises its error for a second call."""
        if self._filled:
            raise TensorError(
                f"the cache of layer {self.layer} was given keys and values twice in one forward; "
                "each layer has its own, batch.cache[i]"
            )
        self._filled = True

    def rotate(self, x: Tensor, positions: Tensor) -> Tensor:
        """Queries or keys x [head dim, heads, n], rotated by positions I32 [k·n] with the rope that
        `caches()` declares.

        Raises:
            TensorError: it declares none for this layer.
        """
        if self.rope is None:
            raise TensorError(
                f"layer {self.layer} rotates, but caches() declares no rope for it; declare one, "
                "such as Causal(rope)"
            )
        rotated = self.rope(x, positions)
        self._rotated.add(rotated.uid)
        return rotated

    def check_rotation(self, k: Tensor) -> None:
        """Checks that keys about to be stored are rotated as `caches()` declares: moving them to
        other positions is wrong otherwise. Keys that no projection made may be anything.

        Raises:
            TensorError: they are not.
        """
        ropes, projected = self._rotations(k)
        declared = f"caches() declares {self.rope or 'no rope'}"
        advice = "; declare the rope in caches() alone and use cache.rotate(k, batch.positions)"
        for op in ropes:
            if self.rope is None or not self.rope.made(op):
                used = ", ".join(f"{k}={v}" for k, v in op.attrs.items())
                raise TensorError(
                    f"layer {self.layer} rotates its keys by rope({used}), but {declared}{advice}"
                )
        if projected and self.rope is not None:
            raise TensorError(
                f"layer {self.layer} stores keys that it has not rotated, but {declared}{advice}"
            )

    def _rotations(self, k: Tensor) -> tuple[list[Node], bool]:
        """The ops "rope" behind keys that `rotate` did not record, and whether keys come from a
        projection without any rotation."""
        ropes: list[Node] = []
        bare = rotated = False
        todo, visited = list[Node]([k]), set[int]()
        while todo:
            node = todo.pop()
            if node.uid in visited or node.op is None:
                continue
            visited.add(node.uid)
            if node.uid in self._rotated:
                rotated = True
            elif node.op.name == "rope":
                ropes.append(node)
            elif node.op.name in _MIXING:
                bare = True
            else:
                todo += [x for x in node.sources if x is not None]
        return ropes, bare and not rotated and not ropes


@dataclass(frozen=True)
class Size:
    """The room that a cache has.

    Attributes:
        sequences: they are numbered 0 to sequences − 1.
        capacity: positions a sequence.
        max_batch: the most tokens in a step.
    """

    sequences: int
    capacity: int
    max_batch: int


@dataclass(frozen=True)
class Saved:
    """A copy of positions of a sequence, see `Cache.save`.

    Attributes:
        length: the position behind the last one.
        parts: for each cache that shares in the sequence its arrays, all of an equal first
            dimension: those of neighbouring positions are joined by `of`. None if it holds too
            little of these positions to go on from them.
    """

    length: int
    parts: Sequence[Sequence[np.ndarray] | None]

    @property
    def nbytes(self) -> int:
        """Its size in the host's memory."""
        return sum(array.nbytes for part in self.parts for array in part or ())

    @property
    def complete(self) -> bool:
        """Whether every part is there."""
        return all(part is not None for part in self.parts)

    @classmethod
    def of(cls, length: int, pieces: Sequence[Sequence[Sequence[np.ndarray]]]) -> Saved:
        """A copy joined of pieces, for each part those of its neighbouring positions in order.

        Raises:
            ValueError: the pieces of a part do not fit each other.
        """

        def joined(column: Sequence[np.ndarray]) -> np.ndarray:
            return np.concatenate(column) if len(column) > 1 else column[0]

        return cls(length, [[joined(c) for c in zip(*each, strict=True)] for each in pieces])


class CacheSpec(ABC):
    """The memory of one layer, as data: an entry of `Model.caches()`.

    Attributes:
        stores_images: the layer stores the rows of images itself; otherwise they replace inputs.
        single_step: a sequence is computed in one step, and never continued.
        can_rewind: the latest positions of a sequence can be removed one by one.
    """

    stores_images: ClassVar[bool] = False
    single_step: ClassVar[bool] = False
    can_rewind: ClassVar[bool] = True

    @property
    @abstractmethod
    def kind(self) -> Hashable:
        """Layers of equal kind share one cache."""

    @abstractmethod
    def new_cache(
        self, backend: Backend, layers: Mapping[int, Any], dtype: DType, size: Size
    ) -> Cache:
        """A cache for all layers of this kind.

        Args:
            layers: layer number → its declaration.
            dtype: of keys and values.

        Raises:
            Unsupported: a dtype that keys and values cannot have.
            OutOfMemory: the host has no memory for the bookkeeping.
        """


class Cache(ABC):
    """The memory of some or all layers of a model, for several sequences; the states of a step are
    drawn above.

    Attributes:
        max_batch: the most tokens in a step.
        lengths: int32 [sequences], the next position of each.
        advances: whether `advance` can work.
        ranges: how many ranges of cells attention may read; each takes a recorded graph.
    """

    max_batch: int
    lengths: np.ndarray
    advances: bool = False
    ranges: int = 1

    @abstractmethod
    def start_forward(self, step: Step, reserve: bool = False) -> None:
        """Places a step: finds room for its tokens and notes it in `step.placed[self]`.

        Args:
            reserve: nothing is stored; the step is laid out as if the cache were full.

        Raises:
            KvCacheFull: there is no room; nothing has changed.
        """

    def advance(self, step: Step) -> bool:
        """Places a computed step again, for the next token of each of its sequences.

        `step.positions` are those of the new tokens already; `step.placed` is updated.

        Returns:
            False if more than one new cell a token would be needed, or if the cache has changed
            since the computation. The cache is unchanged then, and the step must be dropped.
        """
        del step
        return False

    @abstractmethod
    def undo(self, step: Step) -> None:
        """Takes back the latest `start_forward` or `advance`.

        Restores the state before the step. If the step has begun, cells that it took from earlier
        positions stay lost, because the computation may have overwritten them. No effect on a step
        that is not placed here.
        """

    @abstractmethod
    def shape_key(self, step: Step) -> Hashable:
        """The part of a placed step that selects a recorded graph, besides its numbers of tokens
        and outputs."""

    @abstractmethod
    def layers(self, ctx: Context, step: Step) -> dict[int, Any]:
        """Layer number → the layer's memory in a graph being recorded for steps like this placed
        one: a `LayerMemory`, or an object of the kind's own."""

    def length(self, sequence: int) -> int:
        """The next position: the highest one + 1; 0 if the sequence is empty."""
        return int(self.lengths[sequence])

    def shorten(self, sequence: int, begin: int, end: int | None) -> None:
        """Takes positions begin to end (None: all from begin on) out of the length."""
        length = self.length(sequence)
        if begin < length and (end is None or begin < end):
            self.lengths[sequence] = begin + (0 if end is None else max(0, length - end))

    @abstractmethod
    def can_resume(self, sequence: int, position: int) -> bool:
        """Whether `position` can come next, after `remove(sequence, position, None)`: everything
        that it sees is remembered. Always true of 0."""

    def resume_point(self, sequence: int, position: int) -> int:
        """The latest known position up to `position` that `can_resume`; 0 if there is no other."""
        position = min(position, self.length(sequence))
        return position if self.can_resume(sequence, position) else 0

    def allocate(self, sequence: int, length: int) -> None:
        """Allocates cells for the positions that a sequence will probably have, so many in all: a
        hint where its next ones lie best. 0 ends the allocation: its free cells are others'."""
        del sequence, length

    @abstractmethod
    def copy_prefix(self, source: int, target: int, n: int) -> None:
        """Makes positions 0 to n of `source` the whole of `target`; nothing is computed."""

    def save(self, sequence: int, begin: int = 0, end: int | None = None) -> Saved | None:
        """A copy of positions begin to end (None: all that there are) of a sequence, in the host's
        memory, for `restore`; None if this kind of cache cannot give it away."""
        del sequence, begin, end

    def restore(self, sequence: int, saved: Saved) -> None:
        """Makes what was saved from position 0 on, of any sequence, the whole of this one: the same
        bits. Positions that nothing later sees may be left out, see `needs_from`.

        Raises:
            KvCacheFull: there is no room; the sequence is empty then.
        """
        raise NotImplementedError  # where `save` gives something

    def needs_from(self, length: int) -> Sequence[int]:
        """For each part of `Saved` the first position that going on at `length` needs."""
        del length
        return (0,)

    def check_remove(self, sequence: int, begin: int, end: int | None) -> None:
        """Raises the error with which `remove` would refuse; changes nothing."""
        del sequence, begin, end

    @abstractmethod
    def remove(
        self, sequence: int, begin: int, end: int | None, moves: np.ndarray | None = None
    ) -> None:
        """Forgets positions begin to end (None: all from begin on); later ones move down.

        Args:
            moves: int32 [length − end, k], by how much the position components of later ones
                change, see `Model.positions`; None is begin − end for each.

        Raises:
            Error: it cannot be done. An empty sequence can be continued after
                `remove(sequence, 0, None)`, which never fails.
        """

    @abstractmethod
    def wipe(self, sequence: int) -> None:
        """Forgets a sequence and overwrites its own cells with zeros. A NaN left in a free cell
        would spread: plain attention multiplies masked cells by a weight of zero."""

    @abstractmethod
    def close(self) -> None:
        """Frees the memory; idempotent."""
