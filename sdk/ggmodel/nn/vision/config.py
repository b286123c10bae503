"""How pictures become pixels, as a checkpoint says it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from ...errors import ConfigError, Unsupported
from ...image import METHODS
from ...model.config import Config, descend
from ...model.module import encoder_kv, kv

HALF = (0.5, 0.5, 0.5)
# CLIP's mean and standard deviation of red, green and blue.
CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
CLIP_STD = (0.26862954, 0.26130258, 0.27577711)

vision_kv = partial(encoder_kv, "vision")
"""A hyperparameter of an encoder of images: `vision_kv("block_count", "num_hidden_layers")`."""


def image_mean(usual: Sequence[float]) -> Any:
    """A hyperparameter: the means of red, green and blue; `usual` for files and folders without."""
    return _channels("image_mean", usual)


def image_std(usual: Sequence[float]) -> Any:
    """A hyperparameter: the deviations of red, green and blue, likewise."""
    return _channels("image_std", usual)


def _channels(key: str, usual: Sequence[float]) -> Any:
    return kv(f"vision.{key}", hf=f"preprocessor:{key}", default=list(usual))


def resample(usual: str) -> Any:
    """A hyperparameter: the method of `image.resize`, written to files only if it is not the usual
    one.

    Raises:
        ConfigError: when the config of a checkpoint is read that says an unknown one.
    """

    def find(hf: Mapping[str, Any]) -> str | None:
        method = descend(hf, "preprocessor:resample")
        if method is not None and (not isinstance(method, int) or method not in METHODS):
            supported = ", ".join(f"{number} ({name})" for number, name in METHODS.items())
            raise Unsupported(f"preprocessor:resample is {method!r:.40}; supported: {supported}")
        return None if method is None or METHODS[method] == usual else METHODS[method]

    return kv("vision.resample", hf=find, default=usual)


class ImageConfig(Config):
    """The hyperparameters of every model that sees. A subclass redeclares those with other usual
    values, and adds its own size: `image_mean: list = nn.image_mean(nn.CLIP_MEAN)`.

    Attributes:
        image_mean, image_std: of red, green and blue, for `image.normalize`.
        resample: for `image.resize`.

    Raises:
        ConfigError: a mean or a deviation is no list of three numbers, or a deviation is 0.
    """

    fixed = {
        "preprocessor:do_resize": True,
        "preprocessor:do_rescale": True,
        "preprocessor:rescale_factor": 1 / 255,
        "preprocessor:do_normalize": True,
        "preprocessor:do_center_crop": None,
        "preprocessor:crop_size": ...,  # without a crop
        "preprocessor:pad_size": None,
        "preprocessor:do_pad": ...,  # of pictures to those beside them
    }

    image_mean: list = image_mean(HALF)
    image_std: list = image_std(HALF)
    resample: str = resample("bilinear")

    def __init__(self, **values: Any):
        super().__init__(**values)
        for name in ("image_mean", "image_std"):
            numbers = getattr(self, name)
            kind = all(isinstance(n, int | float) and math.isfinite(n) for n in numbers)
            if len(numbers) != 3 or not kind or (name == "image_std" and 0 in numbers):
                raise ConfigError(f"{name} is {numbers!r:.80}; it is a number for red, green, blue")
        if self.resample not in METHODS.values():
            supported = ", ".join(METHODS.values())
            raise ConfigError(f"the method of resizing is {self.resample!r:.40}, not {supported}")
