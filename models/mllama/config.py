"""The hyperparameters of Llama 3.2 Vision."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ggmodel import kv, nn
from ggmodel.image import tile_grids


def _grids(hf: Any) -> list[list[int]]:
    return [list(grid) for grid in tile_grids(hf["vision_config"].get("max_num_tiles", 4))]


def _tile(hf: Mapping[str, Any]) -> Any:
    return hf.get("vision_config", {}).get("image_size")


class MllamaConfig(nn.DecoderConfig, nn.ImageConfig):
    unread = ("cross_layers",)
    fixed = {
        "vision_config.supported_aspect_ratios": _grids,
        "preprocessor:size.height": _tile,
        "preprocessor:size.width": _tile,
        "preprocessor:max_image_tiles": lambda hf: hf["vision_config"].get("max_num_tiles", 4),
    }

    image_mean: list = nn.image_mean(nn.CLIP_MEAN)
    image_std: list = nn.image_std(nn.CLIP_STD)

    context: int = kv("context_length", hf="max_position_embeddings", default=131072)
    rope_dims: int = kv("rope.dimension_count", default="head_dim")
    rope_base: float = kv("rope.freq_base", hf="rope_theta", default=500000.0)
    # The tensors tell which layers these are; other programs need it.
    cross_layers: list = kv(
        "attention.cross_attention_layers", hf="cross_attention_layers", default=[]
    )

    vit_layers: int = nn.vision_kv("block_count", "num_hidden_layers")
    global_layers: int = nn.vision_kv("global.block_count", "num_global_layers")
    intermediate: list = nn.vision_kv(
        "intermediate_layers_indices", "intermediate_layers_indices", []
    )
    vit_width: int = nn.vision_kv("embedding_length", "hidden_size")
    vit_ffn: int = nn.vision_kv("feed_forward_length", "intermediate_size")
    vit_heads: int = nn.vision_kv("attention.head_count", "attention_heads", divides="vit_width")
    vit_activation: str = nn.activation(
        "gelu", "vision_config.hidden_act", "vision.hidden_activation"
    )
    vit_eps: float = nn.vision_kv("attention.layer_norm_epsilon", "norm_eps", 1e-5)
    tile: int = nn.vision_kv("image_size", "image_size", 560, least=1)  # pixels a side
    patch: int = nn.vision_kv("patch_size", "patch_size", 14, least=1, divides="tile")
    channels: int = nn.vision_kv("num_channels", "num_channels", 3)
    tiles: int = nn.vision_kv("max_num_tiles", "max_num_tiles", 4)
    positions = property(lambda h: (h.tile // h.patch) ** 2 + 1)  # of a tile, its class token too
    tiles_width = property(lambda h: h.tiles * h.vit_width)
    encoded_width = property(lambda h: (1 + len(h.intermediate)) * h.vit_width)
