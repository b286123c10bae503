"""Command R: Cohere's first generation, in which every layer sees everything and rotates."""

from __future__ import annotations

from ggmodel import gguf, kv, nn, register
from ggmodel.kvcache import Causal
from ggmodel.models.cohere.cohere2 import CohereConfig


class CommandRConfig(CohereConfig):
    fixed = {"use_qk_norm": ...}  # the tensors tell the same

    # The positions that it was trained with, where a config has both.
    context: int = kv("context_length", hf=("model_max_length", "max_position_embeddings"))


class Attention(nn.Attention):
    q_norm: nn.HeadNorm | None = gguf("attn_q_norm", hf="q_norm", shape=("head_dim", "heads"))
    k_norm: nn.HeadNorm | None = gguf("attn_k_norm", hf="k_norm", shape=("head_dim", "kv_heads"))


class Layer(nn.LayerNormLayer):
    attn: Attention
    ffn_norm: nn.LayerNorm | None
    ffn: nn.GatedMLP


@register("command-r", hf="CohereForCausalLM")
class CommandR(nn.LayerNormDecoder):
    config: CommandRConfig
    layers: list[Layer]

    def caches(self) -> list[Causal]:
        return [Causal(self.rotary.rope())] * self.config.layers
