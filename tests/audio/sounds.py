"""Sounds made by arithmetic, the same everywhere."""

from __future__ import annotations

import io
import wave

import numpy as np

RATE = 16_000


def tones(seconds: float, rate: int = RATE) -> np.ndarray:
    """Chords that swell and fall, with a little noise: float32 [n]."""
    time = np.arange(int(seconds * rate)) / rate
    noise = (np.arange(len(time)) * 7919 % 1009 / 1009 - 0.5) * 0.02
    sound = sum(np.sin(2 * np.pi * f * time * (1 + 0.05 * time)) for f in (220, 733, 2900))
    return (sound * 0.2 * np.sin(np.pi * 1.5 * time) ** 2 + noise).astype(np.float32)


def pcm(samples: np.ndarray, rate: int = RATE, width: int = 2) -> bytes:
    """A WAV file of [n] or [n, channels]."""
    samples = samples if samples.ndim == 2 else samples[:, None]
    levels = np.round(samples.astype(np.float64) * (2 ** (8 * width - 1) - 1)).astype("<i4")
    if width == 1:
        data = (levels + 128).astype(np.uint8).tobytes()
    else:
        data = np.ascontiguousarray(levels).view(np.uint8).reshape(-1, 4)[:, :width].tobytes()
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as file:
        file.setnchannels(samples.shape[1])
        file.setsampwidth(width)
        file.setframerate(rate)
        file.writeframes(data)
    return buffer.getvalue()
