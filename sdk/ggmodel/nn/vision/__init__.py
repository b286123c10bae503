"""Shared parts of vision towers."""

from .attention import Rope2D, attention_in_blocks, vision_windows
from .config import CLIP_MEAN, CLIP_STD, ImageConfig, image_mean, image_std, resample, vision_kv
from .grids import GridConfig, GridMerger, GridTower, SeesGrids
from .patches import Frame, FramePatchEmbedding, PatchEmbedding, merge_patches
from .tower import SwappedVisionMLP, VisionAttention, VisionLayer, VisionMLP
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
    "image_mean",
    "image_std",
    "in_pairs",
    "merge_patches",
    "resample",
    "video_times",
    "vision_kv",
    "vision_windows",
]
