"""Sounds for Gemma 3n: how long they may be, and their spectra."""

from __future__ import annotations

import numpy as np

from ggmodel import nn
from ggmodel.audio import Audio, gemma_mel, resample
from ggmodel.errors import AudioError, ConfigError
from ggmodel.model import Prepared

from .config import Gemma3nConfig

RATE, HOP = 16_000, 160  # samples: a second, from frame to frame
LONGEST = 30 * RATE  # transformers cuts off the rest


def most_samples(h: Gemma3nConfig) -> int:
    """Samples that become no more rows than a sound has."""
    return min(LONGEST, h.audio_rows * h.audio_frames * HOP)


def silence(h: Gemma3nConfig) -> Audio:
    """A sound of the largest size."""
    return Audio(np.zeros(most_samples(h), np.float32), RATE)


def spectrum_of(sound: Audio, h: Gemma3nConfig) -> Prepared:
    """The spectrum float32 [frames, mels].

    Raises:
        AudioError: the sound is too long, or shorter than a frame.
    """
    most = most_samples(h)
    if sound.seconds > most / RATE:
        raise AudioError(
            f"the sound has {sound.seconds:,.1f} s, and this model hears {most / RATE:g} s at "
            "once; give it in parts"
        )
    values, heard = gemma_mel(resample(sound, RATE).samples[:most], h.mels)
    return Prepared(values[heard])


def check_sounds(h: Gemma3nConfig, inner: int, flat: int, tokens: int) -> None:
    """Checks the hyperparameters of sounds.

    Args:
        inner: channels of the last convolution.
        flat: numbers in a row that the projection behind it takes.
        tokens: rows of the table of sounds' own tokens.

    Raises:
        ConfigError: they fit neither each other nor the tensors.
    """
    nn.check_conformer(h, inner, flat)
    longest = -(-LONGEST // (HOP * h.audio_frames))
    if h.audio_rows > longest:
        raise ConfigError(
            f"audio.soft_tokens is {h.audio_rows}, and a sound of {LONGEST // RATE} s has {longest}"
        )
    if max(h.audio_past, h.audio_ahead) > nn.MOST_NEARBY:
        raise ConfigError(
            f"audio.attention.context_left and _right are {h.audio_before} and {h.audio_ahead}; "
            f"supported: up to {nn.MOST_NEARBY + 1} and {nn.MOST_NEARBY}"
        )
    for row in (h.audio_end, h.audio_filler):
        if row is not None and not 0 <= row < tokens:
            raise ConfigError(f"row {row} of {tokens} tokens of sounds; give another audio.end")
