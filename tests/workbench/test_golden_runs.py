"""Faults that one batch does not show, and the types of rounded tensors."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from ggmodel import DType
from ggmodel.errors import ConfigError, FormatError
from ggmodel.model import find
from ggmodel.workbench import golden
from ggmodel.workbench.golden.weights import rounded, types_of

GOLDENS = Path(__file__).parents[1] / "golden"
LLAMA = Path(__file__).parents[1] / "models" / "outside" / "llama.py"

# Turns stored keys by half of what it should.
HALF = """
class Half:
    def __init__(self, rope):
        self.rope, self.components = rope, rope.components

    def __call__(self, x, positions):
        return self.rope(x, positions)

    def move(self, x, amounts):
        return self.rope.move(self.rope.move(x, amounts), amounts)

    def made(self, op):
        return self.rope.made(op)

"""
FAULTS = {
    "a shift by another amount": (
        "Causal(layer.attn.rotary.rope())",
        "Causal(Half(layer.attn.rotary.rope()))",
        {"context shift"},
    ),
    "single tokens otherwise": (
        "v = self.v(x).reshape(",
        "x = x.scale(1.1) if batch.size == 1 else x\n        v = self.v(x).reshape(",
        {"batches of 1", "token by token"},
    ),
    "batches of two otherwise": (
        "v = self.v(x).reshape(",
        "x = x.scale(1.1) if batch.size == 2 else x\n        v = self.v(x).reshape(",
        {"batches of 2", "batches of 3", "shared prefix"},
    ),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two goldens, in a folder of architectures."""
    folder = tmp_path / "goldens" / "llama"
    folder.mkdir(parents=True)
    for case in ("plain_gqa", "tied"):
        shutil.copy(GOLDENS / "llama" / f"{case}.npz", folder)
    (folder / "cases.py").write_text('CASES = {"plain_gqa": {}, "tied": {}}\n')
    return folder


@pytest.mark.parametrize("fault", FAULTS)
def test_what_one_batch_does_not_show(fault: str, folder: Path):
    old, new, failing = FAULTS[fault]
    models, source = folder.parents[1], LLAMA.read_text()
    assert source.count(old) == 1
    source = source.replace("class Attention(", HALF + "class Attention(", 1)
    (models / "llama.py").write_text(source.replace(old, new))
    (outcome,) = golden.check(folder, "plain_gqa", models=models)
    assert outcome.nmse < outcome.bound  # as one batch all is well
    wrong = {run.name for run in outcome.runs if not run.ok}
    assert wrong == failing
    assert not outcome.ok
    assert all(name in str(outcome) for name in failing)


def test_a_broken_case_does_not_hide_the_others(folder: Path):
    (folder / "plain_gqa.npz").unlink()
    outcomes = golden.check(folder)
    assert next(outcomes).case == "tied"
    with pytest.raises(FormatError, match=r"there is no .*plain_gqa\.npz"):
        next(outcomes)
    (folder / "tied.npz").write_bytes(b"PK")
    with pytest.raises(ConfigError, match=r"(?s)2 cases .* plain_gqa: .* tied: "):
        list(golden.check(folder))


def test_types_go_by_the_field_that_a_tensor_fills():
    seeing = golden.Cases(GOLDENS / "gemma3").load("images")
    types = types_of(find("gemma3"), seeing.config, seeing.tensors)
    assert types == seeing.types  # as they were when the golden was made
    assert not any("vision_tower" in name for name in types)
    # By the field and not by letters: the same tower with other names, of an unknown model.
    shapes = {"visual.patch.weight": (64, 3, 2, 8, 8), "conv.weight": (64, 1, 3), "norm": (64,)}
    assert types_of(None, {}, shapes) == {"conv.weight": DType.F16}
    assert types_of(None, {}, {"a": (8, 64), "b": (8, 24)}) == {"a": DType.Q8_0, "b": DType.F16}


def test_types_are_kept_in_the_file(folder: Path):
    stored = golden.Golden.load(folder / "tied.npz")
    name = "model.layers.0.mlp.down_proj.weight"
    stored.types = {name: DType.F16}
    stored.save("tied")
    again = golden.Golden.load(folder / "tied.npz")
    assert again.types == {name: DType.F16}
    exact, weights = again.weights(), again.weights(DType.Q8_0)
    assert np.array_equal(weights[name], exact[name].astype(np.float16).astype(np.float32))
    assert all(np.array_equal(weights[n], x) for n, x in exact.items() if n != name)
    source = golden.source_of(again, DType.Q8_0)
    kinds = {t.name: t.dtype for t in source.tensors.values() if t.dtype is not DType.F32}
    assert kinds == {"blk.0.ffn_down.weight": DType.F16}


def test_rounding_twice_is_rounding_once():
    values = np.random.default_rng(1).normal(size=(4, 64)).astype(np.float32)
    for dtype in (DType.F16, DType.BF16, DType.Q8_0):
        once = rounded(values, dtype)
        assert not np.array_equal(once, values)
        assert np.array_equal(rounded(once, dtype), once)
