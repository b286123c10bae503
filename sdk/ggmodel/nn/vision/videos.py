"""Videos on their way to a tower that takes pairs of frames: which frames it sees, how large they
are, and how they become inputs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ...bounds import limits
from ...errors import ConfigError, VideoError
from ...image import METHODS, normalize, resize, within_memory
from ...ml import Context
from ...model.config import descend, key_fields
from ...model.model import VisionModel
from ...model.multimodal import (
    Input,
    Modality,
    Multimodal,
    MultimodalEmbedding,
    Numbers,
    Prepared,
    Shape,
)
from ...reading import too_large
from ...video import Video, open_video
from ...video.open import LONGEST
from .config import ImageConfig, vision_kv

PAIR = 2  # frames of a patch
_ALONE = 24.0  # frames a second of a video of one frame, as transformers assumes
_AT_ONCE = 1e-9  # seconds between frames that have no rate
_MOST_FPS = 1_000_000  # with the longest video a finite number of frames
_FINEST = 1001  # denominator of a rate of frames, such as 30000/1001

# The number of frames, and how many a second → the numbers of those that are seen.
Chooses = Callable[[int, float], "Sequence[int] | NDArray[np.integer]"]


def _as_pictures(cls: type[VideoConfig], key: str) -> Any:
    """Frames are prepared as pictures are: by what the folder says of these, or the usual value."""

    def used(hf: Mapping[str, Any]) -> Any:
        value = descend(hf, f"preprocessor:{key}")
        if value is not None:
            return value
        usual = next(field.default for name, field, *_ in key_fields(cls) if name == key)
        return next((n for n, method in METHODS.items() if method == usual), usual)

    return used


class VideoConfig(ImageConfig):
    """The hyperparameters of a model that sees videos. A subclass has `cell`, the side of a row's
    pixels, and `video_least_pixels` and `video_most_pixels`.

    Attributes:
        video_fps: frames a second that are seen.
        video_min_frames, video_max_frames: bounds of their number.

    Raises:
        ConfigError: an impossible number of frames, or more than a million a second.
    """

    fixed = {
        **{key.replace("preprocessor", "video"): v for key, v in ImageConfig.fixed.items()},
        "video:num_frames": None,
    }

    video_fps: float = vision_kv("video_fps", "video:fps", 2.0)
    video_min_frames: int = vision_kv("video_min_frames", "video:min_frames", 4, least=1)
    video_max_frames: int = vision_kv("video_max_frames", "video:max_frames", 768, least=1)

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        same = {f"video:{k}": _as_pictures(cls, k) for k in ("image_mean", "image_std", "resample")}
        cls.fixed = {**same, **vars(cls).get("fixed", {})}

    def __init__(self, **values: Any):
        super().__init__(**values)
        if not 0 < self.video_fps <= _MOST_FPS:
            raise ConfigError(
                f"{self.video_fps} frames a second of a video; give more than 0, at most "
                f"{_MOST_FPS:,}"
            )


@dataclass(frozen=True, eq=False)
class Clip(Video):
    """The frames of a video that a model sees.

    Attributes:
        rate: of them, frames a second.
        seconds: length of the whole video.
    """

    rate: float = _ALONE
    seconds: float = 0.0

    @property
    def size(self) -> tuple[int, int]:
        """Width and height."""
        height, width = self.frames.shape[1:3]
        return width, height


def frame_rate(times: NDArray[np.float64]) -> float:
    """Frames a second, of frames at these times."""
    if len(times) < 2 or times[-1] - times[0] < _AT_ONCE:
        return _ALONE
    mean = (len(times) - 1) / (times[-1] - times[0])
    return float(Fraction(float(mean)).limit_denominator(_FINEST)) or float(mean)


def film_size(
    size: tuple[int, int], frames: int, unit: int, least: int, most: int
) -> tuple[int, int]:
    """Width and height of frames of about the same proportions, in multiples of `unit`; all of them
    together have at least `least` and at most `most` pixels, as transformers'
    Qwen3VLVideoProcessor computes it.

    Raises:
        VideoError: a frame is more than 200 times as long as wide.
    """
    frames = max(frames, PAIR)
    width, height = size
    if min(size) < unit:
        scale = max(unit / height, unit / width)
        width, height = int(width * scale), int(height * scale)
    if max(width, height) > 200 * min(width, height):
        raise VideoError(
            f"a video of {size[0]} × {size[1]} pixels is more than 200 times as long as wide; "
            "crop it"
        )
    sides = [round(n / unit) * unit for n in (width, height)]
    pixels = round(frames / PAIR) * PAIR * sides[0] * sides[1]
    if pixels > most:
        shrink = math.sqrt(frames * height * width / most)
        sides = [max(unit, math.floor(n / shrink / unit) * unit) for n in (width, height)]
    elif pixels < least:
        grow = math.sqrt(least / (frames * height * width))
        sides = [math.ceil(n * grow / unit) * unit for n in (width, height)]
    return sides[0], sides[1]


def open_clip(source: Any, choose: Chooses) -> Clip:
    """Opens a video as `open_video` does, and raises as that.

    Args:
        choose: says which frames are seen, as if they followed each other at equal distances.
    """
    rates: list[tuple[float, float]] = []

    def chosen(times: NDArray[np.float64]) -> Sequence[int] | NDArray[np.integer]:
        rate = frame_rate(times)
        frames = choose(len(times), rate)
        rates.append((len(frames) / len(times) * rate, len(times) / rate))
        return frames

    video = open_video(source, chosen)
    return Clip(video.frames, video.times, *rates[0])


def in_pairs(clip: Clip, size: tuple[int, int], h: Any) -> NDArray[np.float32]:
    """Frames of a size (width, height) in pairs, [pairs, 2, 3, height, width]; an odd one is both.

    Args:
        h: an `ImageConfig`.
    """
    from PIL import Image

    n = len(clip.frames)
    made = np.empty((n + n % PAIR, 3, size[1], size[0]), np.float32)
    for i, frame in enumerate(clip.frames):
        made[i] = normalize(
            resize(Image.fromarray(frame), size, h.resample), h.image_mean, h.image_std
        )
    made[n:] = made[n - 1]
    return made.reshape(-1, PAIR, *made.shape[1:])


def blank_frames(frames: int, side: int) -> NDArray[np.float32]:
    """Square frames for reserving, [frames, 3, side, side]; they take no memory.

    Raises:
        ConfigError: they would exceed the limits of videos.
    """
    if frames * side**2 > limits.video_pixels:
        made = f"{frames:,} frames of {side:,} × {side:,} pixels"
        raise ConfigError(too_large("the largest video of this model", made, "video_pixels"))
    return np.broadcast_to(np.float32(0), (frames, 3, side, side))


def pair_times(clip: Clip) -> list[float]:
    """The middle of each pair of frames, in seconds."""
    times = clip.times.tolist()
    times += times[-1:] * (len(times) % PAIR)
    return [(a + b) / 2 for a, b in zip(times[::PAIR], times[1::PAIR], strict=True)]


def video_times(*shape: int | str) -> Numbers:
    """Times in a video, seconds, for `VideoVision.video_data`: from 0 to the longest that
    `open_video` takes, none before the last.

    Args:
        shape: the name of any number of them; none for a single one.
    """
    return Numbers(float, shape, least=0, most=LONGEST, ascending=bool(shape))


class VideoVision(VisionModel):
    """The way from videos to inputs, for models that see pictures, too. The config is a
    `VideoConfig`; a subclass has the methods without a body.

    Attributes:
        video_marker: the text that stands for a video.
        video_data: the data beside a video's prepared values; see `Modality.data`.
    """

    video_marker: ClassVar[str]
    video_data: ClassVar[Mapping[str, Numbers] | None] = None

    @property
    def has_video(self) -> bool:
        """Whether a model that sees was also trained with videos."""
        return True

    @property
    def video_shape(self) -> Shape | None:
        """Sizes of a video's prepared values, a name for any number; None for any shape."""
        return None

    def modalities(self) -> dict[str, Modality]:
        modalities = dict(super().modalities())
        if "image" in modalities and self.has_video:
            modalities["video"] = Modality(
                marker=self.video_marker,
                open=self.open_video,
                prepare=within_memory(self.prepare_video),
                encode=self.encode_video,
                inputs=self.video_inputs,
                largest=self.largest_video,
                shape=self.video_shape,
                data=self.video_data,
            )
        return modalities

    def open_video(self, source: Any) -> Clip:
        """Opens a video.

        Raises:
            VideoError: it cannot be read, or its rows exceed the context.
        """
        clip = open_clip(source, self.video_frames)
        most, rows = self.config.loaded_context, self.video_rows(clip)
        n, (width, height) = len(clip.frames), self.video_size(clip)
        if most and rows > most:
            raise VideoError(
                f"a video of {n} frames of {width} × {height} pixels takes {rows:,} rows of the "
                f"context, which has {most:,}; load the model with a larger context_length, or "
                "give fewer frames"
            )
        if n * width * height > limits.video_pixels:
            made = f"{n:,} frames of {width:,} × {height:,} pixels"
            raise VideoError(too_large("the video as the model wants it", made, "video_pixels"))
        return clip

    def video_rows(self, clip: Clip) -> int:
        """The rows that a clip takes in a text."""
        (width, height), cell = self.video_size(clip), self.config.cell
        return -(-len(clip.frames) // PAIR) * (width // cell) * (height // cell)

    def largest_pairs(self, pixels: int, pairs: int) -> NDArray[np.float32]:
        """Pairs of square frames that fill the context, [pairs, 2, 3, side, side]; they take no
        memory.

        Args:
            pixels: the most of one frame.
            pairs: the most of them.

        Raises:
            ConfigError: they would exceed the limits of videos.
        """
        h = self.config
        rows = h.loaded_context or h.context
        side = max(1, math.isqrt(min(pixels // h.cell**2, rows)))
        pairs = max(1, min(pairs, rows // side**2))
        frames = blank_frames(pairs * PAIR, side * h.cell)
        return np.broadcast_to(frames[0], (pairs, PAIR, *frames.shape[1:]))

    def video_frames(self, count: int, rate: float) -> Sequence[int] | NDArray[np.integer]:
        """The numbers of the frames that are seen, of `count` frames at `rate` a second."""
        raise NotImplementedError

    def video_size(self, clip: Clip) -> tuple[int, int]:
        """The width and height of a clip's frames for the tower."""
        raise NotImplementedError

    def prepare_video(self, clip: Clip) -> Prepared:
        """A clip as `encode_video` takes it."""
        raise NotImplementedError

    def encode_video(self, ctx: Context, video: Prepared) -> list[Multimodal]:
        """Records the graph that encodes a video, in a context of its own."""
        raise NotImplementedError

    def video_inputs(self, video: list[MultimodalEmbedding]) -> list[Input | str]:
        """The inputs of one video, as `image_inputs` gives those of an image."""
        raise NotImplementedError

    def largest_video(self) -> Prepared:
        """A video that needs the most memory."""
        raise NotImplementedError
