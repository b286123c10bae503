"""A sound in memory: the numbers it has to have, and another rate for it."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import numpy as np

from ..bounds import limits
from ..errors import AudioError, OutOfMemory, Unsupported
from ..imports import install_command
from ..reading import too_large

if TYPE_CHECKING:
    from numpy.typing import NDArray

BYTES_A_SAMPLE = 8  # the pieces of one channel, and the whole

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, eq=False)
class Audio:
    """A sound of one channel.

    Attributes:
        samples: float32 [n], usually from -1 to 1.
        rate: samples a second.
    """

    samples: NDArray[np.float32]
    rate: int

    @property
    def seconds(self) -> float:
        """Its length."""
        return len(self.samples) / self.rate

    def part(self, begin: float, end: float) -> Audio:
        """From second `begin` to second `end`, or to its own end."""
        return Audio(self.samples[round(begin * self.rate) : round(end * self.rate)], self.rate)


def checked(samples: NDArray[np.float32], rate: int, name: str) -> Audio:
    """A sound whose samples are numbers.

    Raises:
        AudioError: it has no samples, or one of them is NaN or infinite.
    """
    if not len(samples):
        raise AudioError(f"{name} has no samples; give another sound")
    for begin in range(0, len(samples), 1 << 20):
        finite = np.isfinite(samples[begin : begin + (1 << 20)])
        if not finite.all():
            first = begin + int(np.argmin(finite))
            raise AudioError(
                f"sample {first} of {name} is {samples[first]}, not a number; give another sound"
            )
    return Audio(samples, rate)


def check_form(name: str, frames: int, channels: int, rate: int) -> None:
    """Checks what a sound costs before it is decoded.

    Args:
        frames: samples of one channel.

    Raises:
        AudioError: it exceeds one of `ggmodel.limits`: `audio_channels`, `audio_memory`,
            `audio_rate_highest`, `audio_rate_lowest`, `audio_seconds`.
    """
    if not 1 <= channels <= limits.audio_channels:
        raise AudioError(too_large(name, f"{channels} channels", "audio_channels"))
    if rate < limits.audio_rate_lowest:
        raise AudioError(
            f"{name} has {rate} samples a second, but the limit audio_rate_lowest is "
            f"{limits.audio_rate_lowest:,}; give its right rate"
        )
    if rate > limits.audio_rate_highest:
        raise AudioError(too_large(name, f"{rate:,} samples a second", "audio_rate_highest"))
    if frames > limits.audio_seconds * rate:
        raise AudioError(too_large(name, f"{frames / rate:,.0f} seconds", "audio_seconds"))
    needed = frames * BYTES_A_SAMPLE
    if needed > limits.audio_memory:
        raise AudioError(too_large(name, f"{needed:,} bytes once it is decoded", "audio_memory"))


def optional(package: str, use: str) -> Any:
    """A package of the extra `audio`.

    Raises:
        Unsupported: it is not installed, or lacks its library; the message begins with `use`.
    """
    try:
        return importlib.import_module(package)
    except (ImportError, OSError) as error:
        raise Unsupported(
            f"{use} needs the package {package} ({error}): {install_command('audio')}"
        ) from None


def within_memory(function: Callable[P, R]) -> Callable[P, R]:
    """Turns the bare MemoryError of numpy into `OutOfMemory`."""

    @functools.wraps(function)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except OutOfMemory:
            raise
        except MemoryError:
            raise OutOfMemory(
                f"no memory for a sound ({function.__name__}); give a shorter one, or lower "
                f"ggmodel.limits.audio_memory"
            ) from None

    return guarded


@within_memory
def resample(audio: Audio, rate: int) -> Audio:
    """The sound with another number of samples a second.

    soxr filters as librosa does by default, through which transformers reads sounds: its quality HQ
    keeps 20 bits and the frequencies up to 0.91 of half the lower rate.

    Args:
        rate: samples a second. At the sound's own rate nothing changes.

    Raises:
        Unsupported: soxr, of the extra `audio`, is not installed.
        OutOfMemory: there is no room for it.
    """
    if audio.rate == rate:
        return audio
    soxr = optional("soxr", f"a sound of {audio.rate} samples a second, where {rate} are heard,")
    samples = soxr.resample(audio.samples, audio.rate, rate, quality="HQ")
    # A sound shorter than the step between two samples still has one.
    return Audio(samples if len(samples) else np.zeros(1, np.float32), rate)
