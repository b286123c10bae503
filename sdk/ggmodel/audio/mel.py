"""Spectra as the feature extractors of transformers compute them.

Whisper's and Parakeet's are computed in float64, Gemma's in float32 as transformers computes it
in numpy; the results are float32.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, Literal

import numpy as np

from ..errors import AudioError
from .sound import within_memory

if TYPE_CHECKING:
    from numpy.typing import NDArray

Scale = Literal["slaney", "htk"]
_FRAMES = 1 << 12  # computed at once: some 30 MB


@lru_cache(maxsize=16)
def mel_filters(
    mels: int,
    bins: int,
    rate: int,
    low: float,
    high: float,
    scale: Scale = "slaney",
    equal_areas: bool = True,
) -> NDArray[np.float64]:
    """Triangles at equal distances on a scale of pitches.

    Args:
        mels: triangles.
        bins: frequencies from 0 to half the rate.
        low, high: begin of the first triangle and end of the last, in Hz.
        scale: "slaney": 15 steps up to 1 kHz, then 27 for each factor of 6.4 (Slaney's Auditory
            Toolbox, 1998); "htk": 2595 log10(1 + f / 700).
        equal_areas: each triangle has the area 1 over Hz, else the height 1.

    Returns:
        [bins, mels].
    """
    ends = _to_mel(np.array([low, high]), scale)
    corners = _to_hertz(np.linspace(ends[0], ends[1], mels + 2), scale)
    distance = corners[None, :] - np.linspace(0, rate / 2, bins)[:, None]
    widths = np.diff(corners)
    filters = np.maximum(
        0, np.minimum(-distance[:, :-2] / widths[:-1], distance[:, 2:] / widths[1:])
    )
    if equal_areas:
        filters = filters * (2 / (corners[2:] - corners[:-2]))
    filters.flags.writeable = False
    return filters


@within_memory
def whisper_mel(
    samples: NDArray[np.float32],
    mels: int = 80,
    length: int | None = 480_000,
    n_fft: int = 400,
    hop: int = 160,
    rate: int = 16_000,
) -> NDArray[np.float32]:
    """Whisper's log-mel spectrum, also Qwen2-Audio's and Voxtral's.

    Args:
        samples: [n], `rate` a second.
        length: samples that the sound is filled up to with silence, or None.

    Returns:
        [mels, frames], a frame for each `hop` samples.

    Raises:
        AudioError: there are more samples than `length`, or too few to mirror at their ends.
        OutOfMemory: there is no room for it.
    """
    if length is not None:
        if len(samples) > length:
            raise AudioError(
                f"a sound of {len(samples) / rate:.1f} s does not fit into {length / rate:.1f} s; "
                f"give it in parts"
            )
        samples = np.pad(samples, (0, length - len(samples)))
    if len(samples) <= n_fft // 2:
        raise AudioError(
            f"a sound of {len(samples)} samples is shorter than a frame's {n_fft // 2}"
        )
    padded = np.pad(samples.astype(np.float64), n_fft // 2, "reflect")
    window = _hann(n_fft)
    filters = mel_filters(mels, n_fft // 2 + 1, rate, 0.0, 8000.0)
    result = np.empty((len(samples) // hop, mels))
    for begin, frames in _framed(padded, n_fft, hop, len(result)):
        power = np.abs(np.fft.rfft(frames * window)) ** 2
        result[begin : begin + len(frames)] = np.log10(np.maximum(power @ filters, 1e-10))
    result = np.maximum(result, result.max(initial=-10.0) - 8.0)
    return np.ascontiguousarray(((result + 4.0) / 4.0).T, np.float32)


@within_memory
def parakeet_mel(
    samples: NDArray[np.float32],
    mels: int = 80,
    n_fft: int = 512,
    window: int = 400,
    hop: int = 160,
    preemphasis: float = 0.97,
    rate: int = 16_000,
) -> NDArray[np.float32]:
    """Parakeet's log-mel spectrum, each mel with mean 0 and deviation 1 over the sound.

    Args:
        samples: [n], `rate` a second.

    Returns:
        [frames, mels], a frame for each `hop` samples.

    Raises:
        AudioError: there are fewer than two frames, which have no deviation.
        OutOfMemory: there is no room for it.
    """
    count = len(samples) // hop
    if count < 2:
        raise AudioError(f"a sound of {len(samples)} samples is shorter than two frames of {hop}")
    values = samples.astype(np.float32)
    values[1:] -= np.float32(preemphasis) * values[:-1].copy()
    padded = np.pad(values.astype(np.float64), n_fft // 2)
    shape = np.zeros(n_fft)
    shape[(n_fft - window) // 2 :][:window] = 0.5 - 0.5 * np.cos(
        2 * np.pi * np.arange(window) / (window - 1)
    )
    filters = mel_filters(mels, n_fft // 2 + 1, rate, 0.0, rate / 2)
    result = np.empty((count, mels))
    for begin, frames in _framed(padded, n_fft, hop, count):
        power = np.abs(np.fft.rfft(frames * shape)) ** 2
        result[begin : begin + len(frames)] = np.log(power @ filters + 2.0**-24)
    deviation = result.std(axis=0, ddof=1)
    return ((result - result.mean(axis=0)) / (deviation + 1e-5)).astype(np.float32)


@within_memory
def gemma_mel(
    samples: NDArray[np.float32],
    mels: int = 128,
    frame: int = 512,
    hop: int = 160,
    n_fft: int = 1024,
    low: float = 125.0,
    high: float = 7600.0,
    preemphasis: float = 0.97,
    floor: float = 1e-5,
    added: bool = False,
    early: bool = False,
    multiple: int = 128,
    rate: int = 16_000,
) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """Gemma's log-mel spectrum of amplitudes: the defaults are Gemma 3n's.

    Gemma 4 has frame=320, n_fft=512, low=0, high=8000, preemphasis=0, floor=1e-3, added=True and
    early=True.

    Args:
        samples: [n], `rate` a second.
        floor: least amplitude; added to each where `added`.
        early: half a frame of silence comes first, and frames that reach behind the sound are 0.
        multiple: samples that the sound is filled up to a multiple of.

    Returns:
        [frames, mels], and for each frame whether the sound reaches it, [frames].

    Raises:
        AudioError: the sound is shorter than a frame.
        OutOfMemory: there is no room for it.
    """
    values = np.pad(
        samples.astype(np.float32), (frame // 2 if early else 0, -len(samples) % multiple)
    )
    heard = len(samples) + (frame // 2 if early else 0)
    if len(values) <= frame:
        raise AudioError(f"a sound of {len(samples)} samples is shorter than a frame of {frame}")
    count = (len(values) - frame - 1) // hop + 1
    filters = mel_filters(mels, n_fft // 2 + 1, rate, low, high, "htk", equal_areas=False)
    window = _hann(frame, np.float64 if early else np.float32).astype(np.float32)
    result = np.empty((count, mels))
    for begin, frames in _framed(values, frame + 1, hop, count):
        now = frames[:, :-1]
        if preemphasis:  # as HTK's: a frame's first sample stands for the one before it
            now = now.copy()
            now[:, 1:] -= preemphasis * frames[:, :-2]
            now[:, :1] *= 1 - preemphasis
        mel = np.abs(np.fft.rfft(now * window, n=n_fft)) @ filters
        result[begin : begin + len(frames)] = np.log(
            mel + floor if added else np.maximum(mel, floor)
        )
    starts = np.arange(count) * hop
    valid = starts + frame < heard if early else starts < heard
    if early:
        result = result * valid[:, None]
    return result.astype(np.float32), valid


def _to_mel(hertz: NDArray[np.float64], scale: Scale) -> NDArray[np.float64]:
    if scale == "htk":
        return 2595 * np.log10(1 + hertz / 700)
    steps = 15 + np.log(np.maximum(hertz, 1e-9) / 1000) * (27 / np.log(6.4))
    return np.where(hertz >= 1000, steps, hertz * (3 / 200))


def _to_hertz(mels: NDArray[np.float64], scale: Scale) -> NDArray[np.float64]:
    if scale == "htk":
        return 700 * (10 ** (mels / 2595) - 1)
    return np.where(mels >= 15, 1000 * np.exp((mels - 15) * (np.log(6.4) / 27)), mels * (200 / 3))


def _hann(size: int, dtype: type[np.floating] = np.float64) -> NDArray:
    """The periodic window, computed in this dtype."""
    return 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(size, dtype=dtype) / size)


def _framed(values: NDArray, size: int, hop: int, count: int) -> Iterator[tuple[int, NDArray]]:
    """The number of the first of some frames, and these as a view [frames, size]."""
    frames = np.lib.stride_tricks.sliding_window_view(values, size)[::hop][:count]
    for begin in range(0, count, _FRAMES):
        yield begin, frames[begin : begin + _FRAMES]
