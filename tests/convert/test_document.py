"""docs/convert.md and docs/quantise.md are true: their commands and code are run, in order."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import ggmodel
from ggmodel.convert.tensor_types import RECIPES
from tests.convert.folders import write_golden
from tests.documents import blocks, read

TEXT = read("docs/convert.md") + read("docs/quantise.md")


@pytest.mark.slow
def test_the_commands_run_one_after_the_other(tmp_path: Path):
    write_golden(tmp_path / "my-model", "gemma3", "images")
    blocks_of_the_folder = (b for b in blocks(TEXT, "sh") if not b.startswith("python benchmarks/"))
    lines = [line for block in blocks_of_the_folder for line in block.splitlines()]
    assert len(lines) == 14
    (tmp_path / "text.txt").write_text("ABCDEFGH " * 200)
    for line in lines:
        command = [sys.executable, "-m", *shlex.split(line, comments=True)]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, (line, done.stderr)
        assert done.stdout.strip(), line
    files = {
        "model.gguf",
        "small.gguf",
        "text.gguf",
        "mmproj.gguf",
        "smaller.gguf",
        "smallest.gguf",
        "importance.gguf",
        "tiny.gguf",
    }
    assert {p.name for p in tmp_path.iterdir()} == {"my-model", "text.txt", *files}


def test_the_code_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    write_golden(tmp_path / "my-model", "llama", "plain_gqa")
    monkeypatch.chdir(tmp_path)
    loaded, quantised = blocks(TEXT, "python")
    with contextlib.redirect_stdout(io.StringIO()) as said:
        exec(compile(loaded, "docs/convert.md", "exec"), {})
    assert said.getvalue().strip()
    ggmodel.convert.convert("my-model", "model.gguf")
    exec(compile(quantised, "docs/quantise.md", "exec"), {})
    assert Path("smaller.gguf").stat().st_size < Path("model.gguf").stat().st_size


def test_every_type_is_in_the_table():
    assert set(re.findall(r"`(\w+)`", "".join(re.findall(r"^\| `.*?\|", TEXT, re.M)))) >= {
        r.name for r in RECIPES.values()
    }
