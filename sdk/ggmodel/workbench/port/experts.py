"""Mixtures of experts of a recorded layer: the router's rule, the experts, and those shared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from .algebra import ACTIVATIONS, Gated, Norm, combination, equal, gated, norm_of
from .attention import Missing
from .recording import Array, Call, Recording

_FEW = 12  # tokens that are enough to tell an activation


@dataclass(frozen=True)
class Experts:
    """Gated experts, and what chooses them.

    Attributes:
        path: of the block within the layer. leaf, router: leaves.
        bias: the parameter that counts in the choice alone; "" for none.
        scored: it is added to the router's scores, not to their shares.
        weights: the arrays of all experts, [experts, …]: gate and up in one, and down.
        shared, down: experts that all tokens share; share: the leaf that gates them.
        behind: the leaf of a norm of the block's result, and `norm`; "" for none.
    """

    path: str
    leaf: str
    router: str
    activation: str
    count: int
    used: int
    ffn: int
    sigmoid: bool
    normalize: bool
    scale: float
    bias: str = ""
    scored: bool = False
    weights: tuple[Array, ...] = ()
    shared: Gated | None = None
    down: str = ""
    share: str = ""
    behind: str = ""
    norm: Norm | None = None

    @property
    def place(self) -> str:
        """The path of a checkpoint's module around all; it may have bias and norm elsewhere."""
        apart = [n for n in (self.bias, self.behind) if n and not n.startswith(f"{self.path}.")]
        return "" if apart else self.path

    @property
    def leaves(self) -> set[str]:
        """All its leaves."""
        own = {self.leaf, self.router, self.down, self.share, self.behind}
        more = {self.shared.up, self.shared.gate} if self.shared else set[str]()
        return (own | more) - {""}


def experts_of(record: Recording, layer: str, calls: Mapping[str, Call]) -> Experts | None:
    """The experts of a layer; None if it has none.

    Args:
        calls: its leaves by their names.

    Raises:
        Missing: a part is none that `nn.GatedExperts` computes; says which.
    """
    leaf = next((n for n, c in calls.items() if any(w.ndim == 3 for w in c.weights.values())), None)
    if leaf is None:
        return None
    path, call = leaf.rpartition(".")[0], calls[leaf]
    where = f"{layer}.{path}"
    count = next(w.shape[0] for w in call.weights.values() if w.ndim == 3)
    chosen = next((m for m in call.more if m.dtype.kind in "iu" and m.ndim == 2), None)
    weights = next((m for m in call.more if m.dtype.kind == "f" and m.ndim == 2), None)
    if chosen is None or weights is None or weights.shape != chosen.shape:
        raise Missing(f"{where}: experts that get no choice and weights")
    activation, ffn = _inner(call, chosen, weights, where)
    shape = (count, call.x.shape[-1])
    scoring = [n for n, c in calls.items() if any(w.shape == shape for w in c.weights.values())]
    while not (routers := [n for n in scoring if n.startswith(f"{path}.")]):
        if not (path := path.rpartition(".")[0]):
            raise Missing(f"{where}: no module that scores {count} experts")
    router, where = routers[0], f"{layer}.{path}"
    inside = {n: c for n, c in calls.items() if n.startswith(f"{path}.") and n != leaf}
    matrix = next(w for w in inside[router].weights.values() if w.ndim == 2)
    small = {
        n.removeprefix(f"{layer}."): x
        for n, x in record.small.items()
        if n.startswith(f"{layer}.") and x.shape == (count,)
    }
    rule = rule_of(call.x @ matrix.T, chosen, weights, small, where)
    result, behind, norm = record.modules[where][1], "", None
    for name, c in calls.items():
        if equal(c.y, result) and (norm := norm_of(c.x, c.y, c.weights)):
            result, behind = c.x, name
            break
    others = {n: c for n, c in inside.items() if n not in (router, behind)}
    more = *_shared(result, call, others, where), behind, norm
    stacks = (call.weights[k] for k in sorted(call.weights, key=lambda k: "down" in k))
    sizes = count, chosen.shape[1], ffn
    return Experts(path, leaf, router, activation, *sizes, *rule, tuple(stacks), *more)


