"""Building blocks of models."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..errors import Unsupported
from ..imports import lazily
from .decoder import (
    Attention,
    Decoder,
    DecoderConfig,
    PermutedAttention,
    PreNormLayer,
    attention,
    keep_rows,
    local_layers,
    sliding_layers,
    sliding_window,
    softcap,
)
from .layers import (
    Conv1D,
    Conv2D,
    Embedding,
    GatedMLP,
    LayerNorm,
    Linear,
    RMSNorm,
    activate,
    activation,
    check_activation,
    unless,
)
from .rope import (
    Rope,
    RopeConfig,
    Rotary,
    llama3_factors,
    paper_magnitude,
    rope_sections,
    scaling_factor,
    yarn_magnitude,
)

if TYPE_CHECKING:
    from .audio import (
        AUDIO_HOP,
        AUDIO_RATE,
        ColumnConv1D,
        ColumnSoundEncoder,
        SoundAttention,
        SoundConfig,
        SoundEncoder,
        SoundLayer,
        audio_kv,
        whisper_features,
    )
    from .conformer import (
        CONFORMER_EPS,
        MOST_NEARBY,
        ConformerConv,
        ConformerFeedForward,
        LocalAttention,
        check_conformer,
    )
    from .experts import ExpertLinear, GatedExperts, choose_experts, sum_experts
    from .sandwich import OwnEmbedding, PerLayerEmbedding, SandwichLayer
    from .vision import (
        CLIP_MEAN,
        CLIP_STD,
        Clip,
        Frame,
        FramePatchEmbedding,
        GridConfig,
        GridMerger,
        GridTower,
        ImageConfig,
        PatchEmbedding,
        Rope2D,
        SeesGrids,
        SeesVideos,
        SwappedVisionMLP,
        VideoConfig,
        VisionAttention,
        VisionLayer,
        VisionMLP,
        attention_in_blocks,
        blank_frames,
        grid_positions,
        image_mean,
        image_std,
        in_pairs,
        merge_patches,
        resample,
        video_times,
        vision_kv,
        vision_windows,
    )

__all__ = [
    "AUDIO_HOP",
    "AUDIO_RATE",
    "CLIP_MEAN",
    "CLIP_STD",
    "CONFORMER_EPS",
    "MOST_NEARBY",
    "Attention",
    "Clip",
    "ColumnConv1D",
    "ColumnSoundEncoder",
    "ConformerConv",
    "ConformerFeedForward",
    "Conv1D",
    "Conv2D",
    "Decoder",
    "DecoderConfig",
    "Embedding",
    "ExpertLinear",
    "Frame",
    "FramePatchEmbedding",
    "GatedExperts",
    "GatedMLP",
    "GridConfig",
    "GridMerger",
    "GridTower",
    "ImageConfig",
    "LayerNorm",
    "Linear",
    "LocalAttention",
    "OwnEmbedding",
    "PatchEmbedding",
    "PerLayerEmbedding",
    "PermutedAttention",
    "PreNormLayer",
    "RMSNorm",
    "Rope",
    "Rope2D",
    "RopeConfig",
    "Rotary",
    "SandwichLayer",
    "SeesGrids",
    "SeesVideos",
    "SoundAttention",
    "SoundConfig",
    "SoundEncoder",
    "SoundLayer",
    "SwappedVisionMLP",
    "VideoConfig",
    "VisionAttention",
    "VisionLayer",
    "VisionMLP",
    "activate",
    "activation",
    "attention",
    "attention_in_blocks",
    "audio_kv",
    "blank_frames",
    "check_activation",
    "check_conformer",
    "choose_experts",
    "grid_positions",
    "image_mean",
    "image_std",
    "in_pairs",
    "keep_rows",
    "llama3_factors",
    "local_layers",
    "merge_patches",
    "paper_magnitude",
    "resample",
    "rope_sections",
    "scaling_factor",
    "sliding_layers",
    "sliding_window",
    "softcap",
    "sum_experts",
    "unless",
    "video_times",
    "vision_kv",
    "vision_windows",
    "whisper_features",
    "yarn_magnitude",
]

_FORMER = ("linear_factor", "linear_scale", "linear_type")

# A model of text needs no blocks of towers.
_find, __dir__ = lazily(
    __name__,
    {
        "audio": "AUDIO_HOP AUDIO_RATE ColumnConv1D ColumnSoundEncoder SoundAttention SoundConfig "
        "SoundEncoder SoundLayer audio_kv whisper_features",
        "experts": "ExpertLinear GatedExperts choose_experts sum_experts",
        "conformer": "CONFORMER_EPS MOST_NEARBY ConformerConv ConformerFeedForward LocalAttention "
        "check_conformer",
        "sandwich": "OwnEmbedding PerLayerEmbedding SandwichLayer",
        "vision": "CLIP_MEAN CLIP_STD Clip Frame FramePatchEmbedding GridConfig GridMerger "
        "GridTower ImageConfig PatchEmbedding Rope2D SeesGrids SeesVideos SwappedVisionMLP "
        "VideoConfig VisionAttention VisionLayer VisionMLP attention_in_blocks blank_frames "
        "grid_positions image_mean image_std in_pairs merge_patches resample video_times vision_kv "
        "vision_windows",
    },
)


def __getattr__(name: str) -> Any:
    if name in _FORMER:
        raise Unsupported(
            f"nn.{name} is gone: inherit nn.RopeConfig, declare `rotary: nn.Rotary`, and give "
            "rotary.rope(type) to caches()"
        )
    return _find(name)
