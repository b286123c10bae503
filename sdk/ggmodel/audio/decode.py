"""Files of sounds: WAV by Python, the others by libsndfile."""

from __future__ import annotations

import io
import wave
from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from ..bounds import spend
from ..errors import AudioError, Error
from .sound import Audio, check_form, checked, optional

if TYPE_CHECKING:
    from numpy.typing import NDArray

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
    known = {b"fLaC": "FLAC", b"OggS": "OGG"}
    if data[:4] in known:
        return known[data[:4]]
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
