"""`ggmodel golden`."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ggmodel.workbench import golden
from tests.cli.conftest import Program

GOLDENS = Path(__file__).parents[1] / "golden"
LLAMA = Path(__file__).parents[1] / "models" / "outside" / "llama.py"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of one golden."""
    folder = tmp_path / "goldens" / "llama"
    folder.mkdir(parents=True)
    shutil.copy(GOLDENS / "llama" / "plain_gqa.npz", folder)
    (folder / "cases.py").write_text('CASES = {"plain_gqa": {}}\n')
    return folder


@pytest.mark.slow
def test_the_command(folder: Path, program: Program):
    done = program("golden", "llama", "--goldens", folder.parent)
    assert done.returncode == 0
    assert "plain_gqa" in done.stdout and "12 of 12" in done.stdout and "equal" in done.stdout
    assert done.stderr == ""
    assert done.stdout.endswith("that a case's file has, is seen by a case\n")
    found = json.loads(program("golden", "llama", "--goldens", folder.parent, "--json").stdout)
    assert found[0]["ok"] is True
    assert found[0]["greedy"] == [12, 12]


@pytest.mark.slow
def test_the_command_fails_where_something_differs(folder: Path, program: Program):
    models = folder.parents[1]
    source = LLAMA.read_text().replace("scale=h.head_dim**-0.5", "scale=h.head_dim**-0.4")
    (models / "llama.py").write_text(source)
    done = program("golden", "llama", "--models", models)  # its goldens lie in it
    assert done.returncode == 1
    assert "DIFFERS" in done.stdout


@pytest.mark.slow
def test_goldens_lie_under_the_name_of_the_file_too(folder: Path, program: Program):
    """`ggmodel new deepseek-v3` begins goldens/deepseek_v3; the file registers llama.cpp's name."""
    models = folder.parents[1]
    source = LLAMA.read_text()
    assert '@register("llama"' in source
    (models / "mine.py").write_text(source.replace('@register("llama"', '@register("their-name"'))
    folder.rename(folder.with_name("mine"))
    for name in ("their-name", "mine"):
        done = program("golden", name, "--models", models, "--json")
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)[0]["ok"] is True


@pytest.mark.slow
def test_the_command_and_bad_input(folder: Path, program: Program):
    done = program("golden", "llama", "--goldens", folder.parent, "--case", "other")
    assert (done.returncode, done.stdout) == (1, "")
    assert "no case 'other', only plain_gqa" in done.stderr
    done = program("golden", "llama", "--goldens", folder.parent, "--update", "--verify")
    assert done.returncode == 1
    assert "give one of --update, --verify and --checkpoint" in done.stderr
    done = program("golden", "nothing", "--goldens", folder.parent)
    assert done.returncode == 1
    assert "ggmodel new" in done.stderr


@pytest.mark.slow
def test_a_checkpoint_is_written(folder: Path, tmp_path: Path, program: Program):
    target = tmp_path / "tiny"
    done = program("golden", "llama", "--goldens", folder.parent, "--checkpoint", target)
    assert done.returncode == 0
    config = json.loads((target / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLM"]
    from safetensors.numpy import load_file

    weights = load_file(target / "model.safetensors")
    (target / "config.json").write_text("{}")  # as if it were somebody's
    done = program("golden", "llama", "--goldens", folder.parent, "--checkpoint", target)
    assert done.returncode == 1
    assert "holds another checkpoint" in done.stderr
    want = golden.Golden.load(folder / "plain_gqa.npz").weights()
    assert weights.keys() == want.keys()
    assert all(np.array_equal(weights[n], want[n]) for n in want)


@pytest.mark.slow
def test_the_command_in_the_repository(
    folder: Path, program: Program, monkeypatch: pytest.MonkeyPatch
):
    """Goldens lie in `goldens` or in `tests/golden`."""
    tests = folder.parents[1] / "tests"
    tests.mkdir()
    folder.parent.rename(tests / "golden")
    monkeypatch.chdir(tests.parent)
    done = program("golden", "llama", "--all")
    assert done.returncode == 0, done.stderr
    assert "context shift" in done.stdout and "Q8_0" in done.stdout
    assert "goldens made with torch " in done.stdout and "transformers 5." in done.stdout


@pytest.mark.slow
def test_the_command_shows_the_cases_beside_a_broken_one(folder: Path, program: Program):
    (folder / "cases.py").write_text('CASES = {"missing": {}, "plain_gqa": {}}\n')
    done = program("golden", "llama", "--goldens", folder.parent)
    assert done.returncode == 1
    assert "plain_gqa" in done.stdout and "equal" in done.stdout
    assert "missing.npz" in done.stderr
    done = program("golden", "llama", "--goldens", folder.parent, "--json")
    assert done.returncode == 1
    assert [row["case"] for row in json.loads(done.stdout)] == ["plain_gqa"]


def test_goldens_in_deterministic_mode(folder: Path, monkeypatch: pytest.MonkeyPatch):
    """In float64 no sum needs an order: numpy computes there."""
    given: list[dict[str, Any]] = []
    load = golden.load

    def noted(source: Any, **options: Any) -> Any:
        given.append(options)
        return load(source, **options)

    monkeypatch.setattr(golden, "load", noted)
    assert [o.ok for o in golden.check(folder, deterministic=True)] == [True]
    by_ggml = [o for o in given if o.get("backend") != "reference"]
    assert by_ggml and all(o["deterministic"] for o in by_ggml)


@pytest.mark.slow
def test_the_command_in_deterministic_mode(folder: Path, program: Program):
    done = program("golden", "llama", "--goldens", folder.parent, "--deterministic")
    assert done.returncode == 0, done.stderr
    assert "12 of 12" in done.stdout
