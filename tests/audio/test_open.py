"""Sounds from files, bytes, data URLs and arrays; and those that are refused."""

import base64
import io
import struct
import sys

import numpy as np
import pytest
import soundfile

from ggmodel import limits
from ggmodel.audio import Audio, content_hash, open_audio, resample
from ggmodel.errors import AudioError, OutOfMemory, Unsupported
from tests.audio.sounds import RATE, pcm, tones

SOUND = tones(0.3)


def encoded(form, samples=SOUND, rate=RATE, **options):
    buffer = io.BytesIO()
    soundfile.write(buffer, samples, rate, format=form, **options)
    return buffer.getvalue()


def refused(source, *parts, rate=None):
    with pytest.raises(AudioError) as caught:
        open_audio(source, rate)
    for part in parts:
        assert part in str(caught.value)


@pytest.mark.parametrize(("width", "step"), [(1, 2**-7), (2, 2**-15), (3, 2**-23), (4, 2**-22)])
def test_wav_gives_its_levels(width, step):
    found = open_audio(pcm(SOUND, width=width))
    assert found.rate == RATE and found.samples.dtype == np.float32
    np.testing.assert_allclose(found.samples, SOUND, rtol=0, atol=2 * step)


@pytest.mark.parametrize("width", [1, 2, 3, 4])
def test_wav_is_read_as_libsndfile_reads_it(width):
    data = pcm(SOUND, width=width)
    theirs, _ = soundfile.read(io.BytesIO(data), dtype="float32")
    np.testing.assert_array_equal(open_audio(data).samples, theirs)


@pytest.mark.parametrize(
    ("form", "options", "error"),
    [
        ("WAV", {"subtype": "FLOAT"}, 0),
        ("WAVEX", {"subtype": "PCM_16"}, 2**-15),
        ("WAV", {"subtype": "ULAW"}, 0.02),
        ("FLAC", {}, 2**-15),
        ("OGG", {"subtype": "VORBIS"}, 0.2),
        ("MP3", {}, 0.2),
    ],
)
def test_other_files(form, options, error):
    found = open_audio(encoded(form, **options))
    assert found.rate == RATE and len(found.samples) == len(SOUND)
    np.testing.assert_allclose(found.samples, SOUND, rtol=0, atol=error)


def test_a_path_and_a_data_url_give_the_same(tmp_path):
    data = pcm(SOUND)
    (tmp_path / "a.wav").write_bytes(data)
    url = "data:audio/wav;base64," + base64.b64encode(data).decode()
    for source in (tmp_path / "a.wav", str(tmp_path / "a.wav"), url, bytearray(data)):
        np.testing.assert_array_equal(open_audio(source).samples, open_audio(data).samples)
        assert content_hash(source) == content_hash(data)


def test_channels_are_mixed():
    both = np.stack([SOUND, -0.5 * SOUND], axis=1)
    for source in (both, pcm(both, width=4), encoded("WAV", both, subtype="FLOAT")):
        found = open_audio(source, RATE)
        np.testing.assert_allclose(found.samples, SOUND * 0.25, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    "samples",
    [
        SOUND,
        SOUND.astype(np.float64),
        SOUND.tolist(),
        np.round(SOUND * 2**31).astype(np.int32),
        np.round(SOUND * 2**15).astype(np.int16),
        np.round(SOUND * 128 + 128).astype(np.uint8),
    ],
)
def test_arrays(samples):
    error = 2**-7 if getattr(samples, "dtype", None) == np.uint8 else 2**-15
    for found in (open_audio(samples, 8000), open_audio((samples, 8000))):
        assert found.rate == 8000 and found.samples.dtype == np.float32
        np.testing.assert_allclose(found.samples, SOUND, rtol=0, atol=error)


def test_the_hash_knows_the_rate():
    assert content_hash((SOUND, 8000)) == content_hash(Audio(SOUND, 8000))
    assert content_hash((SOUND, 8000)) != content_hash((SOUND, 16000))
    assert content_hash((SOUND, 8000)) != content_hash((SOUND * 2, 8000))


