"""Diffllama: begun from llama."""

from __future__ import annotations

import math

from ggmodel import Tensor, gguf, kv, nn, register
from ggmodel.kvcache import Causal
from ggmodel.model import LayerMemory
from ggmodel.nn import ExpertLinear


class DiffllamaConfig(nn.DecoderConfig):
    vocab: int | None = kv("vocab_size", hf="vocab_size")  # other programs need it
    context: int = kv("context_length", hf="max_position_embeddings", default=2048)
    rope_dims: int = kv("rope.dimension_count", hf="head_dim", default="head_dim")
    experts: int = kv("expert_count", hf="num_local_experts", default=0)
    experts_used: int = kv("expert_used_count", hf="num_experts_per_tok", default=0)
    lambda_std_dev: float = kv("lambda_std_dev", hf="lambda_std_dev")


class Experts(nn.GatedExperts):
    gate: ExpertLinear = nn.stacked("gate", "w1", "ffn")
    up: ExpertLinear = nn.stacked("up", "w3", "ffn")
    down: ExpertLinear = nn.stacked("down", "w2", "ffn")


class PermutedAttention(nn.PermutedAttention):
    """Differential attention (arXiv 2410.05258): pairs of heads share their values, and what the
    second one sees is subtracted."""

    lambda_k1: Tensor = gguf("lambda_k1", hf="lambda_k1", shape=("head_dim",))
    lambda_k2: Tensor = gguf("lambda_k2", hf="lambda_k2", shape=("head_dim",))
    lambda_q1: Tensor = gguf("lambda_q1", hf="lambda_q1", shape=("head_dim",))
    lambda_q2: Tensor = gguf("lambda_q2", hf="lambda_q2", shape=("head_dim",))

    def attend(self, q: Tensor, k: Tensor, v: Tensor, cache: LayerMemory) -> Tensor:
        h, first = self.config, 0.8 - 0.6 * math.exp(-0.3 * cache.layer)
        v, other = v.chunk(1, h.kv_heads // 2)
        y = nn.attention(q, k, v.concat(other, 0).repeat(1, 2), cache, scale=h.scale)
        y, other = y.reshape(2 * h.head_dim, h.heads, -1).chunk(1, h.heads // 2)
        share = (self.lambda_q1 * self.lambda_k1).sum_rows().exp()
        share = share - (self.lambda_q2 * self.lambda_k2).sum_rows().exp()
        y = (y - other * share - other.scale(first)).rms_norm(eps=h.eps).scale(1 - first)
        return self.out(y.reshape(h.q_width, -1))


class Layer(nn.PreNormLayer):
    attn: PermutedAttention = gguf(hf="self_attn")
    ffn: nn.GatedMLP | Experts = gguf(hf=("mlp", "block_sparse_moe"))


@register("diffllama", hf="DiffLlamaForCausalLM")
class Diffllama(nn.Decoder):
    # Angles of rope that older versions of transformers saved.
    ignore_hf = ("model.layers.*.self_attn.rotary_emb.inv_freq",)
    config: DiffllamaConfig
    layers: list[Layer]

    def caches(self) -> list[Causal]:
        return [Causal(self.rotary.rope())] * self.config.layers
