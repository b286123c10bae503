"""Transcripts of a model that is asked by a prompt, beside mistral_common and transformers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ggmodel
from ggmodel.audio import Audio
from ggmodel.convert import convert, from_hf
from ggmodel.errors import AudioError, ConfigError, PromptError, TokenizerError, Unsupported
from ggmodel.model import Input, find
from ggmodel.runner import LoadedModel
from ggmodel.transcript import transcribe
from ggmodel.workbench.golden import source_of
from tests.audio.sounds import RATE, pcm, tones
from tests.golden.files import load_golden
from tests.transcript.voxtrals import (
    ASKED,
    AUDIO,
    CONTEXT,
    END,
    ROWS,
    WINDOW,
    goldens,
    sound,
    write,
)


@pytest.fixture(scope="module")
def voxtral(voxtral_folder: Path) -> Iterator[LoadedModel]:
    options: dict[str, Any] = {"kv_type": "f32", "flash_attention": "off"}
    with ggmodel.load(voxtral_folder, context_length=CONTEXT, **options) as model:
        yield model


@pytest.fixture
def prompts(voxtral: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """The tokens of the prompts that the model is asked with."""
    seen, stream = [], voxtral.stream

    def watched(prompt: list[Any], **options: Any) -> Any:
        seen.append([one.token if isinstance(one, Input) else one for one in prompt])
        return stream(prompt, **options)

    monkeypatch.setattr(voxtral, "stream", watched)
    return seen


@pytest.mark.parametrize("name", ASKED)
def test_prompts_are_mistral_commons_and_answers_transformers(
    voxtral: LoadedModel, prompts: list[list[int]], name: str
):
    language = ASKED[name][1]
    found = transcribe(voxtral, sound(name), rate=RATE, language=language)
    want = goldens()[name]
    assert prompts == [want["prompt"]]
    (segment,) = found.segments
    assert list(segment.tokens) == [token for token in want["answer"] if token != END]
    said = voxtral.prompts.vocabulary().decode(segment.tokens, skip_special=True).strip()
    assert found.text == segment.text == said != ""
    assert (found.language, found.seconds) == (language, pytest.approx(ASKED[name][0], abs=1e-4))
    assert (segment.start, segment.end) == (0.0, found.seconds)


@pytest.mark.parametrize("pair", [False, True])
def test_converted_files_transcribe_alike(voxtral_folder: Path, tmp_path: Path, pair: bool):
    """As one file, and as llama.cpp has it: the text's file, a llama, and the encoder's."""
    mmproj = tmp_path / "mmproj.gguf" if pair else None
    convert(voxtral_folder, tmp_path / "a.gguf", mmproj=mmproj)
    with ggmodel.load(tmp_path / "a.gguf", mmproj=mmproj, context_length=CONTEXT) as model:
        found = transcribe(model, sound("short"), rate=RATE)
    assert [*found.segments[0].tokens, END] == goldens()["short"]["answer"]


def test_files_and_other_rates_are_heard(voxtral: LoadedModel, prompts: list, tmp_path: Path):
    (tmp_path / "a.wav").write_bytes(pcm(sound("short"), width=4))
    alike = transcribe(voxtral, tmp_path / "a.wav"), transcribe(voxtral, (sound("short"), RATE))
    assert alike[0].text == alike[1].text
    transcribe(voxtral, np.zeros(8 * WINDOW // 2, np.float32), rate=RATE // 2, language=" FR ")
    assert prompts[-1].count(AUDIO) == 8 * ROWS
    assert prompts[-1][-6:-1] == voxtral.tokenize("lang:fr", add_special=False)[-5:]


def test_progress_comes_to_the_end_and_may_stop_it(voxtral: LoadedModel):
    seen: list[tuple[float, float]] = []
    found = transcribe(voxtral, sound("short"), rate=RATE, progress=lambda *done: seen.append(done))
    seconds = found.seconds
    assert seen == [(0.0, seconds)] * len(found.segments[0].tokens) + [(seconds, seconds)]

    def leave(*_: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        transcribe(voxtral, sound("short"), rate=RATE, progress=leave)
    assert transcribe(voxtral, sound("short"), rate=RATE).text == found.text


def test_words_are_drawn_at_a_temperature(voxtral: LoadedModel):
    def text(**options: Any) -> str:
        return transcribe(voxtral, sound("short"), rate=RATE, **options).text

    assert text(temperature=3.0, seed=1) == text(temperature=3.0, seed=1)
    assert len({text(temperature=3.0, seed=seed) for seed in range(4)}) > 1
    with pytest.raises(ConfigError, match="temperature"):
        text(temperature=-1.0)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"timestamps": True}, Unsupported, "gives no timestamps: ask for text or JSON"),
        ({"prompt": "Names"}, Unsupported, "takes no prompt"),
        ({"task": "translate"}, ConfigError, "transcribes only"),
        ({"task": "sing"}, ConfigError, "transcribes only"),
        ({"language": "English"}, ConfigError, r"'English' is unknown .*two letters.*such as en"),
        ({"language": "<|en|>"}, ConfigError, "unknown to this model"),
        ({"language": ""}, ConfigError, "'' is unknown to this model"),
        ({"language": "e["}, ConfigError, "unknown to this model"),
    ],
)
def test_what_it_cannot_do_is_refused_before_anything_is_computed(
    voxtral: LoadedModel, prompts: list, options: dict[str, Any], error: type, message: str
):
    with pytest.raises(error, match=message):
        transcribe(voxtral, sound("short"), rate=RATE, **options)
    assert prompts == []


def test_an_empty_prompt_is_none(voxtral: LoadedModel):
    found = transcribe(voxtral, sound("short"), rate=RATE, prompt=" ", task="transcribe")
    assert found.text


@pytest.mark.parametrize(
    ("windows", "error", "message"),
    [
        (CONTEXT // ROWS, PromptError, "fills the context of 64 tokens"),
        (CONTEXT // ROWS + 1, AudioError, "and the context is 64 tokens long"),
    ],
)
def test_sounds_that_leave_no_room(voxtral: LoadedModel, windows: int, error: type, message: str):
    with pytest.raises(error, match=message):
        transcribe(voxtral, Audio(np.ones(windows * WINDOW, np.float32), RATE))


@pytest.mark.parametrize(
    ("samples", "message"), [(np.zeros(0), "no samples"), (np.array([0, np.nan]), "is nan")]
)
def test_bad_sounds(voxtral: LoadedModel, samples: np.ndarray, message: str):
    with pytest.raises(AudioError, match=message):
        transcribe(voxtral, samples, rate=RATE)


def test_a_vocabulary_without_its_token(tmp_path: Path):
    write(tmp_path)
    file = tmp_path / "tekken.json"
    content = json.loads(file.read_text())
    content["special_tokens"][34]["token_str"] = "<other>"
    file.write_text(json.dumps(content))
    with (
        ggmodel.load(tmp_path, context_length=CONTEXT) as model,
        pytest.raises(TokenizerError, match=r"no special token \[TRANSCRIBE\]"),
    ):
        transcribe(model, sound("short"), rate=RATE)


def test_a_file_without_a_vocabulary(tmp_path: Path):
    write(tmp_path)
    (tmp_path / "tekken.json").unlink()
    with (
        ggmodel.load(tmp_path, context_length=CONTEXT) as model,
        pytest.raises(TokenizerError, match="vocabulary"),
    ):
        transcribe(model, tones(0.3), rate=RATE)


def test_models_without_such_a_prompt():
    hears = source_of(load_golden("qwen2audio", "published"))
    golden = load_golden("voxtral", "published")
    text = {n: w for n, w in golden.weights().items() if n.startswith("language_model.")}
    deaf = from_hf(find("voxtral"), golden.config, text)
    for source, name, then in ((hears, "qwen2audio", ", or ask"), (deaf, "voxtral", "")):
        said = f"architecture {name} does not transcribe; give a Whisper or a Voxtral{then}"
        with (
            ggmodel.load(source, context_length=CONTEXT) as model,
            pytest.raises(Unsupported, match=said),
        ):
            transcribe(model, tones(0.3), rate=RATE)
