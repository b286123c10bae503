"""Command R: Cohere's first generation, in which every layer sees everything and rotates."""

from __future__ import annotations

from ggmodel import Module, Tensor, gguf, kv, nn, register
from ggmodel.kvcache import Causal
from ggmodel.model import Batch, LayerMemory
from ggmodel.models.cohere.cohere2 import Cohere, CohereConfig, ParallelLayer
from ggmodel.nn import LayerNorm, Linear


class CommandRConfig(CohereConfig):
    assumed = {"use_qk_norm": ...}  # the tensors tell the same

    # The positions that it was trained with, where a config has both.
    context: int = kv("context_length", hf=("model_max_length", "max_position_embeddings"))


class HeadNorm(LayerNorm):
    """A layer norm with weights of its own for each head. As a field: shape=(head dim, heads)."""

    dims = {"weight": (0, 1)}


class Attention(Module):
    config: CommandRConfig
    q: Linear = gguf("attn_q", hf="q_proj", shape=("width", "q_width"))
    k: Linear = gguf("attn_k", hf="k_proj", shape=("width", "k_width"))
    v: Linear = gguf("attn_v", hf="v_proj", shape=("width", "v_width"))
    out: Linear = gguf("attn_output", hf="o_proj", shape=("out_width", "width"))
    q_norm: HeadNorm | None = gguf("attn_q_norm", hf="q_norm", shape=("head_dim", "heads"))
    k_norm: HeadNorm | None = gguf("attn_k_norm", hf="k_norm", shape=("head_dim", "kv_heads"))

    def forward(self, x: Tensor, batch: Batch, cache: LayerMemory) -> Tensor:
        h = self.config
        q = self.q(x).reshape(h.head_dim, h.heads, -1)
        k = self.k(x).reshape(h.head_dim, h.kv_heads, -1)
        v = self.v(x).reshape(h.value_dim, h.kv_heads, -1)
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        q, k = cache.rotate(q, batch.positions), cache.rotate(k, batch.positions)
        return self.out(nn.attention(q, k, v, cache, scale=h.head_dim**-0.5))


class Layer(ParallelLayer):
    attn: Attention


@register("command-r", hf="CohereForCausalLM")
class CommandR(Cohere):
    config: CommandRConfig
    layers: list[Layer]

    def caches(self) -> list[Causal]:
        return [Causal(self.rotary.rope())] * self.config.layers
