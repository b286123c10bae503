"""Damaged sounds of every format, and samples of odd shapes, types and rates."""

from __future__ import annotations

import base64
import io
import math
from functools import cache
from random import Random

import numpy as np
import soundfile

from ggmodel.audio import content_hash, open_audio, resample, whisper_mel
from ggmodel.errors import AudioError
from tests.audio.sounds import pcm, tones
from tests.fuzz.damage import damaged
from tests.fuzz.fuzzer import Fuzzer, Note, Wrong

_RATES = [0, 1, 7999, 8000, 16_000, 44_100, 384_000, 384_001, 2**31, -16_000]
_TYPES = ["float32", "float64", "float16", "int16", "int32", "uint8", "int64", "bool", "complex64"]


@cache
def sounds() -> list[bytes]:
    """Short sounds in all formats and many of their kinds."""
    mono = tones(0.1)
    stereo = np.stack([mono, -mono], axis=1)
    found = [pcm(mono, width=width) for width in (1, 2, 3, 4)] + [pcm(stereo)]
    for form, kind in [
        ("WAV", "FLOAT"), ("WAV", "ULAW"), ("WAV", "IMA_ADPCM"), ("WAVEX", "PCM_16"),
        ("FLAC", "PCM_16"), ("FLAC", "PCM_24"), ("OGG", "VORBIS"), ("OGG", "OPUS"),
        ("MP3", "MPEG_LAYER_III"), ("AIFF", "PCM_16"),
    ]:  # fmt: skip
        file = io.BytesIO()
        soundfile.write(file, stereo if kind != "IMA_ADPCM" else mono, 16_000, kind, format=form)
        found.append(file.getvalue())
    return found


class Sounds(Fuzzer):
    """Opens sounds of strangers, from bytes, files, data URLs and arrays."""

    name = "sounds"
    unit = "opened"
    weight = 1.0
    memory = 1 << 30

    def make(self, random: Random) -> dict[str, object]:
        if random.random() < 0.25:
            shape = [random.choice([0, 1, 2, 7, 100, 3000]) for _ in range(random.randint(0, 3))]
            while math.prod(shape) > 10**7:
                shape.pop()
            return {
                "shape": shape, "type": random.choice(_TYPES), "rate": random.choice(_RATES),
                "seed": random.randrange(1000), "odd": random.random() < 0.2,
            }  # fmt: skip
        raw = damaged(random, random.choice(sounds()))
        return {"raw": raw, "way": random.choice(["bytes", "bytes", "file", "url"])}

    def run(self, case: dict[str, object], note: Note) -> None:
        source = self._source(case)
        try:
            sound = open_audio(source)  # type: ignore[arg-type]
        except AudioError:
            self.counts["refused"] += 1
            return
        self.counts["opened"] += 1
        if sound.samples.dtype != np.float32 or sound.samples.ndim != 1 or not len(sound.samples):
            raise Wrong("a sound of another form", f"{sound.samples.dtype} {sound.samples.shape}")
        if not np.isfinite(sound.samples).all():
            raise Wrong("a sound with samples that are no numbers", repr(source)[:200])
        content_hash(source)  # type: ignore[arg-type]
        if (
            sound.seconds < 30
            and not np.isfinite(whisper_mel(resample(sound, 16_000).samples)).all()
        ):
            raise Wrong("a spectrum that is not finite", repr(source)[:200])

    def _source(self, case: dict[str, object]) -> object:
        raw, way = case.get("raw"), case.get("way")
        if isinstance(raw, bytes):
            if way == "file":
                path = self.folder / "sound"
                path.write_bytes(raw)
                return str(path)
            url = "data:audio/wav;base64," + base64.b64encode(raw).decode()
            return url if way == "url" else raw
        numbers = np.random.default_rng(case["seed"]).normal(0, 50, case["shape"])  # type: ignore
        if case["odd"] and numbers.size:
            numbers.flat[0] = np.nan
        with np.errstate(invalid="ignore"):
            return numbers.astype(str(case["type"])), case["rate"]
