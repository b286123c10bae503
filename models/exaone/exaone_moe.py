"""K-EXAONE: DeepSeek V3's router; local layers alone have rotary positions."""

from __future__ import annotations

from ggmodel import Tensor, gguf, kv, nn, register
from ggmodel.kvcache import Causal, Sliding
from ggmodel.ml import RopeType


class ExaoneMoeConfig(nn.DraftingConfig, nn.SharedExpertsConfig):
    gating: int = kv("expert_gating_func", hf=lambda hf: nn.SIGMOID, default=nn.SIGMOID)
    window: int = kv("attention.sliding_window", hf="sliding_window", default=0)
    pattern: list = kv("attention.sliding_window_pattern", hf=nn.sliding_layers, default=[4])


class Experts(nn.GatedExperts):
    bias: Tensor = nn.selection_bias("e_score_correction_bias", "gate.e_score_correction_bias")
    shared: nn.SharedExpert = gguf(hf="shared_experts")


class Layer(nn.PreNormLayer):
    attn: nn.NormedAttention
    ffn: nn.GatedMLP | Experts


@register("exaone-moe", hf="ExaoneMoeForCausalLM")
class ExaoneMoe(nn.DraftingDecoder):
    drafts_hf = ("mtp.*",)

    config: ExaoneMoeConfig
    layers: list[Layer]

    def caches(self) -> list[Causal | Sliding]:
        h, rope = self.config, self.rotary.rope(RopeType.NEOX)
        ropes = [rope if near or not h.window else None for near in h.local]
        return Sliding.where(h.local, h.window, ropes)
