"""Hyperparameters of LFM2-VL: of the text, LFM2's, and of the vision tower."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ggmodel import kv, nn
from ggmodel.models.lfm2.config import Lfm2Config

TANH = "gelu_pytorch_tanh"


def _tiles(key: str, usual: int) -> Callable[[Mapping[str, Any]], Any]:
    """A bound of the number of tiles: 1 for a processor that does not split pictures."""

    def find(hf: Mapping[str, Any]) -> Any:
        prepared = hf.get("preprocessor:") or {}
        count = prepared.get(key, usual)
        return count if prepared.get("do_image_splitting", True) else 1

    return find


class Lfm2VlConfig(Lfm2Config, nn.ImageConfig):
    fixed = {
        "projector_hidden_size": ...,  # the tensors tell
        "projector_bias": ...,
        "projector_use_layernorm": ...,
        "vision_config.num_patches": ...,
        "vision_config.num_channels": 3,
        "vision_config.vision_use_head": ...,  # no row goes through it
        "preprocessor:encoder_patch_size": lambda hf: hf["vision_config"].get("patch_size", 16),
        "preprocessor:downsample_factor": lambda hf: hf.get("downsample_factor", 2),
        "preprocessor:do_image_splitting": ...,  # read with the numbers of tiles
        "preprocessor:max_num_patches": ...,  # those that are padded to
        "preprocessor:size.height": ...,  # tile_size is used
        "preprocessor:size.width": ...,
        "preprocessor:do_convert_rgb": ...,  # pictures are RGB here
        "preprocessor:return_row_col_info": ...,
        "processor:use_image_special_tokens": True,
    }

    vit_layers: int = nn.vision_kv("block_count", "num_hidden_layers", usual=12)
    vit_width: int = nn.vision_kv("embedding_length", "hidden_size", usual=768)
    vit_ffn: int = nn.vision_kv("feed_forward_length", "intermediate_size", usual=3072)
    vit_heads: int = nn.vision_kv(
        "attention.head_count", "num_attention_heads", usual=12, least=1, divides="vit_width"
    )
    vit_eps: float = nn.vision_kv("attention.layer_norm_epsilon", "layer_norm_eps", usual=1e-6)
    vit_activation: str = nn.activation(
        TANH, "vision_config.hidden_act", "vision.hidden_activation"
    )
    mm_activation: str = nn.activation(
        "gelu",
        "projector_hidden_act",
        *("mm.hidden_activation", "clip.mm.hidden_activation"),
    )
    patch: int = nn.vision_kv("patch_size", "patch_size", usual=16, least=1)
    merge: int = kv("vision.projector.scale_factor", hf=("downsample_factor", lambda _: 2), least=1)
    # Rows of a picture that is no tile. Published files have these numbers; mmproj files of other
    # programs have none.
    least_rows: int = kv(
        "vision.image_min_tokens",
        hf="preprocessor:min_image_tokens",
        default=64,
        least=1,
        most="most_rows",
    )
    most_rows: int = kv(
        "vision.image_max_tokens", hf="preprocessor:max_image_tokens", default=256, least=1
    )
    least_tiles: int = kv(
        "vision.preproc_min_tiles",
        hf=_tiles("min_tiles", 2),
        default=2,
        least=1,
        most="most_tiles",
    )
    most_tiles: int = kv(
        "vision.preproc_max_tiles", hf=_tiles("max_tiles", 10), default=10, least=1
    )
    side: int = kv("vision.tile_size", hf="preprocessor:tile_size", default=512, least=1)
    # A picture is cut into tiles from so many times the most pixels on.
    tolerance: float = kv(
        "vision.tile_tolerance", hf="preprocessor:max_pixels_tolerance", default=2.0
    )
    thumbnail: bool = kv("vision.thumbnail", hf="preprocessor:use_thumbnail", default=True)
    cell = property(lambda h: h.patch * h.merge)  # the side of a row's pixels
    patch_width = property(lambda h: 3 * h.patch**2)
    merged_width = property(lambda h: h.vit_width * h.merge**2)
