"""OLMoE: OLMo 2's attention between the usual norms, and experts alone."""

from __future__ import annotations

from ggmodel import kv, nn, register
from ggmodel.kvcache import Causal
from ggmodel.ml import RopeType
from ggmodel.nn import ExpertLinear

from .olmo2 import Attention


class OlmoeConfig(nn.ExpertsConfig):
    fixed = {"clip_qkv": None}

    eps: float = kv("attention.layer_norm_rms_epsilon", hf="rms_norm_eps", default=1e-5)
    context: int = kv("context_length", hf="max_position_embeddings", default=4096)


class Experts(nn.GatedExperts):
    gate: ExpertLinear = nn.stacked("gate", width="ffn")
    up: ExpertLinear = nn.stacked("up", width="ffn")
    down: ExpertLinear = nn.stacked("down", width="ffn")


class Layer(nn.PreNormLayer):
    attn: Attention
    ffn: Experts


@register("olmoe", hf="OlmoeForCausalLM")
class OLMoE(nn.Decoder):
    config: OlmoeConfig
    layers: list[Layer]

    def caches(self) -> list[Causal]:
        return [Causal(self.rotary.rope(RopeType.NEOX))] * self.config.layers
