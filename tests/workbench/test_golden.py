"""Goldens as an author keeps them: a folder, checked, made again, written out."""

from __future__ import annotations

import shutil
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from ggmodel.errors import ArchitectureError, ConfigError, FormatError, Unsupported
from ggmodel.workbench import golden
from ggmodel.workbench.golden.update import Made, update

GOLDENS = Path(__file__).parents[1] / "golden"
LLAMA = Path(__file__).parents[1] / "models" / "outside" / "llama.py"
CASES = """
CASES = {"plain_gqa": {"vocab_size": 64}}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of one golden."""
    folder = tmp_path / "goldens" / "llama"
    folder.mkdir(parents=True)
    shutil.copy(GOLDENS / "llama" / "plain_gqa.npz", folder)
    (folder / "cases.py").write_text(CASES)
    return folder


def test_a_model_that_equals_its_reference(folder: Path):
    (outcome,) = golden.check(folder)
    assert outcome.ok
    assert (outcome.case, outcome.rows, outcome.greedy) == ("plain_gqa", 32, (12, 12))
    assert 0 < outcome.nmse < 1e-11


def test_a_model_that_does_not(folder: Path):
    models = folder.parents[1]
    source = LLAMA.read_text()
    assert source.count("x + self.ffn(") == 1
    (models / "llama.py").write_text(source.replace("x + self.ffn(", "self.ffn("))
    (outcome,) = golden.check(folder, models=models)
    assert not outcome.ok
    assert outcome.nmse > 1e-3
    (outcome,) = golden.check(folder)  # that of the package is as it was
    assert outcome.ok


def test_one_token_that_differs_is_a_difference():
    near = golden.Outcome("a", 1, 1e-12, 1e-8, (11, 12))
    far = golden.Outcome("a", 1, 2e-8, 1e-8, (12, 12))
    no_number = golden.Outcome("a", 1, golden.nmse(np.array([np.nan]), np.array([1.0])), 1e-8)
    assert not (near.ok or far.ok or no_number.ok)
    assert golden.nmse(np.zeros(2), np.zeros(3)) == np.inf


@pytest.mark.slow
def test_pictures_prompts_and_embeddings_are_checked():
    cases = {o.case: o for o in golden.check(GOLDENS / "mllama", "last_is_cross")}
    assert {"last_is_cross", "last_is_cross, image one", "last_is_cross, prompt many"} <= set(cases)
    assert all(o.ok for o in cases.values())
    name = golden.cases(GOLDENS / "gemma3", "embeddings")[0]
    (outcome,) = golden.check(GOLDENS / "gemma3", name)
    assert outcome.ok
    assert outcome.greedy is None


def test_a_folder_without_cases(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"there is no .*cases\.py"):
        list(golden.check(tmp_path / "nothing"))


def test_bad_cases(tmp_path: Path):
    for text, error in (("", ConfigError), ("1/0", ArchitectureError), ("(", ArchitectureError)):
        folder = tmp_path / f"{len(text)}" / "llama"
        folder.mkdir(parents=True)
        (folder / "cases.py").write_text(text)
        with pytest.raises(error, match=r"cases\.py"):
            golden.Cases(folder)


@pytest.mark.parametrize(
    "text",
    [
        "CASES = 3",
        "CASES = {'a': 3}",
        "CASES = {'../a': {}}",
        "EMBEDDINGS = {'a': 1}",
        "CASES = {'a': {}}; BOUNDS = {'a': 'x'}",
    ],
)
def test_cases_of_another_kind(text: str, tmp_path: Path):
    (tmp_path / "cases.py").write_text(text)
    with pytest.raises(ConfigError, match=r"cases\.py: .* write a dictionary of cases"):
        golden.Cases(tmp_path)


def test_embeddings_have_checkpoints_too():
    cases = golden.Cases(GOLDENS / "bert")
    assert isinstance(cases.load(cases.names[0]), golden.Embeddings)


