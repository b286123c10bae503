"""Mixtures of experts: linear maps stacked along dim 2, and the routing to them."""

from __future__ import annotations

from typing import Any

from ..ml import Tensor
from ..model.module import Module, gguf
from .layers import Linear, activate, check_activation


class ExpertLinear(Module):
    """One linear map for each expert. As a field: shape=(in, out, experts)."""

    dims = {"weight": (0, 1, 2), "bias": (1, 2)}

    weight: Tensor = gguf("weight")
    bias: Tensor | None = gguf("bias")

    def forward(self, x: Tensor, ids: Tensor) -> Tensor:
        """x [in, used or 1, n], ids I32 [used, n] → [out, used, n] F32."""
        y = self.weight.mulmat_id(x, ids)
        return y if self.bias is None else y.add_id(self.bias, ids)


def choose_experts(scores: Tensor, used: int, normalize: bool = True) -> tuple[Tensor, Tensor]:
    """The experts with the highest scores and their softmax weights.

    Args:
        scores: router outputs F32 [experts, n].
        normalize: softmax over the chosen experts, whose weights then sum to 1; otherwise over
            all experts. (A softmax over all, divided by the sum of the chosen, is the former.)

    Returns:
        ids I32 [used, n] and weights F32 [1, used, n].
    """
    experts, n = scores.dim(0), scores.dim(1)
    ids = scores.top_k(used)
    if not normalize:
        return ids, scores.softmax().reshape(1, experts, n).rows(ids)
    chosen = scores.reshape(1, experts, n).rows(ids)
    return ids, chosen.reshape(used, n).softmax().reshape(1, used, n)


def sum_experts(y: Tensor) -> Tensor:
    """y [width, used, n], already weighted, summed over the experts used → [width, n]."""
    total = y.slice(1, 0, 1)
    for i in range(1, y.dim(1)):
        total = total + y.slice(1, i, i + 1)
    return total.contiguous(y.dim(0), -1)


class GatedExperts(Module):
    """Gated feed-forward experts, weighted by a router's softmax, or as a subclass's `choose` says.
    A subclass declares the fields; the config has `experts_used`, and may have `activation` and
    `normalize`.

    Raises:
        ConfigError: an unknown activation; lists the supported ones.
    """

    router: Linear
    gate: ExpertLinear
    up: ExpertLinear
    down: ExpertLinear

    def __init__(self, config: Any = None):
        super().__init__(config)
        check_activation(getattr(config, "activation", "silu"))

    def choose(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """x [width, n] → its experts, ids I32 [used, n], and their weights F32 [1, used, n]."""
        h = self.config
        return choose_experts(self.router(x), h.experts_used, getattr(h, "normalize", True))

    def forward(self, x: Tensor) -> Tensor:
        """x [width, n] → [width, n]."""
        activation = getattr(self.config, "activation", "silu")
        ids, weights = self.choose(x)
        x = x.reshape(x.dim(0), 1, -1)
        y = activate(activation, self.gate(x, ids), self.up(x, ids))
        return sum_experts(self.down(y, ids) * weights)
