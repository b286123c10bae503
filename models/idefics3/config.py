"""Hyperparameters of Idefics3 and SmolVLM: of the text, and of the vision tower."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ggmodel import kv, nn

TANH = "gelu_pytorch_tanh"


def _side(hf: Mapping[str, Any]) -> Any:
    return (hf.get("vision_config") or {}).get("image_size", 224)


def _longest(hf: Mapping[str, Any]) -> Any:
    settings = hf.get("preprocessor:") or hf.get("video:") or {}
    return (settings.get("size") or {}).get("longest_edge")


def _frames(hf: Mapping[str, Any]) -> int | None:
    """SmolVLM's frames, where no file says so."""
    return 64 if "SmolVLMForConditionalGeneration" in (hf.get("architectures") or ()) else None


class Idefics3Config(nn.DecoderConfig, nn.VideoConfig):
    fixed = {
        "vision_config.num_channels": 3,
        # Copies of the processor's, which transformers' code does not read.
        "vision_config.size": ...,
        "vision_config.max_image_size": ...,
        "vision_config.use_base_siglip": ...,
        "preprocessor:do_image_splitting": True,
        "preprocessor:max_image_size.longest_edge": _side,
        "preprocessor:do_convert_rgb": ...,  # pictures are RGB here
        "preprocessor:return_row_col_info": ...,
        "preprocessor:video_sampling": ...,  # read as a key of videos
        "video:do_sample_frames": ...,  # chat templates ask for it
        "video:max_image_size.longest_edge": _side,
        "video:size.longest_edge": _longest,
        "processor:image_seq_len": ...,  # it follows from the tower
    }

    context: int = kv("context_length", hf="max_position_embeddings", default=2048)
    rope_dims: int = kv("rope.dimension_count", hf="head_dim", default="head_dim")
    vocab: int | None = kv("vocab_size", hf="vocab_size")  # other programs need it

    resample: str = nn.resample("lanczos")
    # The longer side that a picture is scaled to.
    longest: int = kv(
        "vision.preproc_image_size",
        hf="preprocessor:size.longest_edge",
        default=lambda h: 4 * h.side,
        least=1,
    )
    vit_layers: int = nn.vision_kv("block_count", "num_hidden_layers", usual=12)
    vit_width: int = nn.vision_kv("embedding_length", "hidden_size", usual=1152)
    vit_ffn: int = nn.vision_kv("feed_forward_length", "intermediate_size", usual=3072)
    vit_heads: int = nn.vision_kv(
        "attention.head_count", "num_attention_heads", usual=16, least=1, divides="vit_width"
    )
    vit_eps: float = nn.vision_kv("attention.layer_norm_epsilon", "layer_norm_eps", usual=1e-6)
    vit_activation: str = nn.activation(
        TANH, "vision_config.hidden_act", "vision.hidden_activation"
    )
    # Frames of a video that are seen at most; 0 for models without videos, such as Idefics3.
    video_max_frames: int = kv(
        "vision.video_max_frames",
        hf=("video:video_sampling.max_frames", "video:num_frames", _frames),
        default=0,
        least=0,
    )
    video_fps: float = kv(
        "vision.video_fps", hf=("video:video_sampling.fps", "video:fps"), default=1.0
    )
    side: int = nn.vision_kv("image_size", "image_size", usual=224, least=1)
    patch: int = nn.vision_kv("patch_size", "patch_size", usual=32, least=1, most="side")
    merge: int = kv(
        "vision.projector.scale_factor", hf=("scale_factor", lambda _: 2), least=1, divides="grid"
    )
    grid = property(lambda h: h.side // h.patch)
    patches = property(lambda h: h.grid**2)
    rows = property(lambda h: (h.grid // h.merge) ** 2)  # of a tile
    merged_width = property(lambda h: h.vit_width * h.merge**2)
