"""`ggmodel new`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from ggmodel.workbench import golden
from tests.cli.conftest import Program

GOLDENS = Path(__file__).parents[1] / "golden"


def test_it_says_what_it_wrote(program: Program, tmp_path: Path):
    done = program("new", "my-model", "--into", tmp_path)
    assert done.returncode == 0
    assert done.stderr == ""
    assert done.stdout.startswith("my-model, begun from llama:\n")
    files = sorted(str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*") if p.is_file())
    assert files == [
        "README.md",
        "goldens/my_model/cases.py",
        "goldens/my_model/test_my_model.py",
        "my_model.py",
    ]
    assert all(name in done.stdout for name in files)
    assert "--update" in done.stdout
    assert "next: in cases.py, the architectures" in done.stdout  # transformers knows no MyModel
    assert "`my_model.py`" in (tmp_path / "README.md").read_text()


@pytest.mark.slow
def test_a_checkpoint_and_the_whole_way_to_a_green_test(program: Program, tmp_path: Path):
    """Only --update, which needs torch, is stood in for."""
    want = golden.Golden.load(GOLDENS / "llama" / "plain_gqa.npz")
    want.config |= {"architectures": ["MyModelForCausalLM"], "unknown_multiplier": 2.0}
    weights = want.weights() | {"model.layers.0.self_attn.v_norm.weight": np.ones(16, np.float32)}
    golden.checkpoint(tmp_path / "hf", want.config, weights)
    done = program("new", "my-model", "--hf", tmp_path / "hf", "--into", tmp_path / "own")
    assert done.returncode == 0, done.stderr
    assert "Attention: v_norm: RMSNorm = gguf(" in done.stdout
    assert 'unknown_multiplier: float = kv("unknown_multiplier"' in done.stdout
    # Goldens as --update makes them; the sizes in cases.py are its own.
    folder = tmp_path / "own" / "goldens" / "my_model"
    cases = golden.Cases(folder)
    assert cases.configs["plain"]["hidden_size"] == want.config["hidden_size"]
    want.folder = folder
    want.tensors = {**want.tensors, "model.layers.0.self_attn.v_norm.weight": (16,)}
    for name in cases.names:
        want.save(name)
    model = tmp_path / "own" / "my_model.py"
    text = model.read_text()
    assert text.count("v_norm: RMSNorm = gguf") == 1
    model.write_text(text.replace("v_norm: RMSNorm = gguf", "v_norm: RMSNorm | None = gguf"))
    done = program("golden", "my-model", "--models", tmp_path / "own")
    assert (done.returncode, done.stderr) == (0, "")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(folder)]
    env = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST")}
    ran = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=90)
    assert f"{len(cases.names)} passed" in ran.stdout, ran.stdout + ran.stderr


@pytest.mark.slow
def test_bad_input(program: Program, tmp_path: Path):
    for arguments, message in (
        (("a b",), "cannot be an architecture's name"),
        (("x", "--from", "nothing"), "no architecture 'nothing'"),
        (("x", "--hf", tmp_path / "nothing"), "nothing"),
        (("experts",), "would be the class Experts"),
        (("none",), "would be the class None"),
    ):
        done = program("new", *arguments, "--into", tmp_path / "own")
        assert done.returncode == 1
        assert message in done.stderr
    assert not (tmp_path / "own").exists()
