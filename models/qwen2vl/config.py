"""Hyperparameters of Qwen 2-VL and 2.5-VL: of text, and of the tower if a file has one."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ggmodel import kv, nn
from ggmodel.errors import Unsupported

HF = Mapping[str, Any]


def _pattern(hf: HF) -> list[bool] | None:
    return nn.sliding_layers(hf) if hf.get("use_sliding_window") else None


def _width(hf: HF) -> int | None:
    """Qwen 2-VL calls the width of the text model `hidden_size` here."""
    vision = hf.get("vision_config") or {}
    return vision.get("embed_dim") or vision.get("hidden_size")


def _ffn(hf: HF) -> int | None:
    vision = hf.get("vision_config") or {}
    if vision.get("intermediate_size"):
        return vision["intermediate_size"]
    return int(vision["embed_dim"] * vision.get("mlp_ratio", 4)) if "embed_dim" in vision else None


def _full_every(hf: HF) -> int | None:
    """The interval of layers that see all patches, as files have it; None in Qwen 2-VL."""
    vision = hf.get("vision_config") or {}
    listed = vision.get("fullatt_block_indexes")
    if listed is None:
        return None
    layers = [i for i in listed if i < vision["depth"]]
    interval = layers[0] + 1 if layers else vision["depth"] + 1
    if layers != list(range(interval - 1, vision["depth"], interval)):
        raise Unsupported(f"fullatt_block_indexes {listed}; only regular intervals are supported")
    return interval


def _second(hf: HF) -> int | None:
    vision = hf.get("vision_config") or {}
    later = vision.get("fullatt_block_indexes") is not None
    return vision.get("tokens_per_second", 4) if later else None


def _same(key: str) -> Any:
    """The processor's key must be as the tower's."""
    return lambda hf: (hf.get("vision_config") or {}).get(key)


FASTEST = 1000  # positions of a second; published models have up to 25


class Qwen2VLConfig(nn.DecoderConfig, nn.VideoConfig):
    unread = ("vit_ffn",)
    fixed = {
        "max_window_layers": ...,  # read where there are windows
        "vision_config.hidden_size": ...,  # the tensors tell
        "vision_config.out_hidden_size": ...,
        "vision_config.in_channels": 3,
        "vision_config.temporal_patch_size": 2,
        "preprocessor:patch_size": _same("patch_size"),
        "preprocessor:merge_size": _same("spatial_merge_size"),
        "preprocessor:temporal_patch_size": 2,
        "video:patch_size": _same("patch_size"),
        "video:merge_size": _same("spatial_merge_size"),
        "video:temporal_patch_size": 2,
        # transformers leaves it to who asks; frames are chosen here as if it were asked for.
        "video:do_sample_frames": ...,
        "video:cap_pixels_per_frame": None,
        "video:max_video_tokens": ...,  # of that cap
    }

    eps: float = kv("attention.layer_norm_rms_epsilon", hf="rms_norm_eps", default=1e-6)
    context: int = kv("context_length", hf="max_position_embeddings", default=32768)
    window: int = kv("attention.sliding_window", hf=nn.sliding_window, default=0)
    pattern: list = kv("attention.sliding_window_pattern", hf=_pattern, default=[1])
    sections: list = kv("rope.dimension_sections", hf=nn.rope_sections, default=[16, 24, 24, 0])

    vit_layers: int = nn.vision_kv("block_count", "depth")
    vit_width: int = nn.vision_kv("embedding_length", _width)
    # llama.cpp's files of Qwen 2-VL have another number: the tensors tell.
    vit_ffn: int = nn.vision_kv("feed_forward_length", _ffn)
    vit_heads: int = nn.vision_kv("attention.head_count", "num_heads", divides="vit_quarter")
    vit_eps = 1e-6
    full_every: int = nn.vision_kv("n_wa_pattern", _full_every)
    window_size: int = nn.vision_kv("window_size", "window_size", 112)
    vit_activation: str = nn.vision_kv(
        "hidden_activation", "hidden_act", lambda h: "silu" if h.full_every else "quick_gelu"
    )
    patch: int = nn.vision_kv("patch_size", "patch_size", 14, least=1)
    merge: int = nn.vision_kv("spatial_merge_size", "spatial_merge_size", 2, least=1)
    image_mean: list = nn.image_mean(nn.CLIP_MEAN)
    image_std: list = nn.image_std(nn.CLIP_STD)
    resample: str = nn.resample("bicubic")
    # Files without them are llama.cpp's, which takes pictures of 8 to 4096 rows.
    min_pixels: int = nn.vision_kv(
        "image_min_pixels",
        ("preprocessor:min_pixels", "preprocessor:size.shortest_edge"),
        lambda h: 8 * h.cell**2,
        least=1,
        most="max_pixels",
    )
    max_pixels: int = nn.vision_kv(
        "image_max_pixels",
        ("preprocessor:max_pixels", "preprocessor:size.longest_edge"),
        lambda h: 4096 * h.cell**2,
        least=1,
    )
    video_least_pixels: int = nn.vision_kv(
        "video_min_pixels",
        ("video:min_pixels", "video:size.shortest_edge"),
        lambda h: 128 * h.cell**2,
        least=1,
        most="video_most_pixels",
    )
    video_most_pixels: int = nn.vision_kv(
        "video_max_pixels",
        ("video:max_pixels", "video:size.longest_edge"),
        lambda h: 768 * h.cell**2,
        least=1,
    )
    # Positions of a second; 0 where each pair of frames has the next one. llama.cpp's files do not
    # say it.
    second: int = nn.vision_kv(
        "tokens_per_second", _second, lambda h: 2 if h.full_every else 0, most=FASTEST
    )
    vit_quarter = property(lambda h: h.vit_width / 4)  # heads have four parts
    cell = property(lambda h: h.patch * h.merge)  # the side of a row's pixels
    window_side = property(lambda h: h.window_size // h.cell)  # in rows
    patch_width = property(lambda h: 3 * h.patch**2)
    merged_width = property(lambda h: h.vit_width * h.merge**2)

    @property
    def largest(self) -> int:
        """The side in pixels of a square picture with as many rows as the context, or a picture,
        may have."""
        most = self.max_pixels / self.cell**2
        rows = min(most, self.loaded_context) if self.loaded_context else most
        return max(1, math.isqrt(int(rows))) * self.cell
