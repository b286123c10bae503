"""Sounds opened as 32-bit floats of one channel: WAV by Python, the others by libsndfile."""

from __future__ import annotations

import hashlib
import io
import numbers
import wave
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from ..bounds import spend
from ..errors import AudioError, Error
from ..reading import given_bytes
from .sound import Audio, check_form, checked, optional, within_memory

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Samples: TypeAlias = NDArray[np.floating] | NDArray[np.integer] | list[float]
    Source: TypeAlias = (
        str | Path | bytes | bytearray | memoryview | Audio | Samples | tuple[Samples, int]
    )

_BLOCK = 1 << 18  # samples of all channels that are decoded at once
_UNKNOWN = 1 << 62  # libsndfile's length of a stream that does not say it
_CONVERT = "convert it to WAV or FLAC"
_FORMATS = ("WAV", "WAVEX", "RF64", "FLAC", "OGG", "MP3")


def decode(data: bytes, name: str) -> Audio:
    """The sound in a file's bytes.

    Raises:
        AudioError: as `open_audio`.
        Unsupported: soundfile is not installed, and the file needs it.
    """
    form = _form(data)
    if not form:
        raise AudioError(
            f"{name} is no WAV, FLAC, MP3 or OGG file, or its beginning is broken; {_CONVERT}"
        )
    if form == "WAV":
        try:
            with wave.open(io.BytesIO(data)) as file:
                return _wave(file, name)
        except (wave.Error, EOFError, RuntimeError):
            pass  # floats, compressed, extended, or broken: libsndfile tells them apart
    soundfile = optional(
        "soundfile",
        f"{name}, which is {form} in a form other than plain PCM,"
        if form == "WAV"
        else f"{name}, which is {form},",
    )
    try:
        with soundfile.SoundFile(io.BytesIO(data)) as file:
            if file.format not in _FORMATS:
                raise AudioError(f"{name} is {file.format_info}, which is not read; {_CONVERT}")
            return _soundfile(file, name)
    except (Error, MemoryError):
        raise
    except Exception as error:  # decoders raise whatever a broken file leads them to
        raise AudioError(f"{name} cannot be decoded: {error}; {_CONVERT}") from error


def _form(data: bytes) -> str:
    """The format by a file's first bytes, or ""."""
    if data[:4] in (b"RIFF", b"RF64") and data[8:12] == b"WAVE":
        return "WAV"
    forms = {b"fLaC": "FLAC", b"OggS": "OGG"}
    if data[:4] in forms:
        return forms[data[:4]]
    # An MPEG frame begins with eleven bits; the two next to the layer's are not both zero.
    frame = len(data) > 1 and data[0] == 0xFF and data[1] & 0xE0 == 0xE0 and bool(data[1] & 0x06)
    return "MP3" if frame or data[:3] == b"ID3" else ""


def _wave(file: wave.Wave_read, name: str) -> Audio:
    channels, rate, width = file.getnchannels(), file.getframerate(), file.getsampwidth()
    check_form(name, 0, channels, rate)
    if width > 4:
        raise AudioError(f"{name} has samples of {8 * width} bits; {_CONVERT}")

    def blocks() -> Iterable[NDArray]:
        while piece := file.readframes(max(1, _BLOCK // channels)):
            whole = len(piece) // (width * channels) * width * channels  # the file may be cut
            yield _numbers(piece[:whole], width).reshape(-1, channels)

    return _joined(blocks(), channels, rate, name)


def _numbers(data: bytes, width: int) -> NDArray:
    """Samples of PCM, from -1 to 1, as float32."""
    if width == 1:
        return (np.frombuffer(data, np.uint8).astype(np.float32) - 128) / 128
    if width == 3:
        wide = np.zeros((len(data) // 3, 4), np.uint8)
        wide[:, 1:] = np.frombuffer(data, np.uint8).reshape(-1, 3)
        data, width = wide.tobytes(), 4
    levels = np.frombuffer(data, f"<i{width}")
    return (levels / 2.0 ** (8 * width - 1)).astype(np.float32)


def _soundfile(file, name: str) -> Audio:
    channels, rate = file.channels, file.samplerate
    check_form(name, file.frames if file.frames < _UNKNOWN else 0, channels, rate)

    def blocks() -> Iterable[NDArray]:
        while len(piece := file.read(max(1, _BLOCK // channels), "float32", always_2d=True)):
            yield piece

    return _joined(blocks(), channels, rate, name)


def _joined(blocks: Iterable[NDArray], channels: int, rate: int, name: str) -> Audio:
    """One channel; the limits hold for each block, as a file's header may promise less."""
    pieces, frames = [], 0
    for block in blocks:
        frames += len(block)
        check_form(name, frames, channels, rate)
        spend("audio_seconds", len(block) / rate, "seconds of sounds")
        pieces.append(block[:, 0].copy() if channels == 1 else block.mean(axis=1))
    samples = np.concatenate(pieces) if pieces else np.empty(0, np.float32)
    return checked(samples, rate, name)


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
    samples, own_rate = _samples(source, rate)
    check_form("the sound", samples.shape[0], samples.shape[1], own_rate)
    return checked(_mixed(samples), own_rate, "the sound")


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
    samples, own_rate = _samples(source, rate)
    digest = hashlib.sha256(f"{samples.dtype.str} {samples.shape} {own_rate}\n".encode())
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