def test_a_cut_wav_gives_its_beginning():
    found = open_audio(pcm(SOUND)[:1001])
    np.testing.assert_array_equal(found.samples, open_audio(pcm(SOUND)).samples[: (1001 - 44) // 2])


def test_resampling_keeps_a_tone():
    time = np.arange(44_100) / 44_100
    found = resample(Audio(np.sin(2 * np.pi * 440 * time).astype(np.float32), 44_100), RATE)
    expected = np.sin(2 * np.pi * 440 * np.arange(RATE) / RATE)
    assert found.rate == RATE and len(found.samples) == RATE
    np.testing.assert_allclose(found.samples[200:-200], expected[200:-200], rtol=0, atol=1e-4)


def test_a_frequency_that_the_lower_rate_lacks_is_taken_out():
    time = np.arange(44_100) / 44_100
    found = resample(Audio(np.sin(2 * np.pi * 9000 * time).astype(np.float32), 44_100), RATE)
    assert np.abs(found.samples[200:-200]).max() < 1e-4


def test_the_same_rate_needs_no_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "soxr", None)
    monkeypatch.setitem(sys.modules, "soundfile", None)
    sound = open_audio(pcm(SOUND))
    assert resample(sound, RATE) is sound
    with pytest.raises(Unsupported, match=r"16000 samples a second.*pip install 'soundfile"):
        resample(sound, 8000)
    with pytest.raises(Unsupported, match=r"the sound, which is FLAC, .*pip install 'soundfile"):
        open_audio(encoded_flac())
    with pytest.raises(Unsupported, match=r"other than plain PCM, .*pip install 'soundfile"):
        open_audio(FLOATS)


def encoded_flac():
    return b"fLaC" + bytes(40)


FLOATS = encoded("WAV", subtype="FLOAT")


@pytest.mark.parametrize(
    ("source", "parts"),
    [
        (b"", ["the sound is empty"]),
        (b"no sound at all", ["no WAV, FLAC, MP3 or OGG", "convert it"]),
        (b"RIFF\0\0\0\0WAVE", ["the sound cannot be decoded"]),
        (pcm(np.zeros(0, np.float32)), ["has no samples"]),
        (encoded("MP3")[:40], ["the sound"]),
        (b"\xff\xfb\x90\x64" + bytes(range(256)) * 20, ["the sound cannot be decoded"]),
        (b"ID3" + b"\xff" * 4000, ["the sound cannot be decoded"]),
        (encoded("FLAC")[:60] + b"\xaa" * 500, ["the sound"]),
        (encoded("AIFF"), ["no WAV, FLAC, MP3 or OGG"]),
        ("missing.wav", ["no file missing.wav"]),
        ("https://a.b/c.wav", ["not fetched"]),
        ("data:audio/wav;base64", ["has no comma"]),
        ("data:audio/wav;base64,é", ["no base64"]),
        (7, ["not int"]),
    ],
)
def test_files_that_are_no_sounds(source, parts):
    refused(source, *parts)


@pytest.mark.parametrize(
    ("samples", "rate", "parts"),
    [
        ([], RATE, ["has no samples"]),
        (np.zeros((0, 2)), RATE, ["has no samples"]),
        ([0.0, float("nan")], RATE, ["sample 1", "nan"]),
        (np.array([0, 1e300]), RATE, ["sample 1", "inf"]),
        (np.zeros((9, 100)), RATE, ["100 channels", "audio_channels"]),
        (SOUND, 1, ["1 samples a second", "audio_rate_lowest"]),
        (SOUND, 0, ["0 samples a second"]),
        (SOUND, -5, ["-5 samples a second"]),
        (SOUND, 10_000_000, ["10,000,000 samples a second", "audio_rate_highest"]),
        (SOUND, None, ["no rate"]),
        (SOUND, 8000.5, ["whole number, not 8000.5"]),
        (SOUND, True, ["whole number, not True"]),
        (np.zeros((2, 2, 2)), RATE, ["[2, 2, 2]"]),
        (np.array(["a"]), RATE, ["numbers"]),
        (SOUND.astype(complex), RATE, ["complex"]),
        ([[1.0], [1.0, 2.0]], RATE, ["numbers"]),
    ],
)
def test_arrays_that_are_no_sounds(samples, rate, parts):
    refused(samples, *parts, rate=rate)


def test_a_header_that_promises_too_much_is_refused_before_decoding(monkeypatch):
    rate = pcm(SOUND, 10_000_000)
    refused(rate, "10,000,000 samples a second")
    refused(pcm(np.zeros((10, 100), np.float32)), "100 channels")
    refused(pcm(SOUND, 1), "1 samples a second")
    monkeypatch.setattr(limits, "audio_seconds", 0.25)
    flac = encoded("FLAC")
    refused(flac, "0 seconds, but the limit is 0.25", "audio_seconds")
    refused(pcm(SOUND), "audio_seconds")
    refused(SOUND, "audio_seconds", rate=RATE)


def test_a_stream_that_does_not_say_its_length_is_refused():
    data = bytearray(encoded("FLAC"))
    data[21] &= 0xF0
    data[22:26] = struct.pack(">I", 0)
    refused(bytes(data), "the sound cannot be decoded")


def test_limits_of_bytes_and_memory(monkeypatch, tmp_path):
    data = pcm(SOUND)
    (tmp_path / "a.wav").write_bytes(data)
    monkeypatch.setattr(limits, "audio_memory", 8 * len(SOUND) - 1)
    refused(data, "38,400 bytes once it is decoded", "audio_memory")
    monkeypatch.setattr(limits, "audio_bytes", 100)
    for source in (data, tmp_path / "a.wav", "data:," + "a" * 101, "data:," + "a" * 500):
        refused(source, "audio_bytes")


def test_memory_that_runs_out_is_named(monkeypatch):
    def short(*args, **options):
        raise MemoryError

    monkeypatch.setattr(np, "concatenate", short)
    with pytest.raises(OutOfMemory, match="no memory for a sound"):
        open_audio(pcm(SOUND))


def test_parts():
    sound = Audio(SOUND, RATE)
    assert sound.seconds == pytest.approx(0.3)
    np.testing.assert_array_equal(sound.part(0.1, 0.2).samples, SOUND[1600:3200])
    assert len(sound.part(0.25, 9).samples) == 800


def test_a_chunk_that_leads_out_of_the_file():
    """Python's reader of WAV gives up with a RuntimeError."""
    form = b"fmt " + (16).to_bytes(4, "little") + b"\1\0\1\0\x80\x3e\0\0\0\x7d\0\0\2\0\x10\0"
    lost = b"junk" + (1 << 30).to_bytes(4, "little") + b"abcd"
    body = b"WAVE" + form + lost
    with pytest.raises(AudioError):
        open_audio(b"RIFF" + len(body).to_bytes(4, "little") + body)
