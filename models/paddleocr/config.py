"""Hyperparameters of PaddleOCR-VL: of the text, and of the tower if a file has one."""

from __future__ import annotations

import math
from typing import Any

from ggmodel import kv, nn
from ggmodel.errors import ConfigError

SECTIONS = [16, 24, 24, 0]  # of transformers' rope, where a config says nothing
TANH = "gelu_pytorch_tanh"


def _vision(key: str, hf: Any, default: Any = 0, least: int | None = None) -> Any:
    return kv(f"vision.{key}", hf=hf, default=default, least=least)


def _same(key: str) -> Any:
    """The processor's key must be as the tower's."""
    return lambda hf: (hf.get("vision_config") or {}).get(key)


def _size(key: str) -> tuple[str, str]:
    return f"preprocessor:{key}", f"preprocessor:size.{key}"


class PaddleOCRConfig(nn.DecoderConfig, nn.ImageConfig):
    assumed = {
        "use_bias": ...,  # the tensors tell
        "vision_config.num_channels": 3,
        "vision_config.image_size": ...,  # the tensor of positions tells
        "preprocessor:patch_size": _same("patch_size"),
        "preprocessor:merge_size": _same("spatial_merge_size"),
        "preprocessor:temporal_patch_size": 1,
    }

    eps: float = kv("attention.layer_norm_rms_epsilon", hf="rms_norm_eps", default=1e-5)
    context: int = kv("context_length", hf="max_position_embeddings", default=131072)
    sections: list = kv("rope.dimension_sections", hf=lambda hf: nn.rope_sections(hf) or SECTIONS)

    vit_layers: int = _vision("block_count", "vision_config.num_hidden_layers")
    vit_width: int = _vision("embedding_length", "vision_config.hidden_size")
    vit_ffn: int = _vision("feed_forward_length", "vision_config.intermediate_size")
    vit_heads: int = _vision("attention.head_count", "vision_config.num_attention_heads")
    vit_eps: float = _vision(
        "attention.layer_norm_epsilon", "vision_config.layer_norm_eps", default=1e-6
    )
    vit_activation: str = nn.activation(
        TANH,
        "vision_config.hidden_act",
        "vision.hidden_activation",
    )
    patch: int = _vision("patch_size", "vision_config.patch_size", 14, least=1)
    merge: int = _vision("spatial_merge_size", "vision_config.spatial_merge_size", 2, least=1)
    image_mean: list = nn.image_mean(nn.CLIP_MEAN)
    image_std: list = nn.image_std(nn.CLIP_STD)
    resample: str = nn.resample("bicubic")
    min_pixels: int = _vision(
        "image_min_pixels",
        (*_size("min_pixels"), "preprocessor:size.shortest_edge"),
        384 * 384,
        least=1,
    )
    max_pixels: int = _vision(
        "image_max_pixels",
        (*_size("max_pixels"), "preprocessor:size.longest_edge"),
        1536 * 1536,
        least=1,
    )
    cell = property(lambda h: h.patch * h.merge)  # the side of a row's pixels
    merged_width = property(lambda h: h.vit_width * h.merge**2)

    @property
    def largest(self) -> int:
        """The side in pixels of a square page with as many rows as the context, or a page, may
        have."""
        most = self.max_pixels // self.cell**2
        rows = min(most, self.loaded_context) if self.loaded_context else most
        return max(1, math.isqrt(rows)) * self.cell

    def check(self) -> None:
        """
        Raises:
            ConfigError: impossible hyperparameters of the tower.
        """
        if self.vit_heads < 1 or self.vit_width % (4 * self.vit_heads):
            raise ConfigError(
                f"a tower of width {self.vit_width} with {self.vit_heads} heads, each of four parts"
            )
        if self.min_pixels > self.max_pixels:
            raise ConfigError(f"pictures of {self.min_pixels} to {self.max_pixels} pixels")
