"""`ggmodel transcribe`; what is written down is tested in tests/transcript."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.audio.sounds import pcm
from tests.transcript import voxtrals
from tests.transcript.whispers import sound


@pytest.fixture
def speech(tmp_path: Path) -> Path:
    (tmp_path / "speech.wav").write_bytes(pcm(sound("long"), width=4))
    return tmp_path / "speech.wav"


def test_formats_agree(program, whisper_file: Path, speech: Path):
    ran = program("transcribe", whisper_file, speech, "--timestamps", "--json")
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout)
    assert found["seconds"] == pytest.approx(3.3) and len(found["segments"]) > 3
    srt = program("transcribe", whisper_file, speech, "--srt", "--temperature", "0").stdout
    assert srt.count(" --> ") == len(found["segments"]) and srt.startswith("1\n00:00:00,040 --> ")
    timed = program("transcribe", whisper_file, speech, "--timestamps").stdout
    assert len(timed.splitlines()) == len(found["segments"]) and timed.startswith("[00:00:00,040")


def test_errors_name_what_is_wrong(program, whisper_file: Path, model_path: Path, speech: Path):
    for args, said in [
        ((model_path, speech), "the architecture llama does not transcribe"),
        ((whisper_file, "missing.wav"), "no file missing.wav"),
        ((whisper_file, speech, "--language", "xx"), "'xx' is unknown to this model"),
    ]:
        ran = program("transcribe", *args)
        assert ran.returncode == 1 and said in ran.stderr and ran.stdout == ""


@pytest.mark.slow
def test_a_model_that_is_asked(program, voxtral_folder: Path, tmp_path: Path):
    (tmp_path / "a.wav").write_bytes(pcm(voxtrals.sound("short"), width=4))
    asked = ("transcribe", voxtral_folder, tmp_path / "a.wav", "--context-length", "64")
    ran = program(*asked, "--json", "--language", "en")
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout)
    answer = voxtrals.goldens()["short, in English"]["answer"]
    assert found["segments"][0]["tokens"] == answer and found["language"] == "en"
    assert program(*asked).stdout == program(*asked, "--temperature", "0").stdout != "\n"
    for option in ("--timestamps", "--srt"):
        ran = program(*asked, option)
        assert ran.returncode == 1 and "gives no timestamps" in ran.stderr and ran.stdout == ""
