"""`ggmodel diff` as users start it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import ggmodel
from ggmodel.cli import app
from ggmodel.workbench import golden
from tests.golden import files
from tests.workbench.saved import CASES, HERE, saved, source_of

LLAMA = str(HERE / "llama.npz")
FAULT = ("scale=h.head_dim**-0.5", "scale=1.0")


@pytest.fixture(scope="module")
def gguf(write_gguf: Any, tmp_path_factory: Any) -> Path:
    return write_gguf(tmp_path_factory.mktemp("diff") / "tiny.gguf", source_of("llama"))


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: Any) -> Path:
    """A folder with a llama that lacks the scale of its scores."""
    text = (Path(__file__).parents[1] / "models" / "outside" / "llama.py").read_text()
    assert text.count(FAULT[0]) == 1
    folder = tmp_path_factory.mktemp("models")
    (folder / "llama.py").write_text(text.replace(*FAULT))
    return folder


@pytest.mark.slow
def test_a_model_that_agrees(program: Any, gguf: Path):
    done = program("diff", gguf, "--reference", LLAMA)
    assert done.returncode == 0, done.stderr
    assert "agrees with its reference (torch " in done.stdout
    assert "12 equal" in done.stdout
    done = program("diff", gguf, "--reference", LLAMA, "--all", "--tokens", "1,9,30,17,40")
    assert done.returncode == 0, done.stderr
    assert "model.layers.1.mlp.down_proj" in done.stdout


def test_a_model_that_diverges(program: Any, gguf: Path, faulty: Path, tmp_path: Path):
    page = tmp_path / "page.html"
    done = program("diff", gguf, "--reference", LLAMA, "--models", faulty, "--html", page)
    assert done.returncode == 1
    assert "→ layers[0].attn " in done.stdout
    assert "layers[0].attn (Attention) is the first module that diverges" in done.stdout
    assert "    ggmodel " in done.stdout and "    reference " in done.stdout
    text = page.read_text()
    assert text.startswith("<!doctype html>")
    assert "http" not in text.replace("http-equiv", "")
    assert "<script" not in text


def test_json(program: Any, gguf: Path, faulty: Path):
    done = program("diff", gguf, "--reference", LLAMA, "--models", faulty, "--json")
    assert done.returncode == 1
    found = json.loads(done.stdout)
    assert (found["ok"], found["first"]) == (False, "layers[0].attn")
    rows = {row["path"]: row for row in found["rows"]}
    assert rows["layers[0].attn"]["verdict"] == "diverges"
    assert rows["layers[0].attn"]["input"]["nmse"] < 1e-12
    assert rows["layers[0].attn.q"]["result"]["nmse"] < 1e-12
    assert found["tokens"] == CASES["llama"].ids


def checkpoint(folder: Path, name: str) -> Path:
    weight = golden.Cases(files.HERE / CASES[name].arch).weight
    shapes = saved(name).tensors
    weights = {key: weight(key, tuple(shape)) for key, shape in shapes.items()}
    files.checkpoint(folder, CASES[name].config, weights)
    return folder


def test_errors_say_what_to_do(gguf: Path, tmp_path: Path):
    llama, gemma3 = (checkpoint(tmp_path / name, name) for name in ("llama", "gemma3"))
    reference = ("--reference", LLAMA)
    cases = {
        ("--reference", str(HERE / "gemma3.npz")): "the reference is 'Gemma3ForConditional",
        (*reference, "--tokens", "1,2"): "activations of another prompt",
        (*reference, "--tokens", "1,x"): "give token ids, such as 1,2,3",
        (*reference, "--prompt", "hello"): "holds no vocabulary",
        (*reference, "--save-reference", "a.npz"): "not both",
        ("--reference", str(gguf)): "holds no readable activations",
        (): "give HF_DIR, or --reference",
        (str(tmp_path), "--tokens", "1"): "config.json",
        (str(gemma3), "--tokens", "1"): "is 'Gemma3ForConditionalGeneration'",
        (str(llama), "--tokens", "1", "--prompt", "x"): "not both",
        (str(llama), "--tokens", "1,99"): "token id 99 is not in the vocabulary",
        (str(llama), "--image", "a.png"): "takes no images",
        (*reference, "--html", "/nowhere/page.html"): "cannot write /nowhere/page.html",
        (*reference, str(llama)): "give --reference or HF_DIR",
        (*reference, "--image", "a.png"): "give --reference or --image",
    }
    for arguments, message in cases.items():
        done = CliRunner().invoke(app, ["diff", str(gguf), *arguments])
        assert done.exit_code == 1, arguments
        assert done.stderr.startswith("error: ") and message in done.stderr, done.stderr


def test_without_torch(program: Any, gguf: Path, tmp_path: Path):
    (tmp_path / "torch.py").write_text("raise ImportError('not here')")
    folder = checkpoint(tmp_path / "hf", "llama")
    path = f"{tmp_path}:{Path(ggmodel.__file__).parents[1]}"
    done = program("diff", gguf, folder, "--tokens", "1,9", env={"PYTHONPATH": path})
    assert done.returncode == 69
    assert "torch cannot be imported (not here): pip install torch transformers" in done.stderr
