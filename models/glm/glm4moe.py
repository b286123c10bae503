"""GLM 4.5 and later, with experts: half of each head rotated, DeepSeek V3's router."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ggmodel import Tensor, gguf, kv, nn, register
from ggmodel.kvcache import Causal
from ggmodel.ml import RopeType
from ggmodel.nn import RMSNorm


def _rope_dims(hf: Mapping[str, Any]) -> int:
    head_dim = hf.get("head_dim") or hf["hidden_size"] // hf["num_attention_heads"]
    return int(head_dim * hf.get("partial_rotary_factor", 0.5))


class Glm4MoeConfig(nn.DraftingConfig, nn.SharedExpertsConfig):
    # The tensors tell both.
    fixed = {"attention_bias": ..., "use_qk_norm": ...}

    rope_dims: int = kv("rope.dimension_count", hf=_rope_dims)
    gating: int = kv("expert_gating_func", hf=lambda hf: nn.SIGMOID, default=nn.SIGMOID)


class Attention(nn.Attention):
    q_norm: RMSNorm | None = gguf("attn_q_norm", hf="q_norm", shape=("head_dim",))
    k_norm: RMSNorm | None = gguf("attn_k_norm", hf="k_norm", shape=("head_dim",))


class Experts(nn.GatedExperts):
    bias: Tensor = nn.selection_bias("gate.e_score_correction_bias")
    shared: nn.SharedExpert = gguf(hf="shared_experts")


class Layer(nn.PreNormLayer):
    attn: Attention
    ffn_norm: RMSNorm = gguf("post_attention_norm", hf="post_attention_layernorm", shape=("width",))
    ffn: nn.GatedMLP | Experts


@register("glm4moe", hf="Glm4MoeForCausalLM")
class Glm4Moe(nn.DraftingDecoder):
    config: Glm4MoeConfig
    layers: list[Layer]

    def caches(self) -> list[Causal]:
        return [Causal(self.rotary.rope(RopeType.NEOX))] * self.config.layers
