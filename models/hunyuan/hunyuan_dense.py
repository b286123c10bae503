"""Hunyuan, dense: llama's blocks with a norm on each query and key behind the rotation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ggmodel import Tensor, gguf, kv, nn, register
from ggmodel.kvcache import Causal
from ggmodel.ml import RopeType
from ggmodel.model import Batch, LayerMemory
from ggmodel.nn import RMSNorm


def _alpha(hf: Mapping[str, Any]) -> float | None:
    scaling = hf.get("rope_scaling") or {}
    kind = scaling.get("rope_type") or scaling.get("type")
    return scaling.get("alpha") if kind == "dynamic" else None


def _base(hf: Mapping[str, Any]) -> float | None:
    """The base, stretched by `alpha`, which checkpoints call dynamic scaling."""
    alpha, theta = _alpha(hf), hf.get("rope_theta", 10000.0)
    dims = hf.get("head_dim") or hf["hidden_size"] // hf["num_attention_heads"]
    return theta * alpha ** (dims / (dims - 2)) if alpha else theta


def _dynamic(hf: Mapping[str, Any]) -> float | None:
    scaling = hf.get("rope_scaling") or {}
    kind = scaling.get("rope_type") or scaling.get("type")
    return scaling.get("factor") if kind == "dynamic" and not _alpha(hf) else None


class HunyuanConfig(nn.DecoderConfig):
    fixed = {"rope_scaling.mscale_all_dim": ...}  # nothing reads it without YaRN

    rope_base: float = kv("rope.freq_base", hf=_base, default=10000.0)
    dynamic_factor: float = kv("rope.scaling.dynamic_factor", hf=_dynamic, default=0.0)


class Attention(nn.Attention):
    """Keys lie in the cache without the weights of their norm, which then stay what they are where
    positions move; the queries have them instead."""

    query_norm: RMSNorm = gguf("attn_q_norm", hf="query_layernorm", shape=("head_dim",))
    key_weight: Tensor = gguf("attn_k_norm.weight", hf="key_layernorm.weight", shape=("head_dim",))

    def forward(self, x: Tensor, batch: Batch, cache: LayerMemory) -> Tensor:
        q, k, v = self.project(x)
        q = self.query_norm(cache.rotate(q, batch.positions)) * self.key_weight
        k = cache.rotate(k, batch.positions).rms_norm(eps=self.config.eps)
        return self.attend(q, k, v, cache)


class Layer(nn.PreNormLayer):
    attn: Attention


@register("hunyuan-dense", hf="HunYuanDenseV1ForCausalLM")
class Hunyuan(nn.Decoder):
    config: HunyuanConfig
    layers: list[Layer]

    def caches(self) -> list[Causal]:
        return [Causal(self.rotary.rope(RopeType.NEOX))] * self.config.layers
