"""Nomic's BERT and Jina's third: BERT with rotary positions; Nomic's feed-forward has a gate."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ggmodel import kv, nn, register
from ggmodel.errors import ConfigError
from ggmodel.kvcache import Bidirectional
from ggmodel.ml import RopeType
from ggmodel.nn import Rotary


def _trained(hf: Mapping[str, Any]) -> int | None:
    """The positions of the training, for checkpoints before transformers had the class; those name
    as many as a scaling reaches, too."""
    if "n_positions" not in hf:
        return None
    odd = [k for k in ("prenorm", "rotary_emb_interleaved", "rotary_emb_scale_base") if hf.get(k)]
    if odd or hf.get("rotary_emb_fraction", 1.0) != 1.0 or hf.get("moe_every_n_layers"):
        raise ConfigError(
            "unsupported: prenorm, moe_every_n_layers, or rotary_emb_* of other values than usual"
        )
    return min(hf["n_positions"], hf.get("max_trained_positions", 2048))


def _act(hf: Mapping[str, Any]) -> str | None:
    return "silu" if hf.get("activation_function") == "swiglu" else hf.get("hidden_act")


class NomicConfig(nn.EncoderConfig, nn.RopeConfig):
    """Names before transformers had the class come first: a config has defaults of the others."""

    fixed = {"head_dim": ...}

    layers: int = kv("block_count", hf=("n_layer", "num_hidden_layers"))
    width: int = kv("embedding_length", hf=("n_embd", "hidden_size"))
    ffn: int = kv("feed_forward_length", hf=("n_inner", "intermediate_size"))
    heads: int = kv(
        "attention.head_count", hf=("n_head", "num_attention_heads"), least=1, divides="width"
    )
    eps: float = kv(
        "attention.layer_norm_epsilon", hf=("layer_norm_epsilon", "layer_norm_eps"), default=1e-12
    )
    context: int = kv("context_length", hf=(_trained, "max_position_embeddings"))
    activation: str = kv(
        "hidden_activation", hf=lambda hf: None if _act(hf) == "silu" else _act(hf), default="silu"
    )
    rope_base: float = kv(
        "rope.freq_base", hf=("rotary_emb_base", "rope_theta", lambda hf: 1000.0), default=10000.0
    )


@register("nomic-bert", hf="NomicBertModel")
class NomicBert(nn.Encoder):
    config: NomicConfig
    rotary: Rotary

    def caches(self) -> list[Bidirectional]:
        return [Bidirectional(rope=self.rotary.rope(RopeType.NEOX))] * self.config.layers


def _base(hf: Mapping[str, Any]) -> float:
    """The base of the rope in transformers' class, where its config does not say it."""
    if hf.get("model_type") == "xlm-roberta":
        raise ConfigError("config.json lacks rotary_emb_base, the base of the positions' rotation")
    return 20000.0


class JinaConfig(nn.EncoderConfig, nn.RopeConfig):
    """Checkpoints before transformers had the class are XLM-RoBERTa's, which `Bert` stores so."""

    fixed = {"head_dim": ...}

    rope_base: float = kv(
        "rope.freq_base", hf=("rope_theta", "rotary_emb_base", _base), default=10000.0
    )


@register("jina-bert-v3", hf="JinaEmbeddingsV3Model")
class JinaBertV3(NomicBert):
    config: JinaConfig
    # A task's matrices are an adapter (`ggmodel.convert.tasks`).
    ignore_hf = (*nn.Encoder.ignore_hf, "*.parametrizations.weight.0.lora_[AB]")
