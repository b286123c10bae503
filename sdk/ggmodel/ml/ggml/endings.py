"""Biases, activations, factors and residuals that join the op before them (native/finish.h).

An encoder's product is followed by a bias, an activation and a residual, a decoder's by an
activation and a factor, if it is a gate: as ops of ggml each reads and writes all elements, and all
threads wait for it. A product by our own kernels ends its elements
itself, while they are in the core's cache; behind other ops, one op does. Elements have the same
bits either way.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ...gguf_file.types import DType
from ..executable import WRITES
from ..node import Node, Weight

ACTIVATIONS = ("", "relu", "gelu", "gelu_erf", "quick_gelu", "silu")
"""Ops by their numbers in native/products.h."""


@dataclass
class Ending:
    """Ops that are computed as one: activation(x + bias) · factor + residual.

    Attributes:
        x: F32 [m, …], what they change.
        in_product: x is a product that ends its elements itself, and has no tensor.
        ops: they, in order; only the last one has a tensor.
        bias: the adding op and the number of its operand F32 [m]. factor, residual: likewise
            [m, …].
        activation: a number of `ACTIVATIONS`.
    """

    x: Node
    in_product: bool
    ops: list[Node] = field(default_factory=list)
    bias: tuple[Node, int] | None = None
    activation: int = 0
    factor: tuple[Node, int] | None = None
    residual: tuple[Node, int] | None = None

    @property
    def pays(self) -> bool:
        """Whether fewer ops are left, or one by a faster kernel."""
        return len(self.ops) > 1 - self.in_product or bool(self.activation)

    @property
    def inner(self) -> list[Node]:
        """The nodes without a tensor."""
        return [self.x, *self.ops[:-1]] if self.in_product else self.ops[:-1]

    def take(self, op: Node) -> bool:
        """Whether an op joins; it is the only one that reads the last."""
        x = self.ops[-1] if self.ops else self.x
        assert op.op is not None
        if self.residual or op.ne != x.ne or not (_is_dense(x) and _is_dense(op)):
            return False
        name, i = op.op.name, 1 if op.sources[0] is x else 0
        activates = name.removeprefix("gated_") in ACTIVATIONS
        if (self.factor and name != "add") or (self.activation and activates):
            return False
        if (name == "mul" or (i and name.startswith("gated_"))) and self._matches(op, i):
            self.factor = op, i
        elif name not in ACTIVATIONS and (name != "add" or not self._adds(op, i)):
            return False
        if activates:
            self.activation = ACTIVATIONS.index(name.removeprefix("gated_"))
        self.ops.append(op)
        return True

    def _adds(self, op: Node, i: int) -> bool:
        """Whether operand i of an addition is a bias or a residual of these ops."""
        other = op.sources[i]
        assert other is not None
        if i and not self.ops and _is_bias(other, op):
            self.bias = op, i
        elif self._matches(op, i):
            self.residual = op, i
        else:
            return False
        return True

    def _matches(self, op: Node, i: int) -> bool:
        """Whether operand i lies as the results do."""
        other = op.sources[i]
        return other is not None and _is_dense(other) and other.ne == op.ne


def endings(
    schedule: Sequence[Node], outputs: Sequence[Node], ends: Callable[[Node], bool]
) -> dict[int, Ending]:
    """The endings in a schedule by the uid of their last op.

    Args:
        outputs: nodes whose values are kept.
        ends: whether an op is a product that ends its elements itself.
    """
    readers: dict[int, list[Node | None]] = {node.uid: [None] for node in outputs}
    for node in schedule:
        for x in node.sources:
            if x is not None:
                readers.setdefault(x.uid, []).append(node)
    places = {node.uid: i for i, node in enumerate(schedule)}
    writes = [i for i, x in enumerate(schedule) if x.op is not None and x.op.name in WRITES]
    by_last: dict[int, Ending] = {}
    taken: set[int] = set()
    for node in schedule:
        ending = None if node.uid in taken else _begun(node, ends)
        last = node
        while ending is not None and len(after := readers.get(last.uid, ())) == 1:
            op = after[0]
            if op is None or op.uid in taken or not ending.take(op):
                break
            last = op
        if ending is None or not ending.pays:
            continue
        # Nothing moves behind an op that writes into memory which others may read.
        if bisect(writes, places[node.uid]) == bisect(writes, places[last.uid]):
            by_last[last.uid] = ending
            taken |= {op.uid for op in ending.ops}
    return by_last


def _begun(node: Node, ends: Callable[[Node], bool]) -> Ending | None:
    """An ending that a product, or the first of its ops, begins."""
    x = node.sources[0] if node.sources else None
    if x is None or ends(node):
        return None if x is None else Ending(node, True)
    ending = Ending(x, False)
    begins = ending.take(node) and ending.residual is None
    return ending if begins and (ending.activation or not ending.factor) else None


def _is_dense(x: Node) -> bool:
    return x.dtype is DType.F32 and x.is_contiguous and bool(x.n_elements)


def _is_bias(x: Node, of: Node) -> bool:
    one = x.ne[0] == x.n_elements == of.ne[0]
    return one and isinstance(x.storage, Weight) and _is_dense(x)
