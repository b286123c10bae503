"""Videos of SmolVLM: which frames are seen, and the text around them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import numpy as np
from PIL import Image

from ggmodel import nn
from ggmodel.errors import PromptError
from ggmodel.image import normalize, resize
from ggmodel.model import Prepared

from .config import Idefics3Config
from .vision import MOST, scaled

SKIPPED = 1  # seconds at both ends of a long video
_SMALL = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen "
    "sixteen seventeen eighteen nineteen"
).split()
_TENS = "_ _ twenty thirty forty fifty sixty seventy eighty ninety".split()


def chosen_frames(count: int, rate: float, h: Idefics3Config) -> np.ndarray:
    """The numbers of the frames that transformers' SmolVLMVideoProcessor samples."""
    seconds = count / rate
    n = max(1, min(round(h.video_fps * seconds), h.video_max_frames))
    first, last = 0, count - 1
    if seconds - 2 * SKIPPED > h.video_max_frames * h.video_fps:
        first, last = int(SKIPPED * rate), min(int(count - SKIPPED * rate), last)
    if first >= last:
        first, last = 0, count - 1
    return np.unique(np.linspace(first, last, n, dtype=int))


def frames_of(clip: nn.Clip, h: Idefics3Config) -> Prepared:
    """Frames as the processor has them: scaled as a picture is, then to a square."""
    method: Any = h.resample
    size = scaled(clip.size, min(h.longest, MOST))
    frames = []
    for frame in clip.frames:
        image = resize(resize(Image.fromarray(frame), size, method), (h.side, h.side), method)
        frames.append(normalize(image, h.image_mean, h.image_std))
    data = {"times": clip.times.tolist(), "seconds": clip.seconds}
    return Prepared(np.stack(frames), data)


def introduction(frames: int, seconds: float) -> str:
    """The text before all frames, and `moment` that before each, as SmolVLMProcessor has them."""
    length = timedelta(seconds=int(seconds))
    return (
        f"You are provided the following series of {in_words(frames)} frames from a {length} "
        "[H:MM:SS] video.\n"
    )


def moment(seconds: float) -> str:
    return f"\nFrame from {int(seconds // 60):02d}:{int(seconds % 60):02d}:"


def in_words(number: int) -> str:
    """A number below 1000 in English.

    Raises:
        PromptError: it is larger.
    """
    if not 0 <= number < 1000:
        raise PromptError(f"a video of {number} frames; give fewer than 1000")
    hundreds, rest = divmod(number, 100)
    if hundreds:
        above = f"{_SMALL[hundreds]} hundred"
        return f"{above} and {in_words(rest)}" if rest else above
    if number < 20:
        return _SMALL[number]
    tens, ones = divmod(number, 10)
    return f"{_TENS[tens]}-{_SMALL[ones]}" if ones else _TENS[tens]
