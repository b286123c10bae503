"""Adapters: low-rank changes of weights, computed beside the products of these.

A weight W with the matrices A and B of an adapter gives W·x + B·(A·x): the rows of one batch may
have different adapters, and W stays as it lies in the file. The graph of a batch without adapters
is that of a model without any.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np

from ...errors import Unsupported
from ...ml import Backend, Context, DType, Tensor
from ...ml.node import Node, Weight
from ...model import Step
from ...model.batch import Adapted
from ...resources import Closing, closed_on_error

PRODUCT, ROWS = "product", "rows"
"""Uses of a weight: it multiplies, or its rows are looked up."""
_USES = {"mulmat": PRODUCT, "mulmat_id": PRODUCT, "rows": ROWS}

_numbers = count()

Strengths = tuple[tuple["Adapter", float], ...]
"""The adapters of a request, in the order of their loading, each with a strength other than 0."""


@dataclass(frozen=True, eq=False)
class LowRank:
    """The change of a weight, W + b·a; of an embedding's rows W + a·bᵀ.

    Attributes:
        a: float32 [(experts,) rank, in], of an embedding [rows, rank].
        b: float32 [(experts,) out, rank], with the scale in it.
        magnitude: float32 [out], the lengths that the rows of W + b·a are brought to (DoRA); None
            leaves them.
    """

    a: np.ndarray
    b: np.ndarray
    magnitude: np.ndarray | None = None

    def merged(self, w: np.ndarray, use: str, strength: float = 1.0) -> np.ndarray:
        """The weight float32 [(experts,) out, in] with so much of its change."""
        if use == ROWS:
            return w + np.float32(strength) * (self.a @ self.b.T)
        changed = w + self.b @ self.a
        if self.magnitude is not None:
            changed *= self.gain(w)[:, None]
        return changed if strength == 1 else w + np.float32(strength) * (changed - w)

    def gain(self, w: np.ndarray) -> np.ndarray:
        """The factors float32 [out] that bring rows of W + b·a to their magnitudes."""
        assert self.magnitude is not None
        changed = (w + self.b @ self.a).astype(np.float64)
        return (self.magnitude / np.sqrt((changed**2).sum(axis=1))).astype(np.float32)


@dataclass(frozen=True, eq=False)
class _Pair:
    """The matrices of one weight in a backend's memory: a [in, rank, (experts)], of an embedding
    [rank, rows]; b [rank, out, (experts)]; the gain [out] of DoRA."""

    a: Tensor
    b: Tensor
    gain: Tensor | None

    def change(self, op: str, x: Tensor, ids: list[Tensor], strength: Tensor) -> Tensor:
        """The change of a product of x [in, c, n], or to rows that are looked up by x I32 [n]:
        [out, c, n], [out, n]. The strength is F32 [1] or of the rank of the result."""
        if op == "rows":
            return self.b.mulmat(self.a.rows(x) * strength)
        if op == "mulmat_id":
            return self.b.mulmat_id(self.a.mulmat_id(x, *ids) * strength, *ids)
        return self.b.mulmat(self.a.mulmat(x) * strength)


class Adapter(Closing):
    """An adapter in the memory of a backend.

    Args:
        changes: by the name of the weight and its use.
        gains: of those with magnitudes, float32 [out].
        digest: over its content.

    Attributes:
        number: of its loading, in this process.
        closed: it was removed, and its memory is free.
    """

    def __init__(
        self,
        name: str,
        backend: Backend,
        changes: Mapping[tuple[str, str], LowRank],
        gains: Mapping[str, np.ndarray],
        digest: str,
    ):
        self.name, self.digest, self.closed = name, digest, False
        self.number = next(_numbers)
        self.pairs: dict[tuple[str, str], _Pair] = {}
        self._ctx = backend.new_context()
        with closed_on_error(self):
            for (weight, use), change in changes.items():
                storage = backend.tensors[weight].storage
                assert isinstance(storage, Weight)
                on = self._ctx.layer(max(0, storage.layer))
                gain = None if change.magnitude is None else _stored(on, gains[weight])
                self.pairs[weight, use] = _Pair(_stored(on, change.a), _stored(on, change.b), gain)

    def close(self) -> None:
        """Frees its memory, and the graphs that read it; idempotent."""
        self.closed = True
        self._ctx.close()


def _stored(on: Context, values: np.ndarray) -> Tensor:
    tensor = on.empty(DType.F32, *values.shape[::-1])
    tensor.from_floats(values)
    return tensor


class Changes:
    """Adds the changes by adapters to a graph while it is recorded: its `Graph.changed`.

    Args:
        outputs: rows of the step that the graph takes at its end, I32; None if it takes none.

    Attributes:
        used: the changes that the graph has: adapter, weight and use.
    """

    def __init__(self, ctx: Context, step: Step, outputs: Tensor | None = None):
        self._ctx, self._step, self._outputs = ctx, step, outputs
        self._names = {name for one in step.adapted for name, _ in one.adapter.pairs}
        self._of_outputs: set[int] = set()  # nodes whose rows are those of the outputs
        self._places: dict[tuple[int, bool], tuple[Tensor, Tensor | None] | None] = {}
        self.used: set[tuple[Adapter, str, str]] = set()

    def __call__(self, node: Tensor) -> Tensor:
        assert node.op is not None
        operands, use = [s for s in node.sources if s is not None], _USES.get(node.op.name)
        chosen = use == ROWS and operands[1] is self._outputs
        if chosen or any(s.uid in self._of_outputs for s in operands):
            self._of_outputs.add(node.uid)
        for i, operand in enumerate(operands):
            weight = operand.owner
            if isinstance(weight.storage, Weight) and weight.name in self._names:
                if operand is weight and use is not None and i == 0:
                    return self._with_changes(node, weight.name, use)
                self._refuse(weight, node)
        return node

    def _refuse(self, weight: Node, node: Node) -> None:
        for one in self._step.adapted:
            if any(name == weight.name for name, _ in one.adapter.pairs):
                assert node.op is not None
                raise Unsupported(
                    f"the adapter {one.adapter.name!r} changes {weight.name!r}, which this "
                    f"architecture takes apart (by {node.op.name}): load a merged model, see "
                    "`ggmodel adapter merge`"
                )

    def _with_changes(self, node: Tensor, name: str, use: str) -> Tensor:
        changes: list[tuple[Tensor, Tensor | None]] = []
        for i, one in enumerate(self._step.adapted):
            pair = one.adapter.pairs.get((name, use))
            if pair is not None:
                self.used.add((one.adapter, name, use))
                place = self._place(i, one, node.uid in self._of_outputs)
                if place is not None:
                    changes.append(self._change(pair, node, *place))
        y, total = node, node.n_elements // self._rows(node)
        for change, at in changes:  # all are of the product as it was
            if at is None:
                y = y + change
            else:
                flat = y.reshape(total, -1)
                y = flat.set_rows(flat.rows(at) + change.reshape(total, -1), at).reshape(*node.ne)
        return y

    def _rows(self, node: Node) -> int:
        """Rows of the batch that a result has."""
        if self._outputs is not None and node.uid in self._of_outputs:
            return self._outputs.dim(0)
        return len(self._step.tokens)

    def _change(
        self, pair: _Pair, node: Tensor, strength: Tensor, at: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """A change of some rows of a product, and which these are, I32 [m]; None for all."""
        assert node.op is not None
        operands: Any = node.sources
        op, (_, x, *ids) = node.op.name, operands
        y, n = node, self._rows(node)
        if strength.n_elements > 1 or at is not None:
            self._need_rows(node, n)
        if at is not None:
            x, y, *ids = (_chosen(t, n, at) for t in (x, node, *ids))
        if strength.n_elements > 1:
            strength = strength.reshape(*(1,) * (len(node.shape) - 1), -1)
        if pair.gain is None:
            return pair.change(op, x, ids, strength), at
        whole = (y + pair.change(op, x, ids, strength.fill(1.0))) * pair.gain
        return (whole - y) * strength, at

    def _need_rows(self, node: Node, n: int) -> None:
        """Raises unless the last dim of a product counts rows of the batch: so the requests of
        this step are computed one after the other."""
        if [d for d in node.ne[1:] if d > 1][-1:] != [n]:
            raise Unsupported(
                f"{node.describe()} has no row for each of {n} tokens: requests with different "
                "adapters are computed one after the other"
            )

    def _place(self, i: int, one: Adapted, of_outputs: bool) -> tuple[Tensor, Tensor | None] | None:
        """The strengths of an adapter, F32 [m] or [1] for one of all rows, and the rows it changes,
        I32 [m] or None for all; None if there are none."""
        key = i, of_outputs
        if key not in self._places:
            self._places[key] = self._fed(i, self._strengths(self._step, i, of_outputs), of_outputs)
        return self._places[key]

    def _fed(
        self, i: int, strengths: np.ndarray, of_outputs: bool
    ) -> tuple[Tensor, Tensor | None] | None:
        count, feed = Adapted.layout(strengths), self._ctx.feed
        if not count:
            return None
        if count < 0:
            return feed(lambda s: self._strengths(s, i, of_outputs)[:1], DType.F32, 1), None

        def some(step: Step) -> np.ndarray:
            strengths = self._strengths(step, i, of_outputs)
            return strengths[strengths != 0]

        def places(step: Step) -> np.ndarray:
            return np.flatnonzero(self._strengths(step, i, of_outputs)).astype(np.int32)

        values = feed(some, DType.F32, count, name="strengths")
        if count == len(strengths):
            return values, None
        return values, feed(places, DType.I32, count, trusted=True, name="adapted")

    @staticmethod
    def _strengths(step: Step, i: int, of_outputs: bool) -> np.ndarray:
        strengths = step.adapted[i].strengths
        return strengths[step.outputs] if of_outputs else strengths


def _chosen(x: Any, n: int, at: Tensor) -> Any:
    """The rows `at` I32 [m] of x [.., n], F32 or indices: [.., m]."""
    inner = x.shape[:-1]
    return x.contiguous(x.n_elements // n, n).rows(at).reshape(*inner, -1)
