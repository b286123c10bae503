"""Qwen 3, dense and with experts: llama's blocks with a norm on each query and key."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ggmodel import Context, Tensor, kv, nn, register
from ggmodel.kvcache import Causal, Sliding
from ggmodel.ml import RopeType


def _experts(hf: Mapping[str, Any]) -> int | None:
    return hf.get("num_experts") or hf.get("num_local_experts")


def _pattern(hf: Mapping[str, Any]) -> list[bool] | None:
    """In models with experts all layers are local."""
    if not hf.get("use_sliding_window"):
        return None
    return [True] * hf["num_hidden_layers"] if _experts(hf) else nn.sliding_layers(hf)


class Qwen3Config(nn.ExpertsConfig):
    # Read where there are windows; the tensors tell which layers have experts.
    fixed = {"max_window_layers": ..., "mlp_only_layers": ..., "decoder_sparse_step": ...}

    eps: float = kv("attention.layer_norm_rms_epsilon", hf="rms_norm_eps", default=1e-6)
    context: int = kv("context_length", hf="max_position_embeddings", default=32768)
    window: int = kv("attention.sliding_window", hf=nn.sliding_window, default=0)
    pattern: list = kv("attention.sliding_window_pattern", hf=_pattern, default=[1])
    # llama.cpp's converter does not write this; all published models normalize.
    normalize: bool = kv("expert_weights_norm", hf="norm_topk_prob", default=True)
    # Rerankers and classifiers have a head for whole texts, which reads the last token.
    pooling: int | None = kv("pooling_type", hf=("pooling_type", nn.head_pooling))
    labels: list | None = kv("classifier.output_labels", hf=nn.head_labels)
    head_pools = 3


class Layer(nn.PreNormLayer):
    attn: nn.NormedAttention
    ffn: nn.GatedMLP | nn.GatedExperts


@register("qwen3", hf=("Qwen3ForCausalLM", "Qwen3ForSequenceClassification"))
class Qwen3(nn.Decoder):
    config: Qwen3Config
    layers: list[Layer]
    classifier: nn.DecoderHead | None

    def caches(self) -> list[Causal | Sliding]:
        h = self.config
        return Sliding.where(h.local, h.window, self.rotary.rope(RopeType.NEOX))

    def classify(self, ctx: Context, pooled: Tensor) -> Tensor:
        return super().classify(ctx, pooled) if self.classifier is None else self.classifier(pooled)


@register("qwen3moe", hf="Qwen3MoeForCausalLM")
class Qwen3Moe(Qwen3):
    """The same with experts in most layers, under a name of its own in files."""
