"""Opens sounds as 32-bit floats of one channel."""

from __future__ import annotations

import hashlib
import numbers
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from ..errors import AudioError
from ..reading import given_bytes
from .decode import decode
from .sound import Audio, check_form, checked, within_memory

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Samples: TypeAlias = NDArray[np.floating] | NDArray[np.integer] | list[float]
    Source: TypeAlias = (
        str | Path | bytes | bytearray | memoryview | Audio | Samples | tuple[Samples, int]
    )

_FILES = (str, Path, bytes, bytearray, memoryview)


@within_memory
def open_audio(source: Source, rate: int | None = None) -> Audio:
    """Opens a sound and mixes its channels to one, their mean.

    docs/audio.md says which packages it needs.

    Args:
        source: a path, the bytes of a file, a data URL (`data:audio/wav;base64,…`), an `Audio`,
            samples, or samples and their rate. Files are WAV, FLAC, MP3 or OGG (Vorbis, Opus).
            Samples are [n] or [n, channels]; integers stand for parts of their type's range.
        rate: samples a second of samples that are given without it.

    Raises:
        AudioError: the file is missing, broken or in another format, a sample is NaN, there are no
            samples, or one of `ggmodel.limits` is exceeded: `audio_bytes`, `audio_channels`,
            `audio_memory`, `audio_rate_highest`, `audio_rate_lowest`, `audio_seconds`.
        Unsupported: soundfile, of the extra `audio`, is not installed, and the file needs it.
        OutOfMemory: there is no room for it.
    """
    if isinstance(source, _FILES):
        data, name = given_bytes(source, "sound", "audio_bytes", AudioError)
        return decode(data, name)
    samples, found = _samples(source, rate)
    check_form("the sound", samples.shape[0], samples.shape[1], found)
    return checked(_mixed(samples), found, "the sound")


@within_memory
def content_hash(source: Source, rate: int | None = None) -> str:
    """The SHA-256 of a file's bytes, or of samples and their rate, in hexadecimal.

    Raises:
        AudioError: the sound cannot be read. Files are not decoded.
        OutOfMemory: there is no room for it.
    """
    if isinstance(source, _FILES):
        return hashlib.sha256(
            given_bytes(source, "sound", "audio_bytes", AudioError)[0]
        ).hexdigest()
    samples, found = _samples(source, rate)
    digest = hashlib.sha256(f"{samples.dtype.str} {samples.shape} {found}\n".encode())
    digest.update(np.ascontiguousarray(samples).data)
    return digest.hexdigest()


def _samples(source: object, rate: object) -> tuple[NDArray, int]:
    """Samples [n, channels] as they were given, and their rate."""
    if isinstance(source, Audio):
        source, rate = source.samples, source.rate
    elif isinstance(source, tuple) and len(source) == 2:
        source, rate = source
    if not isinstance(source, (np.ndarray, list)):
        raise AudioError(
            f"a sound is a path, bytes, a data URL, or samples and their rate, not "
            f"{type(source).__name__}"
        )
    if rate is None:
        raise AudioError("the sound has no rate; give (samples, rate), as (samples, 16000)")
    if isinstance(rate, bool) or not isinstance(rate, numbers.Integral):
        raise AudioError(f"the rate of a sound is a whole number, not {rate!r:.80}")
    try:
        samples = np.asarray(source)
    except ValueError:  # lists of several lengths
        samples = np.asarray(None)
    if samples.ndim not in (1, 2) or not np.issubdtype(samples.dtype, np.number):
        raise AudioError(
            f"a sound's samples are numbers, [n] or [n, channels], not {samples.dtype} "
            f"{list(samples.shape)}"
        )
    if np.issubdtype(samples.dtype, np.complexfloating):
        raise AudioError("a sound's samples are real numbers; these are complex")
    if isinstance(source, list):
        samples = samples.astype(np.float32)
    return samples.reshape(len(samples), -1) if samples.size else samples.reshape(0, 1), int(rate)


def _mixed(samples: NDArray) -> NDArray[np.float32]:
    """One channel, in pieces, so that only the result is large."""
    result = np.empty(len(samples), np.float32)
    whole = np.issubdtype(samples.dtype, np.integer)
    info = np.iinfo(samples.dtype) if whole else None
    for begin in range(0, len(samples), 1 << 20):
        piece = samples[begin : begin + (1 << 20)].mean(axis=1, dtype=np.float64)
        if info is not None:
            middle = 0 if info.min else 2.0 ** (info.bits - 1)
            piece = (piece - middle) / 2.0 ** (info.bits - 1)
        with np.errstate(over="ignore"):  # `checked` names the sample
            result[begin : begin + len(piece)] = piece
    return result
