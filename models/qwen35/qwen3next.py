"""Qwen3-Next: Qwen 3.5 with experts; heads of values stay beside those that share their keys."""

from __future__ import annotations

from typing import Any

from ggmodel import Tensor, gguf, nn, register
from ggmodel.model import HeadRows
from ggmodel.nn import Linear

from .config import Qwen3NextConfig
from .model import Attention, Experts, HybridDecoder, Layer


def _of_heads(*parts: int) -> Tensor:
    """Queries, keys, values and gates of each head of keys are together."""
    rows = ("state", "state", "shared_inner", "shared_inner")
    return gguf("weight", hf=HeadRows("in_proj_qkvz.weight", parts, rows, "groups"))


class QKV(Linear):
    weight = _of_heads(0, 1, 2)


class Gate(Linear):
    weight = _of_heads(3)


class DeltaNet(nn.DeltaNet):
    qkv: QKV = gguf("attn_qkv", hf="", shape=("width", "channels"))
    gate: Gate = gguf("attn_gate", hf="", shape=("width", "inner"))
    beta: Any = None
    alpha: Any = None
    both: Linear = gguf("ssm_ba", hf="in_proj_ba", shape=("width", "twice_values"))

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        h = self.config
        both = self.both(x).reshape(2 * h.shared, h.groups, -1).chunk(0, h.shared)
        beta, alpha = (s.contiguous(h.values, -1) for s in both)
        return self.qkv(x), self.gate(x), beta.sigmoid(), alpha


class NextLayer(Layer):
    attn: Attention | DeltaNet = gguf(hf=("self_attn", "linear_attn"))
    ffn: Experts | nn.GatedMLP = gguf(hf="mlp")


@register("qwen3next", hf="Qwen3NextForCausalLM")
class Qwen3Next(HybridDecoder, text="model"):
    config: Qwen3NextConfig
    layers: list[NextLayer]
