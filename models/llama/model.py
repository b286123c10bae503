"""Llama and models of its blocks: Mixtral (with experts), SmolLM."""

from __future__ import annotations

from ggmodel import gguf, kv, nn, register
from ggmodel.kvcache import Causal
from ggmodel.model import Stack
from ggmodel.nn import ExpertLinear, Linear


class LlamaConfig(nn.DecoderConfig):
    vocab: int | None = kv("vocab_size", hf="vocab_size")  # other programs need it
    context: int = kv("context_length", hf="max_position_embeddings", default=2048)
    rope_dims: int = kv("rope.dimension_count", hf="head_dim", default="head_dim")
    experts: int = kv("expert_count", hf="num_local_experts", default=0)
    experts_used: int = kv("expert_used_count", hf="num_experts_per_tok", default=0)


def _experts(name: str, hf: str, *shape: str) -> ExpertLinear:
    return gguf(name, hf=Stack(f"experts.{{}}.{hf}", "experts"), shape=(*shape, "experts"))


class Experts(nn.GatedExperts):
    router: Linear = gguf("ffn_gate_inp", hf="gate", shape=("width", "experts"))
    gate: ExpertLinear = _experts("ffn_gate_exps", "w1", "width", "ffn")
    up: ExpertLinear = _experts("ffn_up_exps", "w3", "width", "ffn")
    down: ExpertLinear = _experts("ffn_down_exps", "w2", "ffn", "width")


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
