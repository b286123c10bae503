"""OLMo 2: norms after attention and feed-forward, and on whole queries and keys.

OLMo 3 is the same with windows; files name both `olmo2`."""

from __future__ import annotations

from typing import Any

from ggmodel import Tensor, gguf, kv, nn, register
from ggmodel.kvcache import Causal, Sliding
from ggmodel.ml import RopeType
from ggmodel.nn import RMSNorm


def _window(hf: Any) -> int | None:
    """Only OLMo 3 has windows."""
    return hf.get("sliding_window") if "Olmo3ForCausalLM" in hf["architectures"] else None


class Olmo2Config(nn.DecoderConfig):
    eps: float = kv("attention.layer_norm_rms_epsilon", hf="rms_norm_eps", default=1e-5)
    context: int = kv("context_length", hf="max_position_embeddings", default=4096)
    window: int = kv("attention.sliding_window", hf=_window, default=0)
    pattern: list = kv("attention.sliding_window_pattern", hf=nn.sliding_layers, default=[4])


class Attention(nn.Attention):
    """Norms are those of all heads together."""

    q_norm: RMSNorm = gguf("attn_q_norm", hf="q_norm", shape=("q_width",))
    k_norm: RMSNorm = gguf("attn_k_norm", hf="k_norm", shape=("k_width",))

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        h = self.config
        q = self.q_norm(self.q(x)).reshape(h.head_dim, h.heads, -1)
        k = self.k_norm(self.k(x)).reshape(h.head_dim, h.kv_heads, -1)
        return q, k, self.v(x).reshape(h.value_dim, h.kv_heads, -1)


class Layer(nn.PostNormLayer):
    attn: Attention


@register("olmo2", hf=("Olmo2ForCausalLM", "Olmo3ForCausalLM"))
class OLMo2(nn.Decoder):
    config: Olmo2Config
    layers: list[Layer]

    def caches(self) -> list[Causal | Sliding]:
        h, scaled = self.config, self.rotary.rope(RopeType.NEOX)
        plain = nn.Rope(h.rope_dims, h.rope_base, type=RopeType.NEOX)  # for local layers
        return Sliding.where(h.local, h.window, [plain if near else scaled for near in h.local])
