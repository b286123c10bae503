"""Llama and models of its blocks: Mixtral (with experts), SmolLM."""

from __future__ import annotations

from ggmodel import gguf, kv, nn, register
from ggmodel.kvcache import Causal
from ggmodel.nn import ExpertLinear


class LlamaConfig(nn.DecoderConfig):
    vocab: int | None = kv("vocab_size", hf="vocab_size")  # other programs need it
    context: int = kv("context_length", hf="max_position_embeddings", default=2048)
    rope_dims: int = kv("rope.dimension_count", hf="head_dim", default="head_dim")
    experts: int = kv("expert_count", hf="num_local_experts", default=0)
    experts_used: int = kv("expert_used_count", hf="num_experts_per_tok", default=0)


class Experts(nn.GatedExperts):
    gate: ExpertLinear = nn.stacked("gate", "w1", "ffn")
    up: ExpertLinear = nn.stacked("up", "w3", "ffn")
    down: ExpertLinear = nn.stacked("down", "w2", "ffn")


class Layer(nn.PreNormLayer):
    attn: nn.PermutedAttention
    ffn: nn.GatedMLP | Experts = gguf(hf=("mlp", "block_sparse_moe"))


@register("llama", hf=("LlamaForCausalLM", "MixtralForCausalLM"))
class Llama(nn.Decoder):
    # Angles of rope that older versions of transformers saved.
    ignore_hf = ("model.layers.*.self_attn.rotary_emb.inv_freq",)
    config: LlamaConfig
    layers: list[Layer]

    def caches(self) -> list[Causal]:
        return [Causal(self.rotary.rope())] * self.config.layers
