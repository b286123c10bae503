"""Hyperparameters of Qwen 3.5."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ggmodel import kv, nn

SECTIONS = [11, 11, 10, 0]  # of transformers' rope, where a config says nothing


def _recurrent(hf: Mapping[str, Any]) -> list[bool]:
    """Layer → whether it is a gated delta net."""
    every, layers = hf.get("full_attention_interval", 4), range(1, hf["num_hidden_layers"] + 1)
    return nn.recurrent_layers(hf) or [i % every > 0 for i in layers]


def _interval(hf: Mapping[str, Any]) -> int:
    """The number of the first layer of attention, counted from 1."""
    return [*_recurrent(hf), False].index(False) + 1


def _mtp_layers(hf: Mapping[str, Any]) -> int | None:
    """One, if the checkpoint has its tensors, which transformers drops; None otherwise."""
    return 1 if "mtp.fc.weight" in hf.get("tensors:", {}) else None


class TextConfig(nn.DeltaNetConfig, nn.DecoderConfig):
    """Hyperparameters that Qwen 3.5 and Qwen3-Next share."""

    blocks: int = kv("block_count", hf=lambda hf: hf["num_hidden_layers"] + (_mtp_layers(hf) or 0))
    mtp_layers: int = kv("nextn_predict_layers", hf=_mtp_layers, default=0, least=0)
    mtp_numbers = property(lambda h: [h.layers] if h.mtp_layers and h.drafts else [])
    layers: Any = property(lambda h: h.blocks - h.mtp_layers)
    ffn: int = kv("feed_forward_length", hf="intermediate_size")
    head_dim: int = kv("attention.key_length", hf="head_dim", default=256)
    eps: float = kv("attention.layer_norm_rms_epsilon", hf="rms_norm_eps", default=1e-6)
    context: int = kv("context_length", hf="max_position_embeddings", default=32768)
    rope_dims: int = kv(
        "rope.dimension_count",
        hf=lambda hf: int(hf["head_dim"] * hf.get("partial_rotary_factor", 0.25)),
    )
    # llama.cpp's older files have the interval alone.
    interval: int = kv("full_attention_interval", hf=_interval, default=4, least=1)
    kinds: list = kv(
        "attention.recurrent_layers",
        hf=_recurrent,
        default=lambda h: [(i + 1) % h.interval > 0 for i in range(h.layers)],
    )
    recurrent: Any = property(lambda h: h.kinds[: h.layers])
    # Attention: queries and their gates.
    q_width = property(lambda h: 2 * h.heads * h.head_dim)


class ExpertsConfig(nn.DecoderConfig):
    experts: int = kv("expert_count", hf="num_experts")
    experts_used: int = kv("expert_used_count", hf="num_experts_per_tok")
    expert_ffn: int = kv("expert_feed_forward_length", hf="moe_intermediate_size")
    shared_ffn: int = kv("expert_shared_feed_forward_length", hf="shared_expert_intermediate_size")


class Qwen35Config(TextConfig, nn.GridConfig):
    fixed = {
        "layer_types": ...,  # read
        # Their tensors tell the same.
        "mtp_num_hidden_layers": ...,
        "mtp_use_dedicated_embeddings": ...,
        "attn_output_gate": True,
    }

    sections: list = kv("rope.dimension_sections", hf=lambda hf: nn.rope_sections(hf) or SECTIONS)


class Qwen35MoeConfig(ExpertsConfig, Qwen35Config):
    ffn: Any = property(lambda h: h.shared_ffn)


class Qwen3NextConfig(ExpertsConfig, TextConfig):
    # The tensors tell the same, or which layers have experts.
    fixed = {"layer_types": ..., "mlp_only_layers": ..., "decoder_sparse_step": ...}

    normalize: bool = kv("expert_weights_norm", hf="norm_topk_prob", default=True)
    tiled: Any = False
    # Heads of values for each head of keys.
    shared = property(lambda h: h.values // h.groups)
    shared_inner = property(lambda h: h.shared * h.value_state)
    twice_values = property(lambda h: 2 * h.values)
    shared_width = property(lambda h: h.shared_ffn)
