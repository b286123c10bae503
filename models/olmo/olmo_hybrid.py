"""OLMo Hybrid: gated delta nets in most layers, OLMo 2's layers of attention in the others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ggmodel import Tensor, gguf, kv, nn, register
from ggmodel.kvcache import Causal
from ggmodel.ml import RopeType
from ggmodel.model import Chain, Concat
from ggmodel.nn import Linear, RMSNorm

from .olmo2 import Attention

NORM_EPS = 1e-5  # of the norm of values; configs do not have it


def _kv_heads(hf: Mapping[str, Any]) -> list[int]:
    layers, heads = hf["num_hidden_layers"], hf.get("num_key_value_heads")
    usual = [
        i % 4 != 3 and (layers > 3 or i + 1 < layers) for i in range(layers)
    ]  # at least one attends
    recurrent = nn.recurrent_layers(hf) or usual
    return [0 if states else heads or hf["num_attention_heads"] for states in recurrent]


class OlmoHybridConfig(nn.DeltaNetConfig, nn.HybridConfig):
    # Training alone reads these.
    fixed = {f"linear_{key}": ... for key in ("a_log_min", "a_log_max", "dt_min", "dt_max")} | {
        "linear_dt_init_floor": ...,
        "layer_types": ...,
    }

    eps: float = kv("attention.layer_norm_rms_epsilon", hf="rms_norm_eps", default=1e-6)
    context: int = kv("context_length", hf="max_position_embeddings", default=65536)
    each_kv_heads: list = kv("attention.head_count_kv", hf=_kv_heads)
    overwrites_twice: bool = kv(
        "ssm.negative_eigenvalues", hf="linear_allow_neg_eigval", default=True
    )
    rotates: bool = kv(
        "rope.scaling.finetuned", hf=lambda hf: hf.get("rope_theta") is not None, default=True
    )


def _joined(part: str) -> Concat:
    names = tuple(f"{name}_{part}.weight" for name in "qkv")
    return Concat(names, ("key_width", "key_width", "inner"))


class QKV(Linear):
    weight: Tensor = gguf("weight", hf=_joined("proj"))


class DeltaNet(nn.DeltaNet):
    qkv: QKV = gguf("attn_qkv", hf="", op=nn.TileHeads("value_state"), shape=("width", "channels"))
    gate: Linear = gguf(
        "attn_gate", hf="g_proj", op=nn.TileHeads("value_state"), shape=("width", "inner")
    )
    beta: Linear = gguf("ssm_beta", hf="b_proj", op=nn.TileHeads(), shape=("width", "values"))
    alpha: Linear = gguf("ssm_alpha", hf="a_proj", op=nn.TileHeads(), shape=("width", "values"))
    taps: Tensor = gguf(
        "ssm_conv1d.weight",
        hf=(_joined("conv1d"), "conv1d.weight"),
        op=Chain(nn.TAPS, nn.TileHeads("value_state")),
        shape=("kernel", "channels"),
    )
    norm: RMSNorm = gguf("ssm_norm", hf="o_norm", shape=("value_state",))
    out: Linear = gguf(
        "ssm_out", hf="o_proj", op=nn.TileHeads("value_state", axis=1), shape=("inner", "width")
    )

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        qkv, gate, beta, alpha = super().project(x)
        return qkv, gate, beta.scale(2) if self.config.overwrites_twice else beta, alpha

    def normed(self, y: Tensor) -> Tensor:
        return self.norm(y, NORM_EPS)


# Published names, and those of transformers.
FIRST = "attention_layer_norm input_layernorm"
SECOND = "feedforward_layer_norm post_attention_layernorm"


def _norm(name: str, hf: str) -> RMSNorm:
    return gguf(name, hf=hf.split(), shape=("width",))


class AttentionLayer(nn.PostNormLayer):
    attn_norm: RMSNorm = _norm("post_attention_norm", SECOND)
    attn: Attention


class DeltaLayer(nn.PreNormLayer):
    attn_norm: RMSNorm = _norm("attn_norm", FIRST)
    attn: DeltaNet = gguf(hf="linear_attn")
    ffn_norm: RMSNorm = _norm("ffn_norm", SECOND)


@register("olmo_hybrid", hf="OlmoHybridForCausalLM")
class OlmoHybrid(nn.HybridDecoder):
    config: OlmoHybridConfig
    layers: list[AttentionLayer | DeltaLayer]

    def attention_memory(self) -> Causal:
        return Causal(self.rotary.rope(RopeType.NEOX) if self.config.rotates else None)
