"""Phi 3 and 4: llama's blocks, with queries, keys and values in one matrix, gate and up in one."""

from __future__ import annotations

from ggmodel import kv, nn, register
from ggmodel.kvcache import Causal, Sliding
from ggmodel.ml import RopeType


class Phi3Config(nn.DecoderConfig):
    eps: float = kv("attention.layer_norm_rms_epsilon", hf="rms_norm_eps", default=1e-5)
    context: int = kv("context_length", hf="max_position_embeddings", default=4096)
    rope_dims: int = nn.partial_rope()
    window: int = kv("attention.sliding_window", hf="sliding_window", default=0)


class Layer(nn.PreNormLayer):
    attn: nn.FusedAttention
    ffn: nn.FusedGatedMLP


@register("phi3", hf="Phi3ForCausalLM")
class Phi3(nn.Decoder):
    config: Phi3Config
    layers: list[Layer]

    def caches(self) -> list[Causal | Sliding]:
        h = self.config
        local = [h.window != 0] * h.layers
        return Sliding.where(local, h.window, self.rotary.rope(RopeType.NEOX))
