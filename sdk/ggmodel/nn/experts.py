"""Mixtures of experts: linear maps stacked along dim 2, and the routing to them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import ConfigError
from ..ml import Tensor
from ..model.module import Module, gguf, kv
from ..model.operations import Stack
from .decoder import DecoderConfig, scaled
from .layers import GatedMLP, Linear, activate, check_activation

SOFTMAX = 1  # `expert_gating_func` in files
SIGMOID = 2
_FAR = 1e30  # more than a number of float32 next to another one is apart, times any score


class ExpertLinear(Module):
    """One linear map for each expert. As a field: shape=(in, out, experts)."""

    dims = {"weight": (0, 1, 2), "bias": (1, 2)}

    weight: Tensor = gguf("weight")
    bias: Tensor | None = gguf("bias")

    def forward(self, x: Tensor, ids: Tensor) -> Tensor:
        """x [in, used or 1, n], ids I32 [used, n] → [out, used, n] F32."""
        y = self.weight.mulmat_id(x, ids)
        return y if self.bias is None else y.add_id(self.bias, ids)


def stacked(part: str, hf: str = "", width: str = "expert_ffn") -> ExpertLinear:
    """A field for the experts' `part`, "gate", "up" or "down", that a checkpoint numbers.

    Args:
        hf: an expert's name for it: `experts.N.HF`; "PART_proj" by default.
        width: the config attribute with that of an expert.
    """
    shape = (width, "width") if part == "down" else ("width", width)
    source = Stack(f"experts.{{}}.{hf or part + '_proj'}", "experts")
    return gguf(f"ffn_{part}_exps", hf=source, shape=(*shape, "experts"))


def selection_bias(*hf: str) -> Tensor:
    """A field for the bias that counts in the choice of experts, not in their weights."""
    return gguf("exp_probs_b.bias", hf=hf, shape=("experts",))


def choose_experts(
    scores: Tensor,
    used: int,
    normalize: bool = True,
    *,
    sigmoid: bool = False,
    bias: Tensor | None = None,
    groups: int = 1,
    groups_used: int = 1,
    group_best: int = 1,
    epsilon: float = 1e-20,
    scale: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """The experts with the highest scores and their weights.

    Args:
        scores: router outputs F32 [experts, n].
        normalize: weights sum to 1; otherwise they are the shares among all experts. (A softmax
            over all, divided by the sum of the chosen, is one over the chosen.)
        sigmoid: shares are sigmoids of scores; otherwise their softmax over all experts.
        bias: F32 [experts], added to shares for the choice alone (arXiv 2408.15664).
        groups: of neighbours; only experts of the best `groups_used` are eligible. A group counts
            as its `group_best` best experts together: one in DeepSeek V2 (arXiv 2405.04434,
            2.2.2), two in V3.
        epsilon: added to the sum that weights are divided by, except by softmax without a bias
            and groups.
        scale: multiplies the weights.

    Returns:
        ids I32 [used, n] and weights F32 [1, used, n].
    """
    experts, n = scores.dim(0), scores.dim(1)
    if normalize and not sigmoid and bias is None and groups == 1:
        ids = scores.top_k(used)
        weights = scores.reshape(1, experts, n).rows(ids).reshape(used, n).softmax()
        return ids, scaled(weights.reshape(1, used, n), scale)
    shares = scores.sigmoid() if sigmoid else scores.softmax()
    choice = shares if bias is None else shares + bias
    if groups > 1:
        choice = _of_best_groups(choice, groups, groups_used, group_best)
    ids = choice.top_k(used)
    weights = shares.reshape(1, experts, n).rows(ids)
    if normalize:
        total = weights.reshape(used, n).sum_rows().reshape(1, 1, n)
        weights = weights.div(total + total.fill(epsilon))
    return ids, scaled(weights, scale)


def _of_best_groups(choice: Tensor, groups: int, used: int, best: int) -> Tensor:
    """choice [experts, n], far below all where an expert's group is none of the `used` best by the
    sum of its `best` highest numbers."""
    experts, n = choice.dim(0), choice.dim(1)
    size = experts // groups
    each = choice.reshape(size, groups * n)
    top = each.reshape(1, size, -1).rows(each.top_k(best)).reshape(best, -1)
    total = top.sum_rows().reshape(groups, n)
    ranked = total.reshape(1, groups, n).rows(total.top_k(used))
    least = ranked.slice(1, used - 1, used).reshape(1, n)
    below = (total.neg() + least).relu().scale(_FAR).reshape(1, -1)  # 0 for the best groups
    return (each - below).reshape(experts, n)


def sparse_mixer(scores: Tensor, used: int, tolerance: float) -> tuple[Tensor, Tensor]:
    """The experts with the highest scores, each weighted among those left over: its share of a
    softmax over all that come near to it (SparseMixer, arXiv 2409.12136, without its sampling).

    Args:
        scores: router outputs F32 [experts, n].
        tolerance: an expert with score s is near to the best, with m, if
            m − s ≤ tolerance · max(|s|, m).

    Returns:
        ids I32 [used, n] and weights F32 [1, used, n].
    """
    experts, n = scores.dim(0), scores.dim(1)
    order = scores.top_k(experts)
    ranked = scores.reshape(1, experts, n).rows(order).reshape(experts, n)
    weights: Tensor | None = None
    for i in range(used):
        left = ranked.slice(0, i, experts).contiguous()
        best = left.slice(0, 0, 1).contiguous()
        size = left.relu() + left.neg().relu()
        bound = (size - best).relu() + best
        far = (left.neg() + best - bound.scale(tolerance)).relu().scale(_FAR)
        share = (left - far).softmax().slice(0, 0, 1).contiguous()
        weights = share if weights is None else weights.concat(share, 0)
    if weights is None:
        raise ConfigError("a token uses no expert; expert_used_count must be 1 or more")
    return scores.top_k(used), weights.reshape(1, used, n)


def sum_experts(y: Tensor) -> Tensor:
    """y [width, used, n], already weighted, summed over the experts used → [width, n]."""
    total = y.slice(1, 0, 1)
    for i in range(1, y.dim(1)):
        total = total + y.slice(1, i, i + 1)
    return total.contiguous(y.dim(0), -1)


def _dense_layers(hf: Mapping[str, Any]) -> int | None:
    """How many layers stand before the first one with experts."""
    counts = [hf.get(key) for key in ("first_k_dense_replace", "num_dense_layers")]
    if kinds := hf.get("mlp_layer_types"):
        return [*kinds, "sparse"].index("sparse")
    return next((count for count in counts if count is not None), None)


class ExpertsConfig(DecoderConfig):
    """The usual hyperparameters of a decoder with experts; a subclass redeclares those that
    differ."""

    unread = ("dense_layers",)  # the tensors tell which layers are dense

    experts: int = kv(
        "expert_count", hf=("n_routed_experts", "num_experts", "num_local_experts"), default=0
    )
    experts_used: int = kv("expert_used_count", hf="num_experts_per_tok", default=0, most="usable")
    expert_ffn: int = kv("expert_feed_forward_length", hf="moe_intermediate_size", default=0)
    dense_layers: int = kv("leading_dense_block_count", hf=_dense_layers, default=0)
    gating: int = kv("expert_gating_func", default=SOFTMAX)
    normalize: bool = kv("expert_weights_norm", hf="norm_topk_prob", default=False)
    expert_scale: float = kv("expert_weights_scale", hf="routed_scaling_factor", default=1.0)
    expert_groups: int = kv(
        "expert_group_count", hf="n_group", default=1, least=1, divides="experts"
    )
    expert_groups_used: int = kv(
        "expert_group_used_count", hf="topk_group", default=1, least=1, most="expert_groups"
    )
    usable = property(lambda h: h.experts // h.expert_groups * h.expert_groups_used)


class SharedExpertsConfig(ExpertsConfig):
    """The same with experts that all tokens share: they are one, as wide as all together."""

    unread = ("dense_layers", "shared_experts")

    shared_experts: int = kv(
        "expert_shared_count", hf=("n_shared_experts", "num_shared_experts"), default=0
    )
    shared_ffn: int = kv(
        "expert_shared_feed_forward_length",
        hf="shared_expert_intermediate_size",
        default=lambda h: h.shared_experts * h.expert_ffn,
    )


class SharedExpert(GatedMLP):
    """The experts that all tokens share, as one. As a field: hf=, and no name in files."""

    gate: Linear = gguf("ffn_gate_shexp", hf="gate_proj", shape=("width", "shared_ffn"))
    up: Linear = gguf("ffn_up_shexp", hf="up_proj", shape=("width", "shared_ffn"))
    down: Linear = gguf("ffn_down_shexp", hf="down_proj", shape=("shared_ffn", "width"))


class GatedExperts(Module):
    """Gated feed-forward experts, weighted as the config says, or as a subclass's `choose` does. A
    subclass declares the fields that differ, and those that it has beside them. It reads of the
    config what `ExpertsConfig` has, of which it needs `experts_used` alone; `epsilon`, of
    `choose_experts`; `activation`.

    Attributes:
        bias: counts in the choice, not in the weights; `selection_bias` declares it.
        shared: experts that all tokens share, such as `SharedExpert`, added to the others.
        share: the linear map whose sigmoid multiplies what is shared, [width, n] → [1, n].

    Raises:
        ConfigError: an unknown activation or function of scores; lists the supported ones.
    """

    router: Linear = gguf("ffn_gate_inp", hf="gate", shape=("width", "experts"))
    gate: ExpertLinear = stacked("gate")
    up: ExpertLinear = stacked("up")
    down: ExpertLinear = stacked("down")
    bias: Any = None
    shared: Any = None
    share: Any = None

    def __init__(self, config: Any = None):
        super().__init__(config)
        check_activation(getattr(config, "activation", "silu"))
        if (gating := getattr(config, "gating", SOFTMAX)) not in (SOFTMAX, SIGMOID):
            raise ConfigError(
                f"expert_gating_func is {gating}; supported: {SOFTMAX}, softmax, and {SIGMOID}, "
                "sigmoid"
            )

    def choose(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """x [width, n] → its experts, ids I32 [used, n], and their weights F32 [1, used, n]."""
        h = self.config
        return choose_experts(
            self.router(x),
            h.experts_used,
            getattr(h, "normalize", True),
            sigmoid=getattr(h, "gating", SOFTMAX) == SIGMOID,
            bias=self.bias,
            groups=getattr(h, "expert_groups", 1),
            groups_used=getattr(h, "expert_groups_used", 1),
            group_best=getattr(h, "expert_group_best", 2),
            epsilon=getattr(h, "epsilon", 1e-20),
            scale=getattr(h, "expert_scale", 1.0),
        )

    def forward(self, x: Tensor) -> Tensor:
        """x [width, n] → [width, n]."""
        activation = getattr(self.config, "activation", "silu")
        ids, weights = self.choose(x)
        each = x.reshape(x.dim(0), 1, -1)
        y = activate(activation, self.gate(each, ids), self.up(each, ids))
        y = sum_experts(self.down(y, ids) * weights)
        if self.shared is None:
            return y
        shared = self.shared(x)
        return y + (shared if self.share is None else shared * self.share(x).sigmoid())
