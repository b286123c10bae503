"""Phi 3 and 4: llama's blocks, with queries, keys and values in one matrix, gate and up in one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ggmodel import Module, Tensor, gguf, kv, nn, register
from ggmodel.kvcache import Causal, Sliding
from ggmodel.ml import RopeType
from ggmodel.model import Batch, LayerMemory
from ggmodel.nn import Linear


def _rope_dims(hf: Mapping[str, Any]) -> int | None:
    """The rotated part of each head."""
    head_dim = hf["hidden_size"] // hf["num_attention_heads"]
    return int(head_dim * hf.get("partial_rotary_factor", 1.0))


class Phi3Config(nn.DecoderConfig):
    eps: float = kv("attention.layer_norm_rms_epsilon", hf="rms_norm_eps", default=1e-5)
    context: int = kv("context_length", hf="max_position_embeddings", default=4096)
    rope_dims: int = kv("rope.dimension_count", hf=_rope_dims, default="head_dim")
    window: int = kv("attention.sliding_window", hf="sliding_window", default=0)
    qkv_width = property(lambda h: (h.heads + 2 * h.kv_heads) * h.head_dim)
    up_width = property(lambda h: 2 * h.ffn)


class Attention(Module):
    config: Phi3Config
    qkv: Linear = gguf("attn_qkv", hf="qkv_proj", shape=("width", "qkv_width"))
    out: Linear = gguf("attn_output", hf="o_proj", shape=("width", "width"))

    def forward(self, x: Tensor, batch: Batch, cache: LayerMemory) -> Tensor:
        h = self.config
        x = self.qkv(x).reshape(h.head_dim, h.heads + 2 * h.kv_heads, -1)
        q, k, v = x.chunk_sections(1, h.heads, h.kv_heads, h.kv_heads)
        q, k = cache.rotate(q, batch.positions), cache.rotate(k, batch.positions)
        return self.out(nn.attention(q, k, v, cache, scale=h.head_dim**-0.5))


class FeedForward(Module):
    config: Phi3Config
    up: Linear = gguf("ffn_up", hf="gate_up_proj", shape=("width", "up_width"))
    down: Linear = gguf("ffn_down", hf="down_proj", shape=("ffn", "width"))

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.up(x).chunk(0, self.config.ffn)
        return self.down(nn.activate(self.config.activation, gate, up))


class Layer(nn.PreNormLayer):
    attn: Attention
    ffn: FeedForward


@register("phi3", hf="Phi3ForCausalLM")
class Phi3(nn.Decoder):
    config: Phi3Config
    layers: list[Layer]

    def caches(self) -> list[Causal | Sliding]:
        h = self.config
        local = [h.window != 0] * h.layers
        return Sliding.where(local, h.window, self.rotary.rope(RopeType.NEOX))
