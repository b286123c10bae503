"""Transcripts beside `generate` of transformers; languages, sounds and progress."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

import ggmodel
from ggmodel.errors import AudioError, ConfigError, TokenizerError, Unsupported
from ggmodel.models.whisper import languages
from ggmodel.runner import LoadedModel
from ggmodel.transcript import transcribe
from tests.audio.sounds import RATE, pcm, tones
from tests.transcript.whispers import ASKED, TIMED, WORDS, goldens, sound


def test_the_public_name():
    assert ggmodel.transcribe is transcribe


@pytest.mark.parametrize("name", ASKED)
def test_tokens_and_times_are_those_of_transformers(whisper: LoadedModel, name: str):
    found = transcribe(whisper, sound(name), rate=RATE, **ASKED[name][1])
    want = [(start, end, _own(tokens)) for start, end, tokens in goldens()["asked"][name]]
    assert [list(s.tokens) for s in found.segments] == [tokens for _, _, tokens in want]
    timed = ASKED[name][1].get("timestamps")
    if timed:  # else a time may be missing where transformers counts from a token of text
        most = ASKED[name][0]  # where the sound ends
        assert [[s.start, s.end] for s in found.segments] == [
            [min(start, most), min(end, most)] for start, end, _ in want
        ]
    words = [whisper.detokenize([t for t in w[2] if t < WORDS]) for w in want]
    assert found.text == "".join(words).strip()


def _own(tokens: list[int]) -> list[int]:
    """Less the beginning of the next passage, which transformers counts to the last one."""
    times = [token >= TIMED for token in tokens[-2:]]
    return tokens[:-1] if times == [True, True] else tokens


def test_words_are_drawn_at_a_temperature(whisper: LoadedModel):
    def tokens(**options) -> list[tuple[int, ...]]:
        found = transcribe(whisper, sound("short"), rate=RATE, timestamps=True, **options)
        return [segment.tokens for segment in found.segments]

    likeliest, drawn = tokens(), tokens(temperature=5.0, seed=3)
    assert drawn == tokens(temperature=5.0, seed=3)
    assert len({str(tokens(temperature=5.0, seed=seed)) for seed in range(4)}) > 1
    assert drawn != likeliest == tokens(temperature=1e-6, seed=1)
    for segment in drawn:  # rules of times hold
        assert segment[0] >= TIMED
    with pytest.raises(ConfigError, match="temperature"):
        tokens(temperature=-1.0)


def test_a_prompt_needs_its_token(whisper_folder: Path, tmp_path: Path):
    shutil.copytree(whisper_folder, tmp_path, dirs_exist_ok=True)
    file = tmp_path / "tokenizer.json"
    file.write_text(file.read_text().replace("<|startofprev|>", "<|other|>"))
    with ggmodel.load(tmp_path) as model, pytest.raises(Unsupported, match="startofprev"):
        transcribe(model, sound("short"), rate=RATE, prompt="Red")


def test_files_and_arrays_are_written_down_alike(whisper: LoadedModel, tmp_path):
    samples = tones(1.0)
    (tmp_path / "a.wav").write_bytes(pcm(samples, width=4))
    ways = (tmp_path / "a.wav", str(tmp_path / "a.wav"), (samples, RATE))
    first, *others = (transcribe(whisper, way) for way in ways)
    assert first.text and all(other.text == first.text for other in others)
    assert first.seconds == 1.0


def test_the_language_is_recognised_as_by_transformers(whisper: LoadedModel):
    assert transcribe(whisper, sound("short"), rate=RATE).language == goldens()["language"]
    assert transcribe(whisper, sound("short"), rate=RATE, language="haw").language == "haw"


@pytest.mark.parametrize("language", ["haw", "Hawaiian", "hawaiian", "<|haw|>"])
def test_a_language_is_given_by_its_code_or_name(whisper: LoadedModel, language: str):
    want = transcribe(whisper, sound("short"), rate=RATE, language="haw")
    found = transcribe(whisper, sound("short"), rate=RATE, language=language)
    assert (found.language, found.segments) == ("haw", want.segments)


@pytest.mark.parametrize("language", ["german", "<|de|>", "de"])
def test_a_file_may_name_its_language(whisper_folder: Path, tmp_path: Path, language: str):
    """As fine-tuned checkpoints do, in generation_config.json."""
    found = listening(whisper_folder, tmp_path, language=language)
    with ggmodel.load(found) as model:
        assert transcribe(model, sound("short"), rate=RATE).language == "de"


def test_a_model_of_one_language(whisper_folder: Path, tmp_path: Path):
    found = listening(whisper_folder, tmp_path, is_multilingual=False, language="english")
    with ggmodel.load(found) as model:
        for language in (None, "en", "English"):
            said = transcribe(model, sound("short"), rate=RATE, language=language)
            assert said.language is None
        with pytest.raises(ConfigError, match="this model knows one language"):
            transcribe(model, sound("short"), rate=RATE, language="German")


def test_names_of_languages():
    """The names of 100 languages, and some others."""
    codes = list(languages.CODES.values())
    assert len(set(codes)) == 100 and len(codes) == 112
    assert all(re.fullmatch("[a-z]{2,3}", code) for code in codes)
    assert all(re.fullmatch("[a-z]+( creole)?", name) for name in languages.CODES)
    some = {"english": "en", "hindi": "hi", "haitian creole": "ht", "cantonese": "yue"}
    others = {"castilian": "es", "haitian": "ht", "burmese": "my", "mandarin": "zh"}
    for name, code in {**some, **others}.items():
        assert languages.CODES[name] == code


def test_progress_comes_to_the_end(whisper: LoadedModel):
    told: list[tuple[float, float]] = []
    found = transcribe(whisper, sound("long"), rate=RATE, progress=lambda *a: told.append(a))
    done = [seconds for seconds, _ in told]
    assert len(told) > 2 and done == sorted(done) and done[-1] == found.seconds == told[0][1]


def test_a_window_is_told_only_once_it_is_heard(whisper: LoadedModel):
    assert len(transcribe(whisper, sound("long"), rate=RATE).segments) > 3  # longer: with times


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"language": "fr"}, "'fr' is unknown to this model; known: en, de, haw"),
        ({"language": "French"}, "'French' is unknown to this model; known: en, de, haw"),
        ({"language": "elvish"}, "'elvish' is unknown to this model; known: en, de, haw"),
        ({"task": "sing"}, "'sing' is unknown to this model; known: transcribe, translate"),
    ],
)
def test_unknown_languages_and_tasks(whisper: LoadedModel, options, message: str):
    with pytest.raises(ConfigError, match=message):
        transcribe(whisper, tones(1.0), rate=RATE, **options)


@pytest.mark.parametrize(
    ("audio", "message"),
    [
        (np.zeros(0, np.float32), "no samples"),
        (np.full(100, np.nan, np.float32), "sample 0"),
        ("missing.wav", "no file missing.wav"),
    ],
)
def test_bad_sounds(whisper: LoadedModel, audio, message: str):
    with pytest.raises(AudioError, match=message):
        transcribe(whisper, audio, rate=RATE)


def test_a_sound_of_few_samples(whisper: LoadedModel):
    assert transcribe(whisper, np.zeros(3, np.float32), rate=RATE).seconds < 1e-3


def test_models_that_do_not_transcribe():
    with (
        ggmodel.load("examples/assets/stories.gguf") as model,
        pytest.raises(Unsupported, match="the architecture llama does not transcribe"),
    ):
        transcribe(model, tones(1.0), rate=RATE)


def listening(whisper_folder: Path, tmp_path: Path, **generation: object) -> Path:
    """The folder with another generation_config.json."""
    shutil.copytree(whisper_folder, tmp_path, dirs_exist_ok=True)
    path = tmp_path / "generation_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **generation}))
    return tmp_path


def test_a_whisper_without_a_vocabulary(whisper_folder, tmp_path):
    for path in whisper_folder.iterdir():
        if path.name != "tokenizer.json":
            (tmp_path / path.name).write_bytes(path.read_bytes())
    with (
        ggmodel.load(tmp_path) as model,
        pytest.raises(TokenizerError, match="no vocabulary: convert it with"),
    ):
        transcribe(model, tones(1.0), rate=RATE)


def test_an_hour_does_not_fit_a_prompt(whisper: LoadedModel):
    with pytest.raises(AudioError, match=r"the sound has 2.0 s, and this model hears 1 s at once"):
        whisper.generate("", audio=[(tones(2.0), RATE)])


def test_generate_begins_with_the_start_token(whisper: LoadedModel):
    done = whisper.generate("", audio=[(tones(1.0), RATE)], max_tokens=3, temperature=0)
    assert done.usage.prompt_tokens == 1 and len(done.tokens) > 0
