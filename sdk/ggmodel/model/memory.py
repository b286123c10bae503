"""A layer's memory in a graph being recorded, as attention sees it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Protocol

from ..errors import TensorError
from ..ml import Part, Tensor
from ..ml.node import Node

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
        parts: for `Tensor.scaled_dot_product_attention`; the mask of `get` is made for them.
        shares: the number of the layer whose keys and values it reads; nothing is `put` then. None
            if it has its own.
    """

    parts: tuple[Part, ...] = ()
    shares: int | None = None

    def __init__(self, layer: int, rope: Rotation | None = None):
        self.layer, self.rope = layer, rope
        self._rotated: set[int] = set()  # nodes
        self._given = False

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

    def _take(self) -> None:
        """Notes that `put` was called; raises its error for a second call."""
        if self._given:
            raise TensorError(
                f"the cache of layer {self.layer} was given keys and values twice in one forward; "
                "each layer has its own, batch.cache[i]"
            )
        self._given = True

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
        found: list[Node] = []
        bare = rotated = False
        todo, seen = list[Node]([k]), set[int]()
        while todo:
            node = todo.pop()
            if node.uid in seen or node.op is None:
                continue
            seen.add(node.uid)
            if node.uid in self._rotated:
                rotated = True
            elif node.op.name == "rope":
                found.append(node)
            elif node.op.name in _MIXING:
                bare = True
            else:
                todo += [x for x in node.sources if x is not None]
        return found, bare and not rotated and not found
