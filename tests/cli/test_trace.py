"""`ggmodel trace` as users start it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
from typer.testing import CliRunner

from ggmodel.cli import app
from ggmodel.gguf_file import MemorySource
from tests.documents import ROOT


def test_a_prompt(program: Any, model_path: Path):
    done = program("trace", model_path, "--prompt", "this is it")
    assert done.returncode == 0, done.stderr
    assert "blk.1.ffn.gated_silu" in done.stdout
    assert "all finite" in done.stdout


def test_a_filter_and_a_file(program: Any, model_path: Path, tmp_path: Path):
    file = tmp_path / "values.npz"
    done = program(
        "trace", model_path, "--tokens", "1,2,3", "--filter", "blk.0.attn.?", "--save", file
    )
    assert done.returncode == 0, done.stderr
    assert "3 tensors of 3 tokens, all finite" in done.stdout
    with np.load(file, allow_pickle=False) as arrays:
        assert {name: arrays[name].shape for name in arrays} == {
            "blk.0.attn.q": (3, 64),
            "blk.0.attn.k": (3, 32),
            "blk.0.attn.v": (3, 32),
        }
    other = tmp_path / "nothing.npz"
    done = program("trace", model_path, "--filter", "nothing", "--save", other)
    assert (done.returncode, done.stdout) == (1, "")
    assert "no tensor's name matches 'nothing'" in done.stderr
    assert not other.exists()


def test_a_reader_that_goes_away(model_path: Path, environment: dict[str, str]):
    command = [sys.executable, "-m", "ggmodel", "trace", str(model_path), "--tokens", "1,2"]
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        command, env=environment, stdout=write, stderr=subprocess.PIPE, timeout=60
    )
    os.close(write)
    assert (done.returncode, done.stderr) == (141, b"")  # 1 would mean: something is not finite


def test_nan(program: Any, file: Any, source: MemorySource):
    name = "blk.1.attn_output.weight"
    info = source.tensors[name]
    values = np.frombuffer(source.data(name), np.float32).reshape(info.shape[::-1]).copy()
    values[0, 5] = np.nan
    path = file(tensors={name: values})
    done = program("trace", path, "--prompt", "this")
    assert done.returncode == 1
    assert "→ blk.1.attn.out" in done.stdout
    assert "blk.1.attn.out is where the first NaN comes from: the result of mulmat" in done.stdout
    assert "decoder.py:" in done.stdout and name in done.stdout
    done = program("trace", path, "--prompt", "this", "--json")
    assert done.returncode == 1
    found = json.loads(done.stdout)
    assert (found["ok"], found["first"]["name"]) == (False, "blk.1.attn.out")
    assert [o["kind"] for o in found["operands"]] == ["weight", "result"]


def test_errors_say_what_to_do(model_path: Path):
    cases = {
        ("--save", "values.bin"): ".npz or .safetensors",
        ("--tokens", "one"): "give token ids",
        ("--tokens", "1", "--prompt", "x"): "not both",
        ("--tokens", "64"): "token id 64 is not in the vocabulary of 64",
        ("--image", "a.png"): "takes no images",
        ("--image", "a.png", "--tokens", "1"): "--image goes with --prompt",
        ("--save", "/nowhere/a.npz"): "cannot write /nowhere/a.npz",
        ("--prompt", "this is it", "--batch-size", "2"): "a larger --batch-size",
    }
    for arguments, message in cases.items():
        done = CliRunner().invoke(app, ["trace", str(model_path), *arguments])
        assert done.exit_code == 1, arguments
        assert done.stderr.startswith("error: ") and message in done.stderr, done.stderr


def test_pictures_in_place_of_the_table(program: Any, tmp_path: Path):
    stories = ROOT / "examples" / "assets" / "stories.gguf"
    files = {name: tmp_path / f"{name}.svg" for name in ("heat", "lens", "attention")}
    drawn = [text for name, file in files.items() for text in (f"--{name}", file)]
    done = program("trace", stories, "--prompt", "Once upon a time", *drawn, "--layer", "1")
    assert done.returncode == 0 and done.stdout.startswith("drawn: "), done.stderr
    for file in files.values():
        assert "·upon" in file.read_text("utf-8")
    done = program("trace", stories, "--attention", files["attention"], "--head", "99")
    assert done.returncode == 1 and "heads 0 to" in done.stderr
