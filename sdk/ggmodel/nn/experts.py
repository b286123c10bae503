"""Mixtures of experts: linear maps stacked along dim 2, and the choice among them."""

from __future__ import annotations

from ..ml import Tensor
from ..model.fields import gguf
from ..model.module import Module


class ExpertLinear(Module):
    """One linear map an expert. As a field: shape=(in, out, experts)."""

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
        normalize: the softmax is that among the experts used, so that their weights sum to 1;
            otherwise it is that among all. (A softmax among all, divided by the sum over those
            used, is the former.)

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
