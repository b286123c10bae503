"""Building blocks of models."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..errors import Unsupported
from ..imports import lazily
from .decoder import (
    Attention,
    Decoder,
    DecoderConfig,
    DraftingConfig,
    DraftingDecoder,
    FusedAttention,
    NormedAttention,
    PermutedAttention,
    PlainDecoder,
    PostNormLayer,
    PreNormLayer,
    attention,
    keep_rows,
    local_layers,
    sliding_layers,
    sliding_window,
    softcap,
)
from .layers import (
    MLP,
    Conv1D,
    Conv2D,
    Embedding,
    FusedGatedMLP,
    GatedMLP,
    HeadNorm,
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
    paper_magnitude,
    partial_rope,
    rope_sections,
    scaling_factor,
    yarn_magnitude,
)

if TYPE_CHECKING:
    from .audio import (
        AUDIO_HOP,
        AUDIO_RATE,
        AudioConfig,
        AudioEncoder,
        AudioModel,
        ColumnAudioEncoder,
        audio_kv,
        whisper_features,
    )
    from .conformer import (
        CONFORMER_EPS,
        MOST_NEARBY,
        ConformerConv,
        ConformerFeedForward,
        ConformerModel,
        LocalAttention,
        mel_features,
    )
    from .delta_net import (
        DeltaNet,
        DeltaNetConfig,
        TileHeads,
        delta_rule,
    )
    from .encoder import (
        Encoder,
        EncoderAttention,
        EncoderConfig,
        EncoderHead,
        EncoderMLP,
        EncoderText,
        FusedEncoderAttention,
        FusedEncoderMLP,
        PostNormLayer,
        distances,
        position_table,
    )
    from .experts import (
        SIGMOID,
        SOFTMAX,
        ExpertLinear,
        ExpertsConfig,
        GatedExperts,
        SharedExpert,
        SharedExpertsConfig,
        choose_experts,
        selection_bias,
        stacked,
        sum_experts,
    )
    from .latent import LatentAttention, LatentConfig
    from .layernorm import LayerNormConfig, LayerNormDecoder, LayerNormLayer
    from .recurrent import (
        TAPS,
        GroupNorm,
        HybridConfig,
        HybridDecoder,
        Mamba,
        Mamba2,
        Mamba2Config,
        MambaConfig,
        MixerLayer,
        recurrent_layers,
        selective_scan,
        short_conv,
    )
    from .sandwich import PerLayerEmbedding, PerLayerInputs, SandwichLayer, ScaledEmbedding
    from .vision.config import (
        CLIP_MEAN,
        CLIP_STD,
        ImageConfig,
        image_mean,
        image_std,
        resample,
        vision_kv,
    )
    from .vision.grids import GridConfig, GridVision
    from .vision.tower import (
        Frame,
        FramePatchEmbedding,
        PatchEmbedding,
        Rope2D,
        SwappedVisionMLP,
        VisionAttention,
        VisionLayer,
        VisionMLP,
        attention_in_blocks,
        grid_positions,
        merge_patches,
        vision_windows,
    )
    from .vision.videos import Clip, VideoConfig, VideoVision, blank_frames, in_pairs, video_times

__all__ = [
    "AUDIO_HOP",
    "AUDIO_RATE",
    "CLIP_MEAN",
    "CLIP_STD",
    "CONFORMER_EPS",
    "MLP",
    "MOST_NEARBY",
    "SIGMOID",
    "SOFTMAX",
    "TAPS",
    "Attention",
    "AudioConfig",
    "AudioEncoder",
    "AudioModel",
    "Clip",
    "ColumnAudioEncoder",
    "ConformerConv",
    "ConformerFeedForward",
    "ConformerModel",
    "Conv1D",
    "Conv2D",
    "Decoder",
    "DecoderConfig",
    "DeltaNet",
    "DeltaNetConfig",
    "DraftingConfig",
    "DraftingDecoder",
    "Embedding",
    "Encoder",
    "EncoderAttention",
    "EncoderConfig",
    "EncoderHead",
    "EncoderMLP",
    "EncoderText",
    "ExpertLinear",
    "ExpertsConfig",
    "Frame",
    "FramePatchEmbedding",
    "FusedAttention",
    "FusedEncoderAttention",
    "FusedEncoderMLP",
    "FusedGatedMLP",
    "GatedExperts",
    "GatedMLP",
    "GridConfig",
    "GridVision",
    "GroupNorm",
    "HeadNorm",
    "HybridConfig",
    "HybridDecoder",
    "ImageConfig",
    "LatentAttention",
    "LatentConfig",
    "LayerNorm",
    "LayerNormConfig",
    "LayerNormDecoder",
    "LayerNormLayer",
    "Linear",
    "LocalAttention",
    "Mamba",
    "Mamba2",
    "Mamba2Config",
    "MambaConfig",
    "MixerLayer",
    "NormedAttention",
    "PatchEmbedding",
    "PerLayerEmbedding",
    "PerLayerInputs",
    "PermutedAttention",
    "PlainDecoder",
    "PostNormLayer",
    "PreNormLayer",
    "RMSNorm",
    "Rope",
    "Rope2D",
    "RopeConfig",
    "Rotary",
    "SandwichLayer",
    "ScaledEmbedding",
    "SharedExpert",
    "SharedExpertsConfig",
    "SwappedVisionMLP",
    "TileHeads",
    "VideoConfig",
    "VideoVision",
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
    "choose_experts",
    "delta_rule",
    "distances",
    "grid_positions",
    "image_mean",
    "image_std",
    "in_pairs",
    "keep_rows",
    "local_layers",
    "mel_features",
    "merge_patches",
    "paper_magnitude",
    "partial_rope",
    "position_table",
    "recurrent_layers",
    "resample",
    "rope_sections",
    "scaling_factor",
    "selection_bias",
    "selective_scan",
    "short_conv",
    "sliding_layers",
    "sliding_window",
    "softcap",
    "stacked",
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
        "audio": "AUDIO_HOP AUDIO_RATE AudioConfig AudioEncoder "
        "AudioModel ColumnAudioEncoder audio_kv whisper_features",
        "encoder": "Encoder EncoderAttention EncoderConfig EncoderHead EncoderMLP EncoderText "
        "FusedEncoderAttention FusedEncoderMLP PostNormLayer distances position_table",
        "delta_net": "DeltaNet DeltaNetConfig TileHeads delta_rule",
        "conformer": "CONFORMER_EPS MOST_NEARBY ConformerConv "
        "ConformerFeedForward ConformerModel LocalAttention mel_features",
        "recurrent": "TAPS GroupNorm HybridConfig HybridDecoder Mamba Mamba2 Mamba2Config "
        "MambaConfig MixerLayer recurrent_layers selective_scan short_conv",
        "layernorm": "LayerNormConfig LayerNormDecoder LayerNormLayer",
        "experts": "SIGMOID SOFTMAX ExpertLinear ExpertsConfig GatedExperts SharedExpert "
        "SharedExpertsConfig choose_experts selection_bias stacked sum_experts",
        "latent": "LatentAttention LatentConfig",
        "sandwich": "PerLayerEmbedding PerLayerInputs SandwichLayer ScaledEmbedding",
        "vision.config": "CLIP_MEAN CLIP_STD ImageConfig image_mean image_std resample vision_kv",
        "vision.grids": "GridConfig GridVision",
        "vision.tower": "Frame FramePatchEmbedding PatchEmbedding Rope2D SwappedVisionMLP "
        "VisionAttention VisionLayer VisionMLP attention_in_blocks grid_positions merge_patches "
        "vision_windows",
        "vision.videos": "Clip VideoConfig VideoVision blank_frames in_pairs video_times",
    },
)


def __getattr__(name: str) -> Any:
    if name in _FORMER:
        raise Unsupported(
            f"nn.{name} is gone: inherit nn.RopeConfig, declare `rotary: nn.Rotary`, and give "
            "rotary.rope(type) to caches()"
        )
    return _find(name)
