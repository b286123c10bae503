"""The numbers that no golden can see, and hyperparameters that no forward reads."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from zlib import crc32

import numpy as np
import pytest

from ggmodel import runner
from ggmodel.errors import ConfigError
from ggmodel.gguf_file import MemorySource
from ggmodel.workbench import golden
from ggmodel.workbench.check import check
from ggmodel.workbench.golden import changes
from ggmodel.workbench.golden.coverage import Case, Unseen, hold, unseen
from tests.golden.files import HERE, Golden, load_golden

LLAMA = Path(__file__).parents[1] / "models" / "outside" / "llama.py"
READ = '    residual: float = kv("residual_scale", hf="residual_multiplier", default=1.0)\n'
LAST = "return x + self.ffn(self.ffn_norm(x))"
ALSO = "x = x + y"
SCALED = "x = x + y.scale(self.config.residual)"
USED = "return x + self.ffn(self.ffn_norm(x)).scale(self.config.residual)"


def model_file(models: Path, uses: int) -> None:
    """A Llama whose configuration has a factor of both residuals, which its layers may forget."""
    source = LLAMA.read_text().replace("    layers: int", READ + "    layers: int", 1)
    assert READ in source and LAST in source and ALSO in source
    for old, new in ((LAST, USED), (ALSO, SCALED))[:uses]:
        source = source.replace(old, new)
    (models / "llama.py").write_text(source)


@pytest.fixture
def models(tmp_path: Path) -> Path:
    (tmp_path / "goldens" / "llama").mkdir(parents=True)
    return tmp_path


def stored(models: Path, **factors: float) -> golden.Cases:
    """Goldens of this Llama, each with a factor of its own, as a reference that multiplies by it
    makes them."""
    folder = models / "goldens" / "llama"
    model_file(models, 2)
    plain = replace(load_golden("llama", "plain_gqa"), folder=folder)
    (folder / "cases.py").write_text(f"CASES = {json.dumps({name: {} for name in factors})}\n")
    for name, factor in factors.items():
        made = replace(plain, config={**plain.config, "residual_multiplier": factor})
        made.logits = computed(made, models)
        made.changes, made.changed = {}, np.zeros((0, 0), np.float32)
        made.save(name)
    return golden.Cases(folder)


def computed(made: Golden, models: Path) -> np.ndarray:
    """The logits of the prompt, by the reference."""
    source = golden.source_of(made, models=models)
    options = {"models": models, "kv_type": "f32", "backend": "reference"}
    with runner.load(source, **options) as model:
        return model.logits(made.prompt.tolist())


def only(found: list[Unseen] | None) -> Unseen:
    assert found is not None and len(found) == 1
    return found[0]


def test_a_factor_of_one_that_the_forward_forgets(models: Path):
    cases = stored(models, plain=1.0)
    model_file(models, 0)
    assert all(outcome.ok for outcome in golden.check(cases.folder, models=models))
    found = only(unseen(cases, models))
    assert str(found) == "residual = 1.0: no case can see it; add one with another value"


def test_a_factor_of_one_proves_nothing_of_a_forward_that_multiplies(models: Path):
    assert only(unseen(stored(models, plain=1.0), models)).name == "residual"


def test_everything_is_seen(models: Path):
    assert unseen(stored(models, plain=1.0, other=0.5), models) == []


def test_a_use_that_is_forgotten_where_the_value_is_neutral(models: Path):
    cases = stored(models, plain=1.0)
    made = Golden.load(cases.path("plain"))
    made.changes, made.changed = changes.recorded(
        made.config, lambda config: computed(replace(made, config=config), models)[-1]
    )
    made.save("plain")
    model_file(models, 1)
    (outcome,) = golden.check(cases.folder, models=models)
    wrong = [run.name for run in outcome.runs if not run.ok]
    assert wrong == ["with residual_multiplier = 1.37"]
    model_file(models, 2)
    (outcome,) = golden.check(cases.folder, models=models)
    assert outcome.ok and changes.FOLLOWS in [run.name for run in outcome.runs]


def test_a_model_that_differs_is_not_judged(models: Path):
    cases = stored(models, other=0.5)
    model_file(models, 0)
    assert unseen(cases, models) is None


def test_a_weight_without_effect(models: Path):
    cases = stored(models, other=0.5)
    file = models / "llama.py"
    tensor = "    extra: Tensor = gguf('output_extra.weight', root=True, hf='model.extra.weight')\n"
    before = "    head: Linear"
    file.write_text(file.read_text().replace(before, tensor + before, 1))
    made = Golden.load(cases.path("other"))
    made.tensors["model.extra.weight"] = (4,)
    made.save("other")
    found = only(unseen(cases, models))
    assert str(found) == "output_extra.weight: no case can see this weight"


def test_a_set_of_cases_that_cannot_see_is_refused(models: Path):
    cases = stored(models, plain=1.0)
    model_file(models, 0)
    with pytest.raises(ConfigError, match=r"(?s)residual = 1\.0: no case .*UNSEEN = "):
        hold(cases, models)
    cases.path("plain").unlink()
    hold(cases, models)  # not all have been made yet


def test_reasons_of_the_cases(models: Path):
    cases = stored(models, plain=1.0)
    text = (cases.folder / "cases.py").read_text()
    again = models / "again" / "llama"
    shutil.copytree(cases.folder, again)
    (again / "cases.py").write_text(text + 'UNSEEN = {"resid*": "one is all there is"}\n')
    found = only(unseen(golden.Cases(again), models))
    assert found == Unseen("residual", (1.0,), "one is all there is")
    hold(golden.Cases(again), models)


@pytest.mark.parametrize("uses", [2, 0])
def test_a_key_that_no_forward_reads(source: MemorySource, vary, models: Path, uses: int):
    model_file(models, uses)
    result = check(vary(source, metadata={"llama.residual_scale": 0.5}), models=models)
    assert result.ok and result.traced
    lines = [finding.message for finding in result.warnings]
    said = "llama.residual_scale = 0.5 (residual): no forward reads it"
    assert lines == ([] if uses else [said])


FOLDERS = sorted(file.parent.name for file in HERE.glob("*/cases.py"))
PARTS = 40  # one is tried; another whenever cases.py changes


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_part_of_the_numbers_of_the_goldens_is_seen(folder: str):
    cases = golden.Cases(HERE / folder)
    loading = golden.Loading(cases, None, {"kv_type": "f32", "backend": "reference"})
    seed, names, seen = (cases.folder / "cases.py").read_text(), set[str](), set[str]()
    for name in cases.names:
        case = Case(loading, cases.load(name))
        both = (*case.hyperparameters, *case.arrays)
        names |= {n for n in both if crc32((n + seed).encode()) % PARTS == 0}
        seen |= case.sees(names - seen)
    assert [n for n in names - seen if not any(fnmatchcase(n, p) for p in cases.unseen)] == []


def _hyperparameters_read(case: str) -> list[str]:
    folder, name = case.split("/")
    result = check(golden.source_of(golden.Cases(HERE / folder).load(name)))
    return [w.message for w in result.warnings if w.message.endswith("no forward reads it")]


CASES = [
    f"{file.parent.name}/{name}"
    for file in sorted(HERE.glob("*/cases.py"))
    for name in golden.Cases(file.parent).names
]


@pytest.mark.parametrize("case", CASES)
def test_every_hyperparameter_of_the_goldens_is_read(case: str):
    assert _hyperparameters_read(case) == []
