"""README.md and the configs that the gguf package reads by itself: bounds before it does."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
import yaml

from ggmodel import limits
from ggmodel.convert.metadata import describe
from ggmodel.errors import FormatError


def described(folder: Path) -> dict[str, object]:
    return describe(folder, "model", {"general.architecture": "llama"}, [], None)


def card(folder: Path, header: str) -> Path:
    (folder / "README.md").write_text(f"---\n{header}\n---\n# A model\n*a *b *c *d *e *f\n")
    return folder


def test_a_card_is_read(tmp_path: Path):
    found = described(card(tmp_path, "license: mit\ntags: &t\n- one\nlanguage: *t"))
    assert found["general.license"] == "mit"
    assert found["general.tags"] == found["general.languages"] == ["one"]


def test_aliases_do_not_multiply(tmp_path: Path):
    lines = ["a0: &a0 {k: v}"]
    for i in range(9):
        lines.append(f"a{i + 1}: &a{i + 1}\n  <<: [{', '.join([f'*a{i}'] * 9)}]")
    started = time.monotonic()
    with pytest.raises(FormatError, match=r"README\.md has more than 4 aliases"):
        described(card(tmp_path, "\n".join(lines)))
    assert time.monotonic() - started < 10


def test_stars_of_markdown_are_no_aliases(tmp_path: Path):
    terms = "You & *all* of *us* accept *the* terms of *use*, *or* &c., **not** *others*."
    found = described(card(tmp_path, f"license: mit\nextra_gated_prompt: >-\n  {terms}"))
    assert found["general.license"] == "mit"


@pytest.mark.parametrize("alias", ["?*a ,", "*a,", "[*a],", "{k:*a },", "\u2028*a,"])
def test_aliases_are_found_wherever_yaml_has_them(tmp_path: Path, alias: str):
    header = f"first: &a x\nsecond: [{alias * 5}]"
    assert "first" in yaml.safe_load(header)
    with pytest.raises(FormatError, match=r"more than 4 aliases"):
        described(card(tmp_path, header))


def test_a_header_has_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(limits, "model_card_bytes", 1000)
    described(card(tmp_path, "a: b\n" * 100))
    with pytest.raises(FormatError, match=r"README\.md has a header of .*model_card_bytes"):
        described(card(tmp_path, "a: b\n" * 300))


@pytest.mark.parametrize("name", ["README.md", "config.json", "generation_config.json"])
def test_files_are_measured_before_they_are_read(tmp_path: Path, name: str):
    (tmp_path / name).touch()
    os.truncate(tmp_path / name, 3 << 30)
    with pytest.raises(FormatError, match=rf"{name} has 3,221,225,472 bytes"):
        described(tmp_path)
    (tmp_path / name).unlink()
    os.mkfifo(tmp_path / name)
    with pytest.raises(FormatError, match=rf"{name} is not a regular file"):
        described(tmp_path)


@pytest.mark.parametrize("header", ["[" * 50_000, "a: " + "{b: " * 5000, "a: " + "1" * 9999])
def test_odd_headers(tmp_path: Path, header: str):
    with pytest.raises(FormatError, match=r"README\.md"):
        described(card(tmp_path, header))
