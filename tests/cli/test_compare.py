"""`ggmodel compare`; the figures are tested in tests/workbench."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import ggmodel
from ggmodel.convert.quantize import quantize
from ggmodel.workbench.compare import compare
from tests.workbench.models import STORIES
from tests.workbench.test_compare import TEXT

HOW = ("--context-length", 32, "--threads", 1, "--gpu-layers", 0)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("compare") / "q4.gguf"
    with ggmodel.open_gguf(STORIES) as source:
        quantize(source, path, "q4_K_M", allow_requantize=True)
    return path


@pytest.fixture
def text(tmp_path: Path) -> Path:
    (tmp_path / "text.txt").write_text(TEXT)
    return tmp_path / "text.txt"


def test_a_table(program: Any, file: Path, text: Path):
    ran = program("compare", STORIES, file, text, *HOW)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "Q8_0" in ran.stdout and "Q4_K_M" in ran.stdout
    how: Any = {"context_length": 32, "threads": 1, "gpu_layers": 0}
    with ggmodel.load(STORIES, **how) as a, ggmodel.load(file, **how) as b:
        *_, result = compare(a, b, TEXT)
    kl = result.as_dict()["kl_divergence"]
    assert f"mean {kl['mean']:.6f} ± {kl['error']:.6f}\n" in ran.stdout
    assert f"median {kl['median']:.6f}, 90 % {kl['90%']:.6f}, " in ran.stdout
    assert "17–" in ran.stdout and "module" not in ran.stdout


def test_json_by_module(program: Any, file: Path, text: Path):
    ran = program("compare", STORIES, file, text, *HOW, "--modules", "layers.?", "--json")
    found = json.loads(ran.stdout)
    assert [m["module"] for m in found["by_module"]] == [f"layers.{i}" for i in range(5)]
    assert found["original"]["type"] == "Q8_0" and found["model"]["bits_per_weight"] < 6.5
    assert found["chunks"] == found["of_chunks"] == 2  # of half the text's length


def test_a_picture(program: Any, file: Path, text: Path, tmp_path: Path):
    drawn = tmp_path / "loss.svg"
    arguments = ("--modules", "layers.*.attn", "--heat", drawn)
    ran = program("compare", STORIES, file, text, *HOW, *arguments)
    assert ran.stdout.endswith(f"drawn: {drawn}\n")
    assert "layers.0.attn  Q8_0 → Q5_0" in ran.stdout
    assert drawn.read_text().startswith("<svg") and "layers.4, attn: " in drawn.read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--modules", "nothing"), "no module with weights is called 'nothing'"),
        (("--heat", "no/folder/a.svg"), "cannot write"),
    ],
)
def test_wrong_use(program: Any, file: Path, text: Path, arguments: Any, message: str):
    ran = program("compare", STORIES, file, text, *HOW, *arguments)
    assert (ran.returncode, ran.stdout) == (1, "")
    assert message in ran.stderr


def test_a_model_of_other_tokens(program: Any, model_path: Path, text: Path):
    ran = program("compare", STORIES, model_path, text, *HOW)
    assert ran.returncode == 1 and "have other tokens" in ran.stderr
