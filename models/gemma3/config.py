"""Hyperparameters of Gemma 3: of its text, and of what it sees with where a file has that."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ggmodel import Config, kv, nn
from ggmodel.ml import RopeType


def _pattern(hf: Mapping[str, Any]) -> list[bool] | None:
    """Which layers are local, where a config says so."""
    every = hf.get("sliding_window_pattern")
    older = every and [(i + 1) % every != 0 for i in range(hf["num_hidden_layers"])]
    return nn.sliding_layers(hf) or older


def _base(default: float, hf: str, kind: str, *names: str) -> Any:
    theta = f"rope_{hf}", f"rope_parameters.{kind}_attention.rope_theta"
    return kv(*(f"rope.{name}" for name in names), hf=theta, default=default)


def _vision(key: str, hf: str, default: float = 0) -> Any:
    return kv(f"vision.{key}", f"clip.vision.{key}", hf=f"vision_config.{hf}", default=default)


def _unsaid(h: Hyper) -> float:
    """Of files that do not say so: 4B, 12B and 27B divide positions by 8."""
    return 8.0 if h.layers in (34, 48, 62) and 0 < h.window < h.context else 1.0


class Hyper(Config):
    layers: int = kv("block_count", hf="num_hidden_layers")
    hidden: int = kv("embedding_length", hf="hidden_size")
    ffn: int = kv("feed_forward_length", hf="intermediate_size")
    # Published configs leave out what is transformers' default.
    heads: int = kv("attention.head_count", hf=("num_attention_heads", lambda _: 8))
    kv_heads: int = kv("attention.head_count_kv", hf=("num_key_value_heads", lambda _: 4))
    head_dim: int = kv("attention.key_length", hf=("head_dim", lambda _: 256), default=256)
    value_dim: int = kv("attention.value_length", hf=("head_dim", lambda _: 256), default=256)
    scale: float = kv(
        "attention.scale",
        hf=lambda hf: hf.get("query_pre_attn_scalar", 256) ** -0.5,
        # Of the published models 27B, with 62 layers, is the exception, and files do not say so.
        default=lambda h: (h.hidden // h.heads if h.layers == 62 else h.head_dim) ** -0.5,
    )
    eps: float = kv("attention.layer_norm_rms_epsilon", hf="rms_norm_eps", default=1e-6)
    softcap: float = kv("final_logit_softcapping", hf="final_logit_softcapping", default=0.0)
    context: int = kv("context_length", hf="max_position_embeddings", default=131072)
    window: int = kv("attention.sliding_window", hf="sliding_window", default=0)
    pattern: list = kv("attention.sliding_window_pattern", hf=_pattern, default=[6])
    rope_base: float = _base(1e6, "theta", "full", "freq_base", "global.freq_base")
    local_base: float = _base(1e4, "local_base_freq", "sliding", "freq_base_swa", "local.freq_base")
    rope_factor: float = kv(
        "rope.scaling.factor", hf=(nn.linear_factor, lambda _: 1), default=_unsaid
    )
    scaling: str = kv("rope.scaling.type", hf=nn.linear_type, default="")
    q_width = property(lambda h: h.heads * h.head_dim)
    k_width = property(lambda h: h.kv_heads * h.head_dim)

    v_layers: int = _vision("block_count", "num_hidden_layers")
    v_hidden: int = _vision("embedding_length", "hidden_size")
    v_ffn: int = _vision("feed_forward_length", "intermediate_size")
    v_heads: int = _vision("attention.head_count", "num_attention_heads")
    v_eps: float = _vision("attention.layer_norm_epsilon", "layer_norm_eps", 1e-6)
    side: int = _vision("image_size", "image_size")
    patch: int = _vision("patch_size", "patch_size")
    # One file says how many rows an image becomes, an mmproj file how many patches become one.
    rows: int | None = kv("mm.tokens_per_image", "mm_tokens_per_image", hf="mm_tokens_per_image")
    merge: int = _vision("projector.scale_factor", "projector_scale_factor", 4)
    grid = property(lambda h: h.side // h.patch)
    patches = property(lambda h: h.grid**2)
    pool = property(lambda h: h.grid // math.isqrt(h.rows) if h.rows else h.merge)

    @property
    def local(self) -> list[bool]:
        """By layer, whether it sees a window of the last positions only."""
        return nn.local_layers(self.pattern, self.layers, self.window)

    def rope(self, local: bool) -> nn.Rope:
        scale = 1.0 if local else nn.linear_scale(self.scaling, self.rope_factor)
        base = self.local_base if local else self.rope_base
        return nn.Rope(self.head_dim, base, scale, RopeType.NEOX)
