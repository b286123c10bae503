"""Ling 2.0 and Ring 2.0: one matrix for queries, keys and values, norms of both, heads rotated in
part, DeepSeek V3's router."""

from __future__ import annotations

from typing import Any

from ggmodel import Tensor, gguf, kv, nn, register
from ggmodel.kvcache import Causal
from ggmodel.ml import RopeType
from ggmodel.nn import Embedding, RMSNorm


class BailingMoe2Config(nn.DraftingConfig, nn.SharedExpertsConfig):
    fixed = {
        # The tensors tell.
        **dict.fromkeys(("use_bias", "use_qkv_bias", "use_qk_norm"), ...),
        "moe_router_enable_expert_bias": ...,
        "norm_head": False,
        "norm_topk_prob": True,
        "score_function": "sigmoid",
    }

    vocab: int | None = kv("vocab_size", hf="vocab_size")  # other programs need it
    rope_dims: int = nn.partial_rope()
    shared_width: int = kv(
        "expert_shared_feed_forward_length",
        hf=("moe_shared_expert_intermediate_size", "moe_intermediate_size"),
        default="expert_ffn",
    )
    shared_ffn: Any = property(lambda h: h.shared_experts * h.shared_width)
    gating: int = kv("expert_gating_func", hf=lambda hf: nn.SIGMOID, default=nn.SIGMOID)
    # A single expert is weighted by its sigmoid.
    normalize: bool = kv(
        "expert_weights_norm", hf=lambda hf: hf["num_experts_per_tok"] > 1, default=False
    )


class Attention(nn.FusedAttention):
    q_norm: RMSNorm | None = gguf("attn_q_norm", hf="query_layernorm", shape=("head_dim",))
    k_norm: RMSNorm | None = gguf("attn_k_norm", hf="key_layernorm", shape=("head_dim",))


class Experts(nn.GatedExperts):
    bias: Tensor | None = nn.selection_bias("gate.expert_bias")
    shared: nn.SharedExpert = gguf(hf="shared_experts")


class Layer(nn.PreNormLayer):
    attn: Attention = gguf(hf="attention")
    ffn: nn.GatedMLP | Experts


@register("bailingmoe2", hf="BailingMoeV2ForCausalLM")
class BailingMoe2(nn.DraftingDecoder):
    config: BailingMoe2Config
    embed: Embedding = gguf("token_embd", hf="model.word_embeddings", shape=("width", None))
    layers: list[Layer]

    def caches(self) -> list[Causal]:
        return [Causal(self.rotary.rope(RopeType.NEOX))] * self.config.layers
