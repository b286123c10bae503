"""Folders that would take all memory or time: limits hold before anything is read or applied."""

from __future__ import annotations

import json
import os
import resource
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from ggmodel import limits
from ggmodel.convert.vocabulary import vocabulary
from ggmodel.convert.vocabulary.files import read_sentencepiece
from ggmodel.convert.vocabulary.tokenizer_json import Steps, _answered
from ggmodel.errors import FormatError, TokenizerError

DATA = Path(__file__).parent / "data" / "llama3"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(DATA, tmp_path / "hf"))


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits that an attack reaches soon."""
    monkeypatch.setattr(limits, "tokenizer_bytes", 400 << 20)
    monkeypatch.setattr(limits, "tokenizer_seconds", 1.0)


def without_template(folder: Path) -> None:
    path = folder / "tokenizer_config.json"
    content = json.loads(path.read_text("utf-8"))
    del content["chat_template"]
    path.write_text(json.dumps(content), "utf-8")


def made(folder: Path, **sections: Any) -> dict[str, Any]:
    path = folder / "tokenizer.json"
    path.write_text(json.dumps(json.loads(path.read_text("utf-8")) | sections), "utf-8")
    return vocabulary(folder, json.loads((folder / "config.json").read_text("utf-8")))


def sequence(kind: str, steps: list[dict[str, Any]]) -> dict[str, Any]:
    return {"type": "Sequence", kind: steps}


def replace(text: str, content: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": {"String": text}, "content": content}


def split(expression: str) -> dict[str, Any]:
    pattern = {"Regex": expression}
    return {"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": False}


def deep(kind: str, depth: int) -> dict[str, Any]:
    step: dict[str, Any] = {"type": "Lowercase"}
    for _ in range(depth):
        step = sequence(kind, [step])
    return step


BOMBS: dict[str, dict[str, Any]] = {
    "replacements": {"normalizer": sequence("normalizers", [replace("a", "a" * 1000)] * 8)},
    "prepended": {"normalizer": sequence("normalizers", [replace("a", "aa")] * 40)},
    "an expression's replacements": {
        "normalizer": sequence(
            "normalizers",
            [{"type": "Replace", "pattern": {"Regex": "a"}, "content": "a" * 1000}] * 8,
        )
    },
    "a charsmap": {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "/////w=="}},
    "a decoder": {"decoder": sequence("decoders", [replace("e", "e" * 1000)] * 8)},
    "backtracking": {"pre_tokenizer": split(r"(\w+\s*)+#")},
    "backtracking within limits": {
        "pre_tokenizer": split(r"[^#]{0,300}[^#]{0,300}(?=[#\d][#b][#\d][#c]\d)")
    },
    "an expression that is large": {"pre_tokenizer": split(r"(((a{999}){999}){999}){999}")},
}


@pytest.mark.parametrize("name", BOMBS)
def test_steps_that_cost_too_much_are_refused(folder: Path, name: str):
    started, before = time.monotonic(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(TokenizerError, match=r"tokenizer\.json"):
        made(folder, **BOMBS[name])
    assert time.monotonic() - started < 30
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 << 10  # kB


def test_the_limits_of_steps_are_named(folder: Path, monkeypatch: pytest.MonkeyPatch):
    with monkeypatch.context() as patient:  # the bytes come first on a machine under load, too
        patient.setattr(limits, "tokenizer_seconds", 60.0)
        with pytest.raises(TokenizerError, match=r"more than 419,430,400 bytes.*tokenizer_bytes"):
            made(folder, **BOMBS["replacements"])
    with pytest.raises(TokenizerError, match=r"more than 1 s \(the limit tokenizer_seconds\)"):
        made(folder, normalizer=None, **BOMBS["backtracking within limits"])


@pytest.mark.parametrize("depth", [45, 400])
@pytest.mark.parametrize("section", ["normalizer", "pre_tokenizer", "decoder"])
def test_steps_within_steps(folder: Path, section: str, depth: int):
    with pytest.raises((FormatError, TokenizerError), match=r"tokenizer\.json"):
        made(folder, **{section: deep(f"{section}s", depth)})


def test_steps_are_applied_elsewhere(folder: Path, monkeypatch: pytest.MonkeyPatch):
    """The program may end at any time, without a word."""
    monkeypatch.setattr("ggmodel.convert.vocabulary.tokenizer_json._PROGRAM", Path(os.devnull))
    with pytest.raises(TokenizerError, match="got no answer"):
        made(folder, decoder={"type": "Fuse"})


@pytest.mark.parametrize(
    ("program", "message"),
    [
        (None, "sys.executable is None"),
        ("", "sys.executable is ''"),
        ("/nowhere/python", "cannot start: .*No such file"),
        ("/bin/true", r"no answer from /bin/true \(sys.executable\)"),
        ("a\0b", "cannot start"),
    ],
)
def test_a_host_without_python(
    folder: Path, monkeypatch: pytest.MonkeyPatch, program: str | None, message: str
):
    monkeypatch.setattr("sys.executable", program)
    with pytest.raises(TokenizerError, match=f"{message}.*; convert the model with the command"):
        made(folder, decoder={"type": "Fuse"})


def test_a_frozen_host_does_not_start_itself(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("sys.frozen", True, raising=False)
    with pytest.raises(TokenizerError, match="need a Python process of their own"):
        made(folder, decoder={"type": "Fuse"})


def test_odd_paths_of_imports(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("sys.path", [*sys.path, "a\0b"])
    with pytest.raises(TokenizerError, match="cannot start"):
        made(folder, decoder={"type": "Fuse"})


def test_the_current_folder_may_be_gone(folder: Path, tmp_path: Path, monkeypatch: Any):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    monkeypatch.setattr("sys.path", ["", *sys.path, tmp_path, None])
    before = _answered.cache_info().misses
    steps = Steps("f", {"decoder": {"type": "Fuse"}}, {"normalize": ["here"]})
    assert steps.result("normalize", "here") == "here"
    assert _answered.cache_info().misses == before + 1


SMALL = "tokenizer_config.json chat_template.jinja added_tokens.json generation_config.json".split()
LARGE = ["tokenizer.json", "vocab.txt", "tokenizer.model"]


@pytest.mark.parametrize("name", [*SMALL, *LARGE])
def test_files_are_measured_before_they_are_read(folder: Path, name: str):
    limit = "text_file_bytes" if name in SMALL else "tokenizer_file_bytes"
    if name in ("vocab.txt", "tokenizer.model", "added_tokens.json"):
        (folder / "tokenizer.json").unlink()
    if name == "added_tokens.json":
        (folder / "tokenizer.model").write_bytes(b"\x0a\x03\x0a\x01a\x12\x02\x18\x02")
    without_template(folder)
    (folder / name).touch()
    os.truncate(folder / name, 3 << 30)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(FormatError, match=rf"{name}.*{limit}"):
        vocabulary(folder, {"vocab_size": 344})
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 20 << 10


@pytest.mark.parametrize("name", ["tokenizer.json", "chat_template.jinja", "tokenizer_config.json"])
def test_pipes_are_not_waited_for(folder: Path, name: str):
    without_template(folder)
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name)
    with pytest.raises(FormatError, match="is not a regular file"):
        vocabulary(folder, {"vocab_size": 344})


def test_vocabularies_have_so_many_tokens(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(limits, "vocabulary_tokens", 400)
    many = {f"<{i}>": i for i in range(401)}
    with pytest.raises(TokenizerError, match=r"model\.vocab has 401 items, but the limit is 400"):
        made(folder, model={"type": "BPE", "vocab": many, "merges": []})
    with pytest.raises(TokenizerError, match="vocabulary_tokens"):
        made(folder, added_tokens=[{"id": i, "content": str(i)} for i in range(401)])
    (folder / "tokenizer.json").unlink()
    (folder / "vocab.txt").write_text("a\n" * 401)
    with pytest.raises(TokenizerError, match="vocabulary_tokens"):
        vocabulary(folder, {})
    with pytest.raises(TokenizerError, match="vocabulary_tokens"):
        read_sentencepiece(b"\x0a\x00" * 401, "tokenizer.model")


def test_vocabularies_have_so_many_merges(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(limits, "vocabulary_merges", 10)
    with pytest.raises(TokenizerError, match=r"merges has .* the limit is 10; .*vocabulary_merges"):
        made(folder)


def test_many_special_tokens_take_no_square_of_time(folder: Path):
    path = folder / "tokenizer_config.json"
    names = [f"<special {i}>" for i in range(100_000)]
    content = json.loads(path.read_text("utf-8")) | {"additional_special_tokens": names}
    path.write_text(json.dumps(content), "utf-8")
    started = time.monotonic()
    made(folder)
    assert time.monotonic() - started < 20
