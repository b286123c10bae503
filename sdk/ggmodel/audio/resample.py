"""Sounds of another rate."""

from __future__ import annotations

import numpy as np

from .sound import Audio, optional, within_memory


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
