"""ERNIE 4.5 with experts: neighbours of each head rotate together, a router by softmax and bias."""

from __future__ import annotations

from typing import Any

from ggmodel import Tensor, gguf, kv, nn, register
from ggmodel.kvcache import Causal
from ggmodel.model import Reshape


class ErnieMoeConfig(nn.SharedExpertsConfig):
    # The tensors tell which layers have experts, and biases.
    fixed = {"use_bias": ..., "moe_layer_end_index": ..., "moe_norm_min": 1e-12}
    unread = ("dense_layers", "shared_experts", "expert_step")

    experts: int = kv("expert_count", hf="moe_num_experts")
    experts_used: int = kv("expert_used_count", hf="moe_k")
    shared_experts: int = kv("expert_shared_count", hf="moe_num_shared_experts", default=0)
    dense_layers: int = kv("leading_dense_block_count", hf="moe_layer_start_index", default=0)
    expert_step: int = kv("interleave_moe_layer_step", hf="moe_layer_interval", default=1)
    normalize: Any = True


class Experts(nn.GatedExperts):
    bias: Tensor = gguf(
        "exp_probs_b.bias",
        hf="moe_statics.e_score_correction_bias",
        op=Reshape((-1,), (1, -1)),
        shape=("experts",),
    )
    shared: nn.SharedExpert | None = gguf(hf="shared_experts")


class Layer(nn.PreNormLayer):
    attn: nn.Attention
    ffn: nn.GatedMLP | Experts


@register("ernie4_5-moe", hf="Ernie4_5_MoeForCausalLM")
class ErnieMoe(nn.Decoder):
    config: ErnieMoeConfig
    layers: list[Layer]

    def caches(self) -> list[Causal]:
        return [Causal(self.rotary.rope())] * self.config.layers
