"""The embedded model that hears: its answers, by every way to ask."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import ggmodel
from ggmodel.audio import open_audio
from ggmodel.errors import AudioError
from ggmodel.runner import LoadedModel

ASSETS = Path(__file__).parents[2] / "examples" / "assets"
SOUND = ASSETS / "tones.wav"
ASKED, SAID = "what do you hear?", "four slow tones: low, high, high, middle."


@pytest.fixture(scope="module")
def tones() -> Iterator[LoadedModel]:
    with ggmodel.load(ASSETS / "tones.gguf", parallel=4) as model:
        yield model


def test_it_is_small():
    assert (ASSETS / "tones.gguf").stat().st_size < 3_000_000


def test_it_says_what_it_hears_without_optional_packages(
    tones: LoadedModel, monkeypatch: pytest.MonkeyPatch
):
    for package in ("soundfile", "soxr"):
        monkeypatch.setitem(sys.modules, package, None)
    done = tones.generate(ASKED, audio=[SOUND], temperature=0)
    assert done.strip() == SAID and done.finish_reason == "stop"
    assert tones.generate("how many tones?", audio=[SOUND], temperature=0).strip() == "four."


def test_it_writes_down_what_it_hears(tones: LoadedModel):
    assert ggmodel.transcribe(tones, SOUND).text == SAID


def test_several_users_hear_different_sounds(tones: LoadedModel):
    """The beginnings of the sound have fewer tones."""
    sound = open_audio(SOUND)
    heard = [sound, sound.part(0, 0.9), sound.part(0, 0.45), sound]
    prompts = [tones.prompts.with_items(ASKED, {"audio": [one]}) for one in heard]
    answers = [done.strip() for done in tones.batch(prompts, temperature=0)]
    assert answers == [SAID, "two slow tones: low, high.", "one tone: low.", SAID]


def test_it_hears_other_rates(tones: LoadedModel):
    sound = open_audio(SOUND)
    twice = np.repeat(sound.samples, 2)  # of the doubled rate
    done = tones.generate(ASKED, audio=[(twice, 2 * sound.rate)], temperature=0)
    assert done.strip() == SAID


def test_a_longer_sound_is_refused_before_anything_is_computed(tones: LoadedModel):
    with pytest.raises(AudioError, match=r"the sound has 3,600.0 s, and this model hears 2 s"):
        tones.generate(ASKED, audio=[(np.zeros(3600 * 8000, np.float32), 8000)])
