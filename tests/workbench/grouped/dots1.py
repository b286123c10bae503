"""dots.llm1 as an author would write it out of tree: experts in groups, of which some are left
out."""

from __future__ import annotations

from ggmodel import gguf, kv, nn, register
from ggmodel.kvcache import Causal
from ggmodel.ml import RopeType, Tensor
from ggmodel.model import Stack
from ggmodel.nn import ExpertLinear, Linear, RMSNorm

GROUP = 2  # experts, whose scores rank their group


class Dots1Config(nn.DecoderConfig):
    fixed = {"max_window_layers": ..., "sliding_window": ..., "first_k_dense_replace": ...}

    eps: float = kv("attention.layer_norm_rms_epsilon", hf="rms_norm_eps")
    experts: int = kv("expert_count", hf="n_routed_experts")
    experts_used: int = kv("expert_used_count", hf="num_experts_per_tok")
    experts_shared: int = kv("expert_shared_count", hf="n_shared_experts")
    expert_ffn: int = kv("expert_feed_forward_length", hf="moe_intermediate_size")
    groups: int = kv("expert_group_count", hf="n_group", default=1)
    groups_used: int = kv("expert_group_used_count", hf="topk_group", default=1)
    normalize: bool = kv("expert_weights_norm", hf="norm_topk_prob", default=False)
    expert_scale: float = kv("expert_weights_scale", hf="routed_scaling_factor", default=1.0)

    @property
    def shared_ffn(self) -> int:
        return self.experts_shared * self.expert_ffn


class Attention(nn.Attention):
    q_norm: RMSNorm = gguf("attn_q_norm", hf="q_norm", shape=("head_dim",))
    k_norm: RMSNorm = gguf("attn_k_norm", hf="k_norm", shape=("head_dim",))


def _stack(name: str, *shape: str) -> ExpertLinear:
    source = Stack(f"experts.{{}}.{name}_proj", "experts")
    return gguf(f"ffn_{name}_exps", hf=source, shape=(*shape, "experts"))


class Shared(nn.GatedMLP):
    gate: Linear = gguf("ffn_gate", hf="gate_proj", shape=("width", "shared_ffn"))
    up: Linear = gguf("ffn_up", hf="up_proj", shape=("width", "shared_ffn"))
    down: Linear = gguf("ffn_down", hf="down_proj", shape=("shared_ffn", "width"))


class Experts(nn.GatedExperts):
    config: Dots1Config
    router: Linear = gguf("ffn_gate_inp", hf="gate", shape=("width", "experts"))
    bias: Tensor = gguf("exp_probs_b.bias", hf="gate.e_score_correction_bias", shape=("experts",))
    gate: ExpertLinear = _stack("gate", "width", "expert_ffn")
    up: ExpertLinear = _stack("up", "width", "expert_ffn")
    down: ExpertLinear = _stack("down", "expert_ffn", "width")
    shared: Shared = gguf(suffix="_shexp", hf="shared_experts")

    def choose(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h, scores = self.config, self.router(x).sigmoid()
        ids = self.limited(scores + self.bias).top_k(h.experts_used)
        weights = scores.reshape(1, h.experts, -1).rows(ids)
        if h.normalize:
            total = weights.reshape(h.experts_used, -1).sum_rows().reshape(1, 1, -1)
            weights = weights.div(total)
        return ids, weights.scale(h.expert_scale)

    def limited(self, scores: Tensor) -> Tensor:
        """Scores [experts, n], very small in all but the groups with the largest sums."""
        h = self.config
        groups = scores.reshape(GROUP, h.groups, -1)
        sums = groups.sum_rows()
        best = sums.rows(sums.reshape(h.groups, -1).top_k(h.groups_used))
        least = best.slice(1, h.groups_used - 1, h.groups_used)
        return (groups + (sums - least).scale(1e9).clamp(-1e9, 0)).reshape(h.experts, -1)


class Layer(nn.PreNormLayer):
    attn: Attention
    ffn: nn.GatedMLP | Experts


@register("dots1", hf="Dots1ForCausalLM")
class Dots1(nn.Decoder):
    config: Dots1Config
    layers: list[Layer]

    def caches(self) -> list[Causal]:
        return [Causal(self.rotary.rope(RopeType.NEOX)) for _ in self.layers]
