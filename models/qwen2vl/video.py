"""Videos of Qwen 2-VL and 2.5-VL: which frames are seen, and when."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from ggmodel.errors import PromptError
from ggmodel.image import unfold

from .config import Qwen2VLConfig


def chosen_frames(count: int, rate: float, h: Qwen2VLConfig) -> np.ndarray:
    """The numbers of the frames that transformers' Qwen2VLVideoProcessor samples where it is given
    `fps`: an even number at equal distances, in float32, from the first one on. Where quotients are
    rounded, it names one more, behind the last, which no video has: it is left out."""
    most = min(h.video_max_frames, count) // 2 * 2
    n = min(max(count / rate * h.video_fps, h.video_min_frames), most, count)
    n = max(1, math.floor(n / 2) * 2)
    at = (np.arange(n) * (count / n)).astype(np.float32)
    return np.minimum(at.astype(int), count - 1)


def patches_of(pairs: np.ndarray, h: Qwen2VLConfig) -> np.ndarray:
    """Patches as the reference has them: [pairs, 2, 3, height, width] → [n, 3 · 2 · patch²]."""
    frames = [unfold(pairs[:, i], h.patch, h.merge) for i in (0, 1)]
    n, side = frames[0].shape[0] * frames[0].shape[1], h.patch**2
    both = np.stack([x.reshape(n, 3, side) for x in frames], axis=2)
    return np.ascontiguousarray(both.reshape(n, -1))


def row_times(frames: int, data: Mapping[str, Any], h: Qwen2VLConfig) -> int | tuple[int, ...]:
    """Pairs of frames, or where a second has positions the times of each in these, in float32
    (transformers, modeling_qwen2_5_vl, `get_vision_position_ids`).

    Raises:
        PromptError: the video is too long.
    """
    if not h.second:
        return frames
    seconds = data.get("second_per_grid_ts", 1.0)
    last = frames * h.second * seconds
    if last >= 1 << 24:
        raise PromptError(
            f"second_per_grid_ts is {seconds}; it is a time in seconds, and {frames} pairs of "
            f"frames end before position {1 << 24}"
        )
    times = np.arange(frames, dtype=np.float32) * np.float32(h.second * seconds)
    return tuple(times.astype(int).tolist())
