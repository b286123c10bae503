"""Videos of InternVL: which frames are seen, and at what size."""

from __future__ import annotations

import numpy as np
from PIL import Image

from ggmodel import nn
from ggmodel.image import normalize, resize
from ggmodel.model import Prepared

from .config import InternVLConfig


def chosen_frames(count: int, rate: float, h: InternVLConfig) -> np.ndarray:
    """The middles of parts of equal length, as transformers' InternVLVideoProcessor samples them:
    in float32. A video with fewer frames, which it refuses, has each seen once."""
    n = h.video_max_frames or int(count / rate * h.video_fps)
    n = max(1, min(n, count))
    part = count / n
    return (np.arange(n) * part + part / 2).astype(np.float32).astype(int)


def frames_of(clip: nn.Clip, h: InternVLConfig) -> Prepared:
    """Each frame as one tile."""
    tiles = [resize(Image.fromarray(frame), (h.side, h.side), h.resample) for frame in clip.frames]
    return Prepared(np.stack([normalize(tile, h.image_mean, h.image_std) for tile in tiles]))
