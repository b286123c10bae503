"""DeepSeek V2, V3 and R1, Kimi K2, and GLM 4.7 Flash: latent attention, experts in groups."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ggmodel import Tensor, gguf, kv, nn, register
from ggmodel.kvcache import Causal


def _gating(hf: Mapping[str, Any]) -> int:
    """V2's experts are weighted by softmax, those of all others by sigmoid."""
    return nn.SOFTMAX if "DeepseekV2ForCausalLM" in hf["architectures"] else nn.SIGMOID


def _normalize(hf: Mapping[str, Any]) -> bool:
    """V2 does not, whatever its config says."""
    return _gating(hf) == nn.SIGMOID and hf.get("norm_topk_prob", True)


def _of_groups(key: str) -> Callable[[Mapping[str, Any]], int | None]:
    """A number of groups; V2's greedy choice is among all experts."""

    def find(hf: Mapping[str, Any]) -> int | None:
        groups = hf.get(key)
        return 1 if hf.get("topk_method") == "greedy" else groups

    return find


class DeepseekConfig(nn.LatentConfig, nn.DraftingConfig, nn.SharedExpertsConfig):
    unread = (*nn.LatentConfig.unread, *nn.SharedExpertsConfig.unread)
    # The tensors tell.
    fixed = {"attention_bias": ..., "mlp_bias": ...}

    vocab: int | None = kv("vocab_size", hf="vocab_size")  # other programs need it
    gating: int = kv("expert_gating_func", hf=_gating, default=nn.SOFTMAX)
    normalize: bool = kv("expert_weights_norm", hf=_normalize, default=False)
    expert_groups: int = kv(
        "expert_group_count", hf=_of_groups("n_group"), default=1, least=1, divides="experts"
    )
    # Experts that count for their group; not a key of llama.cpp, which has two.
    expert_group_best: int = kv(
        "expert_group_best",
        hf=lambda hf: 1 if _gating(hf) == nn.SOFTMAX else None,
        default=lambda h: 2 if h.gating == nn.SIGMOID else 1,
        least=1,
    )
    expert_groups_used: int = kv(
        "expert_group_used_count",
        hf=_of_groups("topk_group"),
        default=1,
        least=1,
        most="expert_groups",
    )


class Experts(nn.GatedExperts):
    bias: Tensor | None = nn.selection_bias("gate.e_score_correction_bias")
    shared: nn.SharedExpert = gguf(hf="shared_experts")


class Layer(nn.PreNormLayer):
    attn: nn.LatentAttention
    ffn: nn.GatedMLP | Experts


_NAMES = ("DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM", "Glm4MoeLiteForCausalLM")


@register("deepseek2", hf=_NAMES)
class Deepseek2(nn.DraftingDecoder):
    config: DeepseekConfig
    layers: list[Layer]

    def caches(self) -> list[Causal]:
        return [Causal(self.rotary.rope())] * self.config.layers
