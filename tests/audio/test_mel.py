"""Spectra against transformers' feature extractors, whose results are in goldens.npz."""

from pathlib import Path

import numpy as np
import pytest

from ggmodel.audio import gemma_mel, parakeet_mel, whisper_mel
from ggmodel.errors import AudioError
from tests.audio.sounds import tones

GEMMA4 = {
    "frame": 320,
    "n_fft": 512,
    "low": 0.0,
    "high": 8000.0,
    "preemphasis": 0.0,
    "floor": 1e-3,
    "added": True,
    "early": True,
}


@pytest.fixture(scope="module")
def golden():
    with np.load(Path(__file__).parent / "goldens.npz", allow_pickle=False) as file:
        return dict(file)


@pytest.mark.parametrize("mels", [80, 128])
def test_whispers_spectrum(golden, mels):
    ours = whisper_mel(tones(0.7), mels, length=16_000)
    assert ours.shape == (mels, 100) and ours.dtype == np.float32
    np.testing.assert_allclose(ours, golden[f"whisper.{mels}"], rtol=0, atol=1e-6)


def test_whispers_spectrum_of_thirty_seconds(golden):
    ours = whisper_mel(tones(4.0))
    assert ours.shape == (80, 3000)
    np.testing.assert_allclose(ours[:, ::50], golden["whisper.30"], rtol=0, atol=1e-6)


def test_parakeets_spectrum(golden):
    ours, theirs = parakeet_mel(tones(0.7)), golden["parakeet.80"]
    assert len(ours) == len(theirs) - 1 and not theirs[-1].any()  # a row of padding
    np.testing.assert_allclose(ours, theirs[:-1], rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ["whisper", "parakeet"])
def test_torch_rounds_more_than_these_spectra_differ(golden, name):
    """torch computes both in float32, which moves faint mels by more than 1e-5: ours are as far
    from its results as transformers' own computation in float64 is."""
    exact, rounded = golden[f"{name}.80"], golden[f"{name}.torch"]
    ours = whisper_mel(tones(0.7), length=16_000) if name == "whisper" else parakeet_mel(tones(0.7))
    rounding = np.abs(exact - rounded).max()
    assert 1e-5 < rounding < 5e-3
    assert np.abs(ours - rounded[: len(ours)]).max() < rounding + 1e-5


@pytest.mark.parametrize(("name", "options"), [("3n", {}), ("4", GEMMA4)])
def test_gemmas_spectrum(golden, name, options):
    ours, valid = gemma_mel(tones(0.7), **options)
    np.testing.assert_allclose(ours, golden[f"gemma{name}"], rtol=0, atol=1e-5)
    np.testing.assert_array_equal(valid, golden[f"gemma{name}.valid"])


def test_silence_has_a_spectrum():
    assert np.allclose(whisper_mel(np.zeros(16_000, np.float32)), -1.5)
    assert np.isfinite(parakeet_mel(np.zeros(1_600, np.float32))).all()


@pytest.mark.parametrize(
    ("compute", "message"),
    [
        (lambda: whisper_mel(tones(31)), "31.0 s does not fit into 30.0 s"),
        (lambda: whisper_mel(tones(0.01), length=None), "160 samples is shorter than a frame's"),
        (lambda: parakeet_mel(tones(0.01)), "160 samples is shorter than two frames of 160"),
        (lambda: gemma_mel(tones(0.02)), "320 samples is shorter than a frame of 512"),
    ],
)
def test_sounds_that_do_not_suit(compute, message):
    with pytest.raises(AudioError, match=message):
        compute()
