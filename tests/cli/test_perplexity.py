"""`ggmodel perplexity`; the figures are tested in tests/workbench."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import ggmodel
from ggmodel.workbench.text_statistics import perplexity

TEXT = "abcdefghijklmnopqrstuvwxyz. The 12345 ABC " * 4


@pytest.fixture
def text(tmp_path: Path) -> Path:
    (tmp_path / "text.txt").write_text(TEXT)
    return tmp_path / "text.txt"


@pytest.fixture(scope="module")
def line(model_path: Path) -> str:
    with ggmodel.load(model_path, context_length=32) as model:
        *_, result = perplexity(model, TEXT)
    value, error = f"{result.value:.4f}", f"{result.error:.4f}"
    return f"perplexity {value} ± {error} over {result.tokens} tokens ({result.chunks} chunks)\n"


def test_a_file(program, model_path: Path, text: Path, line: str):
    ran = program("perplexity", model_path, text, "--context-length", 32)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, line, "")


def test_standard_input(program, model_path: Path, line: str):
    ran = program("perplexity", model_path, "-", "--context-length", 32, stdin=TEXT)
    assert ran.stdout == line


def test_json(program, model_path: Path, text: Path, line: str):
    ran = program("perplexity", model_path, text, "--context-length", 32, "--json")
    found = json.loads(ran.stdout)
    assert line.startswith(f"perplexity {found['value']:.4f} ± {found['error']:.4f} ")
    assert found["chunks"] == found["of_chunks"] and found["whole"] is False


def test_a_short_text_is_said_to_be_one(program, model_path: Path, text: Path):
    ran = program("perplexity", model_path, text)
    said, found = ran.stdout.splitlines()
    n = len(TEXT) + 1  # characters, and a token to begin with
    assert said == (
        f"the text has {n} tokens, less than one context of 512: all scored but the first"
    )
    assert found.endswith(f" over {n - 1} tokens (1 chunk)")
    ran = program("perplexity", model_path, "-", "--context-length", 16, stdin="abc" * 7)
    assert ran.stdout.startswith(
        "the text has 22 tokens, less than two contexts of 16: two chunks of 11\nperplexity "
    )


@pytest.mark.parametrize(
    ("text", "stdin", "message"),
    [
        ("missing.txt", b"", "error: missing.txt: No such file or directory; give a text file"),
        ("-", b"\xff", "error: standard input is not UTF-8 (byte 0)"),
        ("-", b"", "error: the text has 1 tokens; give at least two"),
    ],
)
def test_what_is_no_text(program, model_path: Path, text: str, stdin: bytes, message: str):
    ran = program("perplexity", model_path, text, stdin=stdin)
    assert (ran.returncode, ran.stdout) == (1, "")
    assert ran.stderr.startswith(message)
