"""Hyperparameters of Gemma 3: of the text model, and of the vision tower if a file has one."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ggmodel import kv, nn

TANH = "gelu_pytorch_tanh"


def _usual_factor(h: Gemma3Config) -> float:
    """For files without the key: 4B, 12B and 27B divide positions by 8."""
    return 8.0 if h.layers in (34, 48, 62) and 0 < h.window < h.context else 1.0


def _side(hf: Mapping[str, Any]) -> Any:
    return hf.get("vision_config", {}).get("image_size")


class Gemma3Config(nn.DecoderConfig, nn.ImageConfig):
    fixed = {
        "use_bidirectional_attention": False,
        # The tower's head, for which a checkpoint may have tensors, is never used.
        "vision_config.vision_use_head": ...,
        "preprocessor:size.height": _side,
        "preprocessor:size.width": _side,
        "preprocessor:do_pan_and_scan": None,
        "preprocessor:pan_and_scan_min_crop_size": ...,
        "preprocessor:pan_and_scan_max_num_crops": ...,
        "preprocessor:pan_and_scan_min_ratio_to_activate": ...,
    }

    # Published configs lack keys with transformers' default.
    heads: int = kv("attention.head_count", hf=("num_attention_heads", lambda _: 8))
    kv_heads: int = kv("attention.head_count_kv", hf=("num_key_value_heads", lambda _: 4))
    head_dim: int = kv("attention.key_length", hf=("head_dim", lambda _: 256), default=256)
    value_dim: int = kv("attention.value_length", hf=("head_dim", lambda _: 256), default=256)
    scale: float = kv(
        "attention.scale",
        hf=lambda hf: hf.get("query_pre_attn_scalar", 256) ** -0.5,
        # The published 27B, with 62 layers, is the exception; files lack the key.
        default=lambda h: (h.width // h.heads if h.layers == 62 else h.head_dim) ** -0.5,
    )
    eps: float = kv("attention.layer_norm_rms_epsilon", hf="rms_norm_eps", default=1e-6)
    softcap: float = kv("final_logit_softcapping", hf="final_logit_softcapping", default=0.0)
    context: int = kv("context_length", hf="max_position_embeddings", default=131072)
    window: int = kv("attention.sliding_window", hf="sliding_window", default=0)
    pattern: list = kv("attention.sliding_window_pattern", hf=nn.sliding_layers, default=[6])
    activation: str = nn.activation(TANH, "hidden_activation")
    rope_base: float = kv(
        "rope.freq_base",
        "rope.global.freq_base",
        hf=("rope_theta", "rope_parameters.full_attention.rope_theta"),
        default=1e6,
    )
    local_base: float = kv(
        "rope.freq_base_swa",
        "rope.local.freq_base",
        hf=("rope_local_base_freq", "rope_parameters.sliding_attention.rope_theta"),
        default=1e4,
    )
    rope_factor: float = kv(
        "rope.scaling.factor", hf=(nn.scaling_factor, lambda _: 1), default=_usual_factor
    )

    vit_layers: int = nn.vision_kv("block_count", "num_hidden_layers")
    vit_width: int = nn.vision_kv("embedding_length", "hidden_size")
    vit_ffn: int = nn.vision_kv("feed_forward_length", "intermediate_size")
    vit_heads: int = nn.vision_kv("attention.head_count", "num_attention_heads")
    vit_eps: float = nn.vision_kv("attention.layer_norm_epsilon", "layer_norm_eps", 1e-6)
    vit_activation: str = nn.activation(
        TANH, "vision_config.hidden_act", "vision.hidden_activation"
    )
    side: int = nn.vision_kv("image_size", "image_size")
    patch: int = nn.vision_kv("patch_size", "patch_size", least=1)
    # The rows of an image; an mmproj file has the patches that become one row instead.
    rows: int | None = kv("mm.tokens_per_image", "mm_tokens_per_image", hf="mm_tokens_per_image")
    merge: int = nn.vision_kv("projector.scale_factor", "projector_scale_factor", 4)
    grid = property(lambda h: h.side // h.patch)
    patches = property(lambda h: h.grid**2)
    pool = property(lambda h: h.grid // math.isqrt(h.rows) if h.rows else h.merge)
