"""Command R: Cohere's first generation, in which every layer sees everything and rotates."""

from __future__ import annotations

from ggmodel import gguf, kv, nn, register
from ggmodel.kvcache import Causal
from ggmodel.models.cohere.cohere2 import Cohere, CohereConfig, ParallelLayer
from ggmodel.nn import LayerNorm


class CommandRConfig(CohereConfig):
    fixed = {"use_qk_norm": ...}  # the tensors tell the same

    # The positions that it was trained with, where a config has both.
    context: int = kv("context_length", hf=("model_max_length", "max_position_embeddings"))


class HeadNorm(LayerNorm):
    """A layer norm with weights of its own for each head. As a field: shape=(head dim, heads)."""

    dims = {"weight": (0, 1)}


class Attention(nn.Attention):
    q_norm: HeadNorm | None = gguf("attn_q_norm", hf="q_norm", shape=("head_dim", "heads"))
    k_norm: HeadNorm | None = gguf("attn_k_norm", hf="k_norm", shape=("head_dim", "kv_heads"))


class Layer(ParallelLayer):
    attn: Attention


@register("command-r", hf="CohereForCausalLM")
class CommandR(Cohere):
    config: CommandRConfig
    layers: list[Layer]

    def caches(self) -> list[Causal]:
        return [Causal(self.rotary.rope())] * self.config.layers
