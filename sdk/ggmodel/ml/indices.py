"""Indices that come from outside are checked before an op computes with them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from ..errors import ComputeError
from .graph import Graph
from .node import Node
from .storage import Feed, Weight

# The ops whose integer operand selects rows: where the indices, the rows and their dim are.
_INDEXED = {"rows": (1, 0, 1), "set_rows": (2, 0, 1), "mulmat_id": (2, 0, 2), "add_id": (2, 1, 1)}
# Ops that hand on values as they are, so that what they read can be checked in their stead.
_MOVES = frozenset({"contiguous", "duplicate", "reshape", "repeat", "concat", "cast"})


@dataclass(frozen=True)
class IndexCheck:
    """Values that an op takes for indices below `bound`."""

    op: Node
    leaf: Node
    values: np.ndarray
    bound: int

    def run(self) -> None:
        """Raises `ComputeError` where one is out of range."""
        if not self.values.size:
            return
        lo, hi = self.values.min(), self.values.max()
        if not (lo > -1 and hi < self.bound):  # floats are truncated by the op; NaN is refused
            assert self.op.op is not None
            raise ComputeError(
                f"{self.op.op.name}: {self.leaf.describe()} selects rows {lo} to {hi} of "
                f"{self.bound}\n  at {self.op.site}"
            )


def index_checks(graph: Graph, inputs: Mapping[Node, np.ndarray]) -> list[IndexCheck]:
    """The inputs that select rows, each with the number of rows there are.

    Trusted feeds answer for themselves (see `Feed`), and indices that were computed for whatever
    computed them. Those in weights are checked here, once.

    Args:
        inputs: where the values of the graph's inputs will lie: arrays of the reversed shape.

    Raises:
        ComputeError: an index in a weight is out of range.
    """
    checks: list[IndexCheck] = []
    for node in graph.schedule:
        assert node.op is not None
        places = _INDEXED.get(node.op.name)
        if places is None:
            continue
        ids, table = node.sources[places[0]], node.sources[places[1]]
        assert ids is not None and table is not None
        bound = table.ne[places[2]]
        for part in _leaves(ids):
            leaf = part.base or part
            if leaf in inputs and not (isinstance(leaf.storage, Feed) and leaf.storage.trusted):
                checks.append(IndexCheck(node, leaf, _part(inputs[leaf], part), bound))
            elif isinstance(leaf.storage, Weight) and leaf.dtype.numpy is not None:
                values = graph.backend.read(leaf)
                IndexCheck(node, leaf, _part(values, part), bound).run()
    return checks


def _leaves(ids: Node) -> Iterator[Node]:
    """The leaves, or views of leaves, whose values arrive in `ids`."""
    owner = ids.base or ids
    if owner.op is None:
        yield ids
    elif owner.op.name in _MOVES:
        for x in owner.sources:
            if x is not None:
                yield from _leaves(x)


def _part(leaf: np.ndarray, part: Node) -> np.ndarray:
    """What the node `part`, a leaf or a view of one, sees of the leaf's values."""
    if part.base is None or not part.n_elements:
        return leaf if part.n_elements else leaf[:0]
    memory = leaf.reshape(-1).view(np.uint8)
    return np.ndarray(part.ne[::-1], leaf.dtype, memory, part.offset, part.nb[::-1])
