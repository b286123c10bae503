"""Hyperparameters of PaddleOCR-VL: of the text, and of the tower if a file has one."""

from __future__ import annotations

from typing import Any

from ggmodel import kv, nn

SECTIONS = [16, 24, 24, 0]  # of transformers' rope, where a config says nothing
TANH = "gelu_pytorch_tanh"


def _same(key: str) -> Any:
    """The processor's key must be as the tower's."""
    return lambda hf: (hf.get("vision_config") or {}).get(key)


def _size(key: str) -> tuple[str, str]:
    return f"preprocessor:{key}", f"preprocessor:size.{key}"


class PaddleOCRConfig(nn.DecoderConfig, nn.ImageConfig):
    fixed = {
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

    vit_layers: int = nn.vision_kv("block_count", "num_hidden_layers")
    vit_width: int = nn.vision_kv("embedding_length", "hidden_size")
    vit_ffn: int = nn.vision_kv("feed_forward_length", "intermediate_size")
    vit_heads: int = nn.vision_kv(
        "attention.head_count", "num_attention_heads", divides="vit_quarter"
    )
    vit_eps: float = nn.vision_kv("attention.layer_norm_epsilon", "layer_norm_eps", default=1e-6)
    vit_activation: str = nn.activation(
        TANH, "vision_config.hidden_act", "vision.hidden_activation"
    )
    patch: int = nn.vision_kv("patch_size", "patch_size", 14, least=1)
    merge: int = nn.vision_kv("spatial_merge_size", "spatial_merge_size", 2, least=1)
    image_mean: list = nn.image_mean(nn.CLIP_MEAN)
    image_std: list = nn.image_std(nn.CLIP_STD)
    resample: str = nn.resample("bicubic")
    min_pixels: int = nn.vision_kv(
        "image_min_pixels",
        (*_size("min_pixels"), "preprocessor:size.shortest_edge"),
        384 * 384,
        least=1,
        most="max_pixels",
    )
    max_pixels: int = nn.vision_kv(
        "image_max_pixels",
        (*_size("max_pixels"), "preprocessor:size.longest_edge"),
        1536 * 1536,
        least=1,
    )
    vit_quarter = property(lambda h: h.vit_width / 4)  # heads have four parts
    cell = property(lambda h: h.patch * h.merge)  # the side of a row's pixels
    merged_width = property(lambda h: h.vit_width * h.merge**2)
