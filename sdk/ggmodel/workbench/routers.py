"""Routers of experts: the reference's choices as inputs of a model, its own beside them.

Where two experts are close, rounding sends a token to another one, and all that follows differs
without a fault. So a model computes with the experts that the reference has chosen, and its own
choice is judged apart, by the numbers by which it selects: behind sigmoid, selection bias and
limits of groups.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..ml import Context, Tensor
from ..ml.graph import Graph
from ..ml.node import Feed, Node
from ..ml.tensor import to_float32
from ..model import Batch, Step
from ..runner import LoadedModel
from .observe import Recording, watch_text

_MOVES = ("view", "reshape", "contiguous", "cast", "duplicate")
_DEVIATIONS = 4  # standard deviations of rounding: 1 in 16,000 numbers is further off


@dataclass(frozen=True)
class Router:
    """The choices of one router of the reference.

    Attributes:
        choices: int32 [n, used], experts of each token.
        scores: float32 [n, experts], the numbers by which it has chosen them.
    """

    choices: NDArray[np.int32]
    scores: NDArray[np.float32]

    def order(self, positions: np.ndarray) -> np.ndarray:
        """All experts of some tokens, the chosen ones first: int32 [tokens, experts]."""
        choices = self.choices[positions]
        ranks = np.full((len(choices), self.scores.shape[1]), choices.shape[1])
        np.put_along_axis(ranks, choices, np.arange(choices.shape[1])[None], axis=1)
        return ranks.argsort(axis=1, kind="stable").astype(np.int32)

    def misled(self, scores: np.ndarray, nmse: float) -> str:
        """How a model whose scores for the first tokens are [m, experts] chooses otherwise; "" if
        it does not. A choice is the same if each chosen expert lies above all that the reference
        has below it, by more than rounding explains. Any function that grows with the reference's
        scores chooses the same: a softmax of them, say.

        Args:
            nmse: error of the scores that rounding explains.
        """
        if scores.shape[1] != self.scores.shape[1]:
            return f"it chooses among {scores.shape[1]} experts, not {self.scores.shape[1]}"
        theirs, choices = self.scores[: len(scores)], self.choices[: len(scores)]
        numbers = theirs[np.isfinite(theirs)].astype(np.float64)
        near = _DEVIATIONS * float(np.sqrt(nmse * (numbers**2).mean()))
        with np.errstate(invalid="ignore"):  # ∞ - ∞: both limit a group
            distances = _distances(theirs, choices)
            wrong = (distances > near) & ~(_distances(scores, choices) > 0)
        if not wrong.any():
            return ""
        token, i, other = (int(n) for n in np.argwhere(wrong)[0])
        apart = distances[token, i, other]
        verdict = f"has it below that by {apart:.2g}" if np.isfinite(apart) else "leaves it out"
        return (
            f"the router prefers expert {other} to {choices[token, i]} for token {token}; the "
            f"reference {verdict}"
        )


def _distances(scores: np.ndarray, choices: np.ndarray) -> np.ndarray:
    """How far the score of each chosen expert lies above all scores: [n, used, experts]."""
    scores = scores.astype(np.float64)
    return np.take_along_axis(scores, choices, axis=1)[:, :, None] - scores[:, None, :]


def to_arrays(routers: Sequence[Router], prefix: str = "") -> dict[str, np.ndarray]:
    """The arrays of routers, by their names in a file."""
    return {
        f"{prefix}routers.{i}.{name}": getattr(router, name)
        for i, router in enumerate(routers)
        for name in ("choices", "scores")
    }


def from_arrays(file: Mapping[str, Any], prefix: str = "") -> list[Router]:
    """The routers in a file; none if it has none.

    Raises:
        ValueError: they are no choices of experts.
    """
    routers: list[Router] = []
    while (name := f"{prefix}routers.{len(routers)}") + ".choices" in file:
        choices, scores = file[f"{name}.choices"], file[f"{name}.scores"]
        fits = choices.ndim == scores.ndim == 2 and choices.dtype.kind == "i"
        if not fits or choices.min(initial=0) < 0 or choices.max(initial=-1) >= scores.shape[1]:
            raise ValueError(f"{name} has no choices of experts")
        routers.append(Router(choices.astype(np.int32), scores.astype(np.float32)))
    return routers


@dataclass
class Routing:
    """The routers of a model that are given the choices of a reference.

    Attributes:
        routers: of the text that is computed, in the order in which a forward asks them; none if
            the model chooses for itself. A token's place in its sequence says which it is.
        modules: names of the ops' module, in that order, once a graph was recorded; a module's
            second choice has a ' behind its name.
    """

    routers: Sequence[Router] = ()
    modules: list[str] = field(default_factory=list)
    # uid → module, and -1 where the op sorts upwards: it prefers small scores
    _scores: dict[int, tuple[str, int]] = field(default_factory=dict)
    _values: dict[str, np.ndarray] = field(default_factory=dict)

    @property
    def problem(self) -> str:
        """The reason if the routers of both do not pair, and the model chooses for itself; else
        ""."""
        theirs, ours = len(self.routers), len(self.modules)
        if theirs == ours:
            return ""
        return f"the reference chooses experts in {theirs} modules, the model in {ours}"

    def replace(self, graph: Graph, result: Node, outputs: Node | None) -> None:
        """Makes an input of each choice in a recorded graph.

        Args:
            outputs: the rows of the outputs where a step has none: what reads them is not computed.
        """
        choices = _choices(graph, result)
        names = list[str]()
        for node in choices:
            name = node.name.rpartition(".")[0]
            names.append(name + "'" * sum(other.rstrip("'") == name for other in names))
        self.modules = self.modules or names
        if self.problem:
            return
        for name, node in zip(names, choices, strict=True):
            scores = node.sources[0]
            assert scores is not None
            if outputs is not None and outputs in _sources_of(scores):
                continue
            self._scores[scores.uid] = name, 1 if node.attrs.get("descending") else -1
            graph.forward(scores)  # a selection bias is read by nothing else
            self._feed(graph, node, self.modules.index(name))

    def _feed(self, graph: Graph, node: Node, index: int) -> None:
        def order(step: Step) -> np.ndarray:
            rows = step.positions
            if node.ne[1] != len(rows):  # the last layer may compute the outputs alone
                rows = rows[step.outputs]
            return self.routers[index].order(rows)

        node.op, node.sources, node.attrs, node.storage = None, (), {}, Feed(order)
        later = [other for other in graph.schedule if other is not node]
        if len(later) < len(graph.schedule):
            graph.schedule[:] = later
            graph.inputs.append(node)

    def see(self, node: Node, value: np.ndarray) -> None:
        """Keeps the scores of a choice; see `watch_text`."""
        if node.uid in self._scores:
            name, sign = self._scores[node.uid]
            rows = to_float32(value, node.dtype, node.ne)
            self._values[name] = sign * rows.reshape(-1, node.ne[0])

    def misled(self, nmse: Mapping[str, float] | float) -> dict[str, str]:
        """Module → how it chose otherwise in the latest run that `see` has seen.

        Args:
            nmse: error of the scores that rounding explains, for each module or for all.
        """
        texts: dict[str, str] = {}
        for name, router in zip(self.modules, self.routers, strict=False):
            rounding = nmse.get(name, 0.0) if isinstance(nmse, Mapping) else nmse
            scores = self._values.get(name)
            texts[name] = (
                "its scores were not computed"
                if scores is None
                else router.misled(scores, rounding)
            )
        return {name: text for name, text in texts.items() if text}


@contextmanager
def routed(model: LoadedModel, routers: Sequence[Router] = ()) -> Iterator[Routing]:
    """Within the block, a model computes with the choices of `Routing.routers`."""
    net, routing = model.model, Routing(routers)
    recorded = {name: getattr(net, name) for name in ("hidden", "forward")}

    def replaced(name: str, ctx: Context, batch: Batch) -> Tensor:
        result = recorded[name](ctx, batch)
        if routing.routers:
            routing.replace(ctx.graph, result, None if batch.n_outputs else batch.outputs)
        return result

    vars(net).update({name: partial(replaced, name) for name in recorded})
    try:
        yield routing
    finally:
        for name in recorded:
            del vars(net)[name]


def watched(model: LoadedModel, routing: Routing, numbers: np.ndarray) -> np.ndarray:
    """The logits of a prompt, computed op by op so that `Routing.misled` can tell."""

    def begin(_: Recording) -> Any:
        return routing.see

    return watch_text(model, numbers, begin)


def _sources_of(*nodes: Node) -> Iterator[Node]:
    """Nodes, and all that they are computed from."""
    stack, visited = list(nodes), set[int]()
    while stack:
        node = stack.pop()
        if node.uid not in visited:
            visited.add(node.uid)
            yield node
            stack += [source for source in node.sources if source is not None]


def _choices(graph: Graph, result: Node) -> list[Node]:
    """The ops that sort scores and so choose experts, in the order recorded."""
    choices = dict[int, Node]()
    for node in _sources_of(result, *graph.schedule):
        if node.op is not None and node.op.name == "mulmat_id":
            ids = node.sources[2]
            while ids is not None and ids.op is not None and ids.op.name in _MOVES:
                ids = ids.sources[0]
            if ids is not None and ids.op is not None and ids.op.name == "argsort":
                choices[ids.uid] = ids
    return [choices[uid] for uid in sorted(choices)]
