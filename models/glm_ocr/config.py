"""Hyperparameters of GLM-OCR: of the text, and of the tower if a file has one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ggmodel import kv, nn
from ggmodel.errors import ConfigError
from ggmodel.models.glm.glm4 import Glm4Config

HF = Mapping[str, Any]
FRAMES = 2  # of a patch; those of a picture are alike
BASES = ("vision_config.rope_parameters.rope_theta", "vision_config.rope_theta")
SECTIONS = [8, 12, 12, 0]  # of transformers' rope, where a config says nothing


def _same(key: str) -> Any:
    """The processor's key must be as the tower's."""
    return lambda hf: (hf.get("vision_config") or {}).get(key)


def _of_a_frame(edge: str, usual: int) -> Callable[[HF], int]:
    """A bound of pixels; that of a processor, by default the usual one, counts both frames."""

    def find(hf: HF) -> int:
        pixels = ((hf.get("preprocessor:") or {}).get("size") or {}).get(edge, usual)
        if not isinstance(pixels, int) or pixels % FRAMES:
            raise ConfigError(
                f"preprocessor:size.{edge} is {pixels!r:.40}; it is an even number of pixels, of "
                f"{FRAMES} frames"
            )
        return pixels // FRAMES

    return find


class GlmOcrConfig(Glm4Config, nn.ImageConfig):
    fixed = {
        "vision_config.out_hidden_size": lambda hf: hf["hidden_size"],
        "vision_config.in_channels": 3,
        "vision_config.temporal_patch_size": FRAMES,
        "vision_config.attention_bias": ...,  # the tensors tell
        "preprocessor:patch_size": _same("patch_size"),
        "preprocessor:merge_size": _same("spatial_merge_size"),
        "preprocessor:temporal_patch_size": FRAMES,
    }

    rope_dims: int = nn.partial_rope()
    sections: list = kv("rope.dimension_sections", hf=lambda hf: nn.rope_sections(hf) or SECTIONS)

    vit_layers: int = nn.vision_kv("block_count", "depth")
    vit_width: int = nn.vision_kv("embedding_length", "hidden_size")
    vit_ffn: int = nn.vision_kv("feed_forward_length", "intermediate_size")
    vit_heads: int = nn.vision_kv("attention.head_count", "num_heads", divides="vit_quarter")
    vit_eps: float = nn.vision_kv("attention.layer_norm_epsilon", "rms_norm_eps", 1e-5)
    vit_rope_base: float = nn.vision_kv("rope.freq_base", nn.unless(1e4, *BASES), 1e4)
    vit_activation: str = nn.activation(
        "silu", "vision_config.hidden_act", "vision.hidden_activation"
    )
    patch: int = nn.vision_kv("patch_size", "patch_size", 14, least=1)
    merge: int = nn.vision_kv("spatial_merge_size", "spatial_merge_size", 2, least=1)
    image_mean: list = nn.image_mean(nn.CLIP_MEAN)
    image_std: list = nn.image_std(nn.CLIP_STD)
    resample: str = nn.resample("bicubic")
    # Files without them are llama.cpp's, and have those of the published folder.
    min_pixels: int = nn.vision_kv(
        "image_min_pixels", _of_a_frame("shortest_edge", 12544), 6272, least=1, most="max_pixels"
    )
    max_pixels: int = nn.vision_kv(
        "image_max_pixels", _of_a_frame("longest_edge", 11760000), 4816896, least=1
    )
    vit_quarter = property(lambda h: h.vit_width / 4)  # heads have four parts
    vit_head_dim = property(lambda h: h.vit_width // h.vit_heads)
    vit_fused = property(lambda h: 3 * h.vit_width)
    merger_ffn = property(lambda h: 3 * h.width)  # as many as a picture has channels
    cell = property(lambda h: h.patch * h.merge)  # the side of a row's pixels
