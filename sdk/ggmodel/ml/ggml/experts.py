"""Experts of a file that is larger than memory, read ahead of their products (native/read_ahead.c).

A node between a layer's router and its products reads the ids where they are. The system begins to
read what they choose, all of it at once, and what the next layer chose in the last run, if that was
few, while this one computes. The values are those of the file, so that the bits are the same.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ...native import ffi, last_abort, lib
from ..node import Node, impossible
from .products import custom_op

_READ_AHEAD = ffi.addressof(lib, "ggmodel_read_ahead")
_MOST_WEIGHTS = 8  # of a node, beside the ids: ggml's limit


class Choices:
    """The experts that each layer chose in the last run, for all graphs of a model.

    Args:
        weights: the ggml tensors [k, m, experts] of experts in mapped files, by their node's uid.
    """

    def __init__(self, weights: dict[int, Any]):
        self.weights = weights
        self._chosen: dict[int, Any] = {}

    def of(self, weight: int) -> Any:
        """A flag for each expert of the layer whose first weight has this uid."""
        if weight not in self._chosen:
            self._chosen[weight] = ffi.new("uint8_t[]", self.weights[weight].ne[2])
        return self._chosen[weight]


class ExpertsAhead:
    """The nodes of one graph.

    Args:
        ctx: the ggml context of their tensors.
        ops: of the graph, in order.
    """

    def __init__(self, ctx: Any, ops: Iterable[Node], choices: Choices):
        self._ctx, self._choices = ctx, choices
        self._weights: dict[int, list[int]] = {}  # uids, by the uid of the ids that choose
        self._ids: dict[int, Any] = {}
        self._layers: list[Any] = []  # live as long as the nodes, as `choices` do
        for op in ops:
            if op.op is not None and op.op.name == "mulmat_id":
                weight, _, ids = op.sources
                assert weight is not None and ids is not None
                if weight.uid in choices.weights:
                    self._weights.setdefault(ids.uid, []).append(weight.uid)

    def follow(self, product: Node, operands: tuple[Any, ...]) -> tuple[Any, ...]:
        """The operands of a product of experts, whose ids wait for what is read ahead."""
        ids = product.sources[2]
        assert ids is not None
        if ids.uid not in self._weights:
            return operands
        if ids.uid not in self._ids:
            ahead = self._node(ids.uid, operands[2])
            if not ahead:
                raise impossible(product, f"ggml refused to read ahead of it: {last_abort()}")
            self._ids[ids.uid] = ahead
        return (*operands[:2], self._ids[ids.uid])

    def _node(self, layer: int, ids: Any) -> Any:
        """A copy of ids [used, n]."""
        order = list(self._weights)
        own = self._alike(layer, _MOST_WEIGHTS)
        after = self._alike(order[(order.index(layer) + 1) % len(order)], _MOST_WEIGHTS - len(own))
        sources = [ids, *(self._choices.weights[uid] for uid in (*own, *after))]
        chosen, expected = (self._choices.of(uids[0]) for uids in (own, after or own))
        of_layer = ffi.new("struct ggmodel_layer_experts *", (chosen, expected, len(own)))
        self._layers.append(of_layer)
        ne = ids.ne[0], ids.ne[1], 1, 1
        return custom_op(self._ctx, lib.GGML_TYPE_I32, ne, sources, _READ_AHEAD, of_layer)

    def _alike(self, layer: int, most: int) -> list[int]:
        """Weights of a layer that have as many experts as its first one."""
        uids = self._weights[layer]
        tensors = self._choices.weights
        return [uid for uid in uids if tensors[uid].ne[2] == tensors[uids[0]].ne[2]][:most]
