"""Gemma 2: every other layer local, norms before and after each block, capped scores."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ggmodel import Tensor, gguf, kv, nn, register
from ggmodel.errors import Unsupported
from ggmodel.kvcache import Causal, Sliding
from ggmodel.ml import Context, RopeType
from ggmodel.model import AddConstant, Batch
from ggmodel.nn import RMSNorm

TANH = "gelu_pytorch_tanh"


def _causal(hf: Mapping[str, Any]) -> bool | None:
    return False if hf.get("use_bidirectional_attention") else None


class Gemma2Config(nn.DecoderConfig):
    head_dim: int = kv("attention.key_length", hf="head_dim", default=256)
    scale: float = kv(
        "attention.scale",
        hf=lambda hf: hf.get("query_pre_attn_scalar", 256) ** -0.5,
        # The published 27B, with 46 layers, is the exception; files lack the key.
        default=lambda h: (h.width // h.heads if h.layers == 46 else h.head_dim) ** -0.5,
    )
    # Configs have both keys; null means no cap.
    score_cap: float = kv(
        "attn_logit_softcapping", hf=lambda hf: hf.get("attn_logit_softcapping", 0.0), default=50.0
    )
    logit_cap: float = kv(
        "final_logit_softcapping",
        hf=lambda hf: hf.get("final_logit_softcapping", 0.0),
        default=30.0,
    )
    eps: float = kv("attention.layer_norm_rms_epsilon", hf="rms_norm_eps", default=1e-6)
    context: int = kv("context_length", hf="max_position_embeddings", default=8192)
    window: int = kv("attention.sliding_window", hf="sliding_window", default=4096)
    pattern: list = kv("attention.sliding_window_pattern", hf=nn.sliding_layers, default=[2])
    causal: bool = kv("attention.causal", hf=_causal, default=True)
    activation: str = nn.activation(TANH, "hidden_activation")
    embedding_scale = property(lambda h: h.width**0.5)


def _norm(name: str, hf: str) -> RMSNorm:
    """A norm that multiplies by 1 + weight in checkpoints."""
    return gguf(name, hf=hf, op=AddConstant(1), shape=("width",))


class Layer(nn.SandwichLayer):
    attn: nn.Attention


@register("gemma2", hf="Gemma2ForCausalLM")
class Gemma2(nn.Decoder):
    config: Gemma2Config
    layers: list[Layer]
    norm: RMSNorm = _norm("output_norm", "model.norm")

    def validate(self) -> None:
        if not self.config.causal:
            raise Unsupported(
                "a Gemma 2 with bidirectional attention; only causal ones are supported"
            )

    def caches(self) -> list[Causal | Sliding]:
        h = self.config
        return Sliding.where(h.local, h.window, self.rotary.rope(RopeType.NEOX))

    def forward(self, ctx: Context, batch: Batch) -> Tensor:
        return nn.softcap(self.head(self.states(ctx, batch)), self.config.logit_cap)
