"""`ggmodel bench`; what it measures is tested in tests/workbench."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import ggmodel
from ggmodel import native

from .test_bad_input import refused

EMBEDDER = Path(__file__).parents[1] / "golden" / "gemma3" / "converted" / "embedding.gguf"


def test_a_table(program, model_path: Path):
    ran = program("bench", model_path, "-p", "8", "-n", "4", "-r", "2", "--threads", "1")
    assert (ran.returncode, ran.stderr) == (0, "")
    header, prompt, tokens, model, load, machine = ran.stdout.splitlines()
    assert header.split() == ["test", "tokens/s", "outside", "ggml"]
    assert prompt.split()[0] == "pp8" and float(prompt.split()[1]) > 0
    assert tokens.split()[0] == "tg4" and float(tokens.split()[1]) > 0
    assert tokens.rstrip().endswith(" µs a token")
    assert model.startswith(f"{model_path}: llama, F32, ")
    assert load.startswith("loaded in ") and load.endswith("iB resident")
    assert machine.endswith(f"1 thread, ggml {native.version}, ggmodel {ggmodel.__version__}")


def test_json(program, model_path: Path):
    ran = program(
        "bench", model_path, "-p", "8,0", "-p", "5", "-n", "4", "-d", "0,6", "--parallel", "1,2",
        "-r", "3", "--json",
    )  # fmt: skip
    rows = json.loads(ran.stdout)
    assert [row["test"] for row in rows] == [
        "pp8", "pp5", "tg4", "tg4 x2", "pp8 @ d6", "pp5 @ d6", "tg4 @ d6", "tg4 x2 @ d6",
    ]  # fmt: skip
    for row in rows:
        assert row["tokens_per_second"] == pytest.approx(sum(row["samples"]) / 3)
        assert len(row["samples"]) == 3 and row["stddev"] >= 0
        assert (row["microseconds_outside_ggml"] is None) == (row["n_gen"] == 0)
        assert row["ggml"] == native.version and row["model"] == str(model_path)
        assert (
            row["peak_bytes"] > 1 << 20 and row["load_seconds"] > row["first_token_seconds"] / 1e3
        )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("-p", "0", "-n", "0"), "nothing to measure"),
        (("-p", "-5"), "pp-5: prompts, tokens and depths are 0 or more"),
        (("-n", "many"), "-n many: give numbers"),
        (("-d", "1,,2"), "-d 1,,2: give numbers"),
        (("--parallel", "0"), "sequences at least 1"),
        (("-r", "0"), "-r 0: there must be at least 1"),
        (("-d", "1000000000000"), "does not fit in memory"),
    ],
)
def test_what_cannot_be_measured(program, model_path: Path, options: tuple, message: str):
    refused(program("bench", model_path, *options), message)


def test_a_model_that_only_embeds(program):
    refused(program("bench", EMBEDDER, "-p", "8"), "generates nothing, it only embeds")
