"""EXAONE 4: norms behind attention and feed-forward part, and on each query and key; where there
are windows, layers that see everything do not rotate."""

from __future__ import annotations

from ggmodel import gguf, kv, nn, register
from ggmodel.kvcache import Causal, Sliding
from ggmodel.ml import RopeType
from ggmodel.nn import RMSNorm


class Exaone4Config(nn.DecoderConfig):
    window: int = kv("attention.sliding_window", hf="sliding_window", default=0)
    pattern: list = kv("attention.sliding_window_pattern", hf=nn.sliding_layers, default=[4])


class Attention(nn.Attention):
    q_norm: RMSNorm = gguf("attn_q_norm", hf="q_norm", shape=("head_dim",))
    k_norm: RMSNorm = gguf("attn_k_norm", hf="k_norm", shape=("head_dim",))


class Layer(nn.PostNormLayer):
    attn: Attention


@register("exaone4", hf="Exaone4ForCausalLM")
class Exaone4(nn.Decoder):
    config: Exaone4Config
    layers: list[Layer]

    def caches(self) -> list[Causal | Sliding]:
        h, rope = self.config, self.rotary.rope(RopeType.NEOX)
        ropes = [rope if near or not h.window else None for near in h.local]
        return Sliding.where(h.local, h.window, ropes)