def test_what_transformers_refuses_is_an_error_of_the_case(
    folder: Path, monkeypatch: pytest.MonkeyPatch
):
    def compute(*_: object) -> None:
        raise ValueError("no such model type\n\nand a page of advice")

    stand_in = SimpleNamespace(quiet=lambda: None, Case=lambda *_: SimpleNamespace(compute=compute))
    monkeypatch.setitem(sys.modules, "ggmodel.workbench.golden.reference", stand_in)
    monkeypatch.setattr(golden, "reference", stand_in, raising=False)  # as an import would
    with pytest.raises(
        ConfigError, match=r"'plain_gqa' cannot .* no such model type and a page of advice$"
    ):
        next(update(folder))


def made(golden: golden.Golden, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Made:
    """`--update`, as if the reference had computed this."""
    compute = SimpleNamespace(compute=lambda want: golden)
    reference = {"quiet": lambda: None, "Case": lambda *_: compute, "prepared": lambda *_: None}
    stand_in = SimpleNamespace(**reference)
    monkeypatch.setitem(sys.modules, "ggmodel.workbench.golden.reference", stand_in)
    monkeypatch.setattr("ggmodel.workbench.golden.reference", stand_in, raising=False)
    return next(update(folder))


def test_a_case_that_rounding_alone_would_fail_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
):
    one = golden.Golden.load(folder / "plain_gqa.npz")
    assert made(one, folder, monkeypatch).case == "plain_gqa"
    steady = replace(one, logits_f16=one.logits)  # as if rounded weights moved nothing
    with pytest.raises(ConfigError, match=r"rounding alone would fail it: F16: NMSE .* \(bound"):
        made(steady, folder, monkeypatch)
    wrong = replace(steady, logits=-one.logits)  # the model is at fault, not the case
    assert made(wrong, folder, monkeypatch).case == "plain_gqa"


def test_bounds_of_rounded_weights_follow_from_the_reference(folder: Path):
    one = golden.Golden.load(folder / "plain_gqa.npz")
    (outcome,) = golden.check(folder)
    bounds = {run.name: run.bound for run in outcome.runs}
    for name, logits in (("F16", one.logits_f16), ("Q8_0", one.logits_q8_0)):
        assert bounds[name] == pytest.approx(1e-8 + 4 * golden.nmse(logits, one.logits))
    assert bounds["F16"] < bounds["BF16"] / 16 < bounds["Q8_0"]


def test_a_function_of_the_cases_that_fails_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch):
    (folder / "cases.py").write_text(CASES + "def image_tokens():\n    return {}['x']\n")
    hook = golden.Cases(folder).module.image_tokens
    compute = SimpleNamespace(compute=lambda want: hook())
    stand_in = SimpleNamespace(quiet=lambda: None, Case=lambda *_: compute)
    monkeypatch.setitem(sys.modules, "ggmodel.workbench.golden.reference", stand_in)
    monkeypatch.setattr(golden, "reference", stand_in, raising=False)
    with pytest.raises(ArchitectureError, match=r"cases\.py:4 in image_tokens: .*'plain_gqa'"):
        next(update(folder))


def test_bad_files(folder: Path):
    path = folder / "plain_gqa.npz"
    whole = path.read_bytes()
    for damaged in (b"", b"PK\x03\x04", whole[:2000], whole[:-30], b"\x93NUMPY"):
        path.write_bytes(damaged)
        with pytest.raises(FormatError, match=r"plain_gqa\.npz"):
            golden.Golden.load(path)
    path.unlink()
    with pytest.raises(FormatError, match="--update"):
        list(golden.check(folder))


def test_a_file_written_is_the_one_read(folder: Path):
    before = golden.Golden.load(folder / "plain_gqa.npz")
    assert before.save("again") == folder / "again.npz"
    again = golden.Golden.load(folder / "again.npz")
    assert golden.compare(again, before) == []
    again.logits[0, 0] += 1
    again.config["vocab_size"] = 65
    assert golden.compare(again, before) == ["config", "logits"]
    assert sorted(p.name for p in folder.iterdir() if p.suffix == ".npz") == [
        "again.npz",
        "plain_gqa.npz",
    ]


def test_without_torch_updating_says_what_to_install(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.delitem(sys.modules, "ggmodel.workbench.golden.reference", raising=False)
    with pytest.raises(Unsupported, match="pip install torch"):
        next(update(folder))
