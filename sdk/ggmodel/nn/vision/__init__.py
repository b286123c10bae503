"""Shared parts of vision towers."""

from .config import CLIP_MEAN, CLIP_STD, ImageConfig, image_mean, image_std, resample, vision_kv
from .grids import GridConfig, GridMerger, GridTower, SeesGrids
from .tower import (
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
from .videos import Clip, SeesVideos, VideoConfig, blank_frames, in_pairs, video_times

__all__ = [
    "CLIP_MEAN",
    "CLIP_STD",
    "Clip",
    "Frame",
    "FramePatchEmbedding",
    "GridConfig",
    "GridMerger",
    "GridTower",
    "ImageConfig",
    "PatchEmbedding",
    "Rope2D",
    "SeesGrids",
    "SeesVideos",
    "SwappedVisionMLP",
    "VideoConfig",
    "VisionAttention",
    "VisionLayer",
    "VisionMLP",
    "attention_in_blocks",
    "blank_frames",
    "grid_positions",
    "image_mean",
    "image_std",
    "in_pairs",
    "merge_patches",
    "resample",
    "video_times",
    "vision_kv",
    "vision_windows",
]