def _inner(call: Call, chosen: Array, weights: Array, where: str) -> tuple[str, int]:
    """The activation of experts, and their width."""
    both = next((w for k, w in call.weights.items() if "up" in k and w.ndim == 3), None)
    down = next((w for k, w in call.weights.items() if "down" in k and w.ndim == 3), None)
    if both is None or down is None or len(call.weights) != 2:
        raise Missing(f"{where}: experts of {', '.join(call.weights)}")
    x, width = call.x[:_FEW], call.x.shape[-1]
    both = both if both.shape[-1] == width else both.swapaxes(1, 2)
    down = down if down.shape[-2] == width else down.swapaxes(1, 2)
    ffn = down.shape[-1]
    for name, f in ACTIVATIONS.items():
        made = np.zeros_like(call.y[:_FEW])
        for i, row in enumerate(x):
            for expert, weight in zip(chosen[i], weights[i], strict=True):
                y = both[expert] @ row
                made[i] += weight * (down[expert] @ (f(y[:ffn]) * y[ffn:]))
        if equal(made, call.y[:_FEW]):
            return name, ffn
    raise Missing(f"{where}: experts with a rule of their own")


def rule_of(
    logits: Array, chosen: Array, weights: Array, small: Mapping[str, Array], where: str
) -> tuple[bool, bool, float, str, bool]:
    """Whether shares are sigmoids, and normalised; the weights' factor; the choice's bias, and
    whether scores get it."""
    spread = np.exp(logits - logits.max(-1, keepdims=True))
    kinds = {False: spread / spread.sum(-1, keepdims=True), True: 1 / (1 + np.exp(-logits))}
    for sigmoid, shares in kinds.items():
        taken = np.take_along_axis(shares, chosen, -1)
        for normalize in (True, False):
            usual = taken / taken.sum(-1, keepdims=True) if normalize else taken
            scale = float((weights * usual).sum() / (usual * usual).sum())
            if equal(scale * usual, weights):
                bias = _bias(shares, logits, chosen, small)
                return sigmoid, normalize, float(f"{scale:.9g}"), *bias
    raise Missing(f"{where}: a router with a rule of its own")


def _bias(
    shares: Array, logits: Array, chosen: Array, small: Mapping[str, Array]
) -> tuple[str, bool]:
    def explains(scores: Array) -> bool:
        best = np.argsort(-scores, axis=-1)[:, : chosen.shape[1]]
        return np.array_equal(np.sort(best), np.sort(chosen))

    if explains(shares):
        return "", False
    fitting = [n for n, x in small.items() if explains(shares + x)]
    scored = [n for n, x in small.items() if explains(logits + x)]
    if scored and not fitting:
        return scored[0], True
    return next(iter([*fitting, *small]), ""), False  # groups of experts hide it


def _shared(
    result: Array | None, call: Call, inside: Mapping[str, Call], where: str
) -> tuple[Gated | None, str, str]:
    """The experts that all tokens share, if there are some: their gate, the linear map behind,
    and the module that weighs them."""
    if result is None:
        raise Missing(f"{where}: its result")
    if equal(result, call.y):
        return None, "", ""
    for name, down in inside.items():
        found = gated(down.x, {n: c.y for n, c in inside.items() if c.at < down.at})
        if found is None or not found.gate or found.halves:
            continue
        factors = combination(result, {"experts": call.y, "shared": down.y})
        if factors == {"experts": 1.0, "shared": 1.0}:
            return found, name, ""
        for share, c in inside.items():
            one = c.y.reshape(len(c.y), -1)
            if one.shape[1] == 1 and equal(call.y + down.y / (1 + np.exp(-one)), result):
                return found, name, share
    raise Missing(f"{where}: more than experts and those that all tokens share")
