"""Hyperparameters of LFM2."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ggmodel import kv, nn
from ggmodel.kvcache import Recurrent


def _width(hf: Mapping[str, Any]) -> int:
    """The width of feed-forward parts; config.json may have one that is yet to be adjusted."""
    width = hf.get("block_ff_dim", hf.get("intermediate_size"))
    factor, step = hf.get("block_ffn_dim_multiplier"), hf.get("block_multiple_of", 256)
    if not hf.get("block_auto_adjust_ff_dim"):
        return width
    width = int(2 * width / 3)
    return width if factor is None else -(-int(factor * width) // step) * step


def _kv_heads(hf: Mapping[str, Any]) -> list[int]:
    """Layer → heads of keys and values; 0 for a layer that is a convolution."""
    layers = range(hf["num_hidden_layers"])
    attending = hf.get("full_attn_idxs", layers)
    conv = nn.recurrent_layers(hf) or [i not in attending for i in layers]
    return [0 if without else hf["num_key_value_heads"] for without in conv]


def _taps(hf: Mapping[str, Any]) -> int:
    """A convolution of one tap has a zero before it: then it has a state, as programs expect."""
    return 2 if hf["conv_L_cache"] == 1 else hf["conv_L_cache"]


def _gating(hf: Mapping[str, Any]) -> int | None:
    return nn.SIGMOID if hf.get("num_experts") else None


def _biased(hf: Mapping[str, Any]) -> bool | None:
    return None if hf.get("use_expert_bias", True) or not hf.get("num_experts") else False


class Lfm2Config(nn.HybridConfig, nn.ExpertsConfig):
    # The tensors tell the same.
    fixed = {"conv_bias": ..., "tie_embedding": ...}

    ffn: int = kv("feed_forward_length", hf=_width)
    each_kv_heads: list = kv("attention.head_count_kv", hf=_kv_heads)
    eps: float = kv("attention.layer_norm_rms_epsilon", hf="norm_eps")
    kernel: int = kv("shortconv.l_cache", hf=_taps, least=2)
    gating: int = kv("expert_gating_func", hf=_gating, default=nn.SIGMOID)
    normalize: bool = kv("expert_weights_norm", hf="norm_topk_prob", default=True)
    # Not a key of llama.cpp: the bias is then zeros.
    biased: bool = kv("use_expert_bias", hf=_biased, default=True)
    activation: Any = "silu"
    epsilon: Any = 1e-6
    three_widths = property(lambda h: 3 * h.width)
    states = property(lambda h: Recurrent(conv=(h.kernel - 1, h.width)))
