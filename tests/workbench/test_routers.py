"""Routers compute with the reference's choices, and are judged by their own."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ggmodel
from ggmodel import DType
from ggmodel.workbench import golden
from ggmodel.workbench.activations import Activations
from ggmodel.workbench.diff import diff
from ggmodel.workbench.routers import Router, from_arrays, routed, to_arrays
from tests.golden.files import HERE, load_golden
from tests.workbench.saved import saved, source_of

MODELS = Path(ggmodel.__file__).parent / "models"
GROUPED = Path(__file__).parent / "grouped"
EXACT: dict[str, Any] = {"kv_type": "f32", "flash_attention": "off"}


def changed(source: Path, folder: Path, file: str, old: str, new: str) -> Path:
    """An architecture out of tree, with one line changed."""
    shutil.copytree(source, folder / source.name, ignore=shutil.ignore_patterns("__pycache__"))
    path = folder / source.name / file
    text = path.read_text()
    assert text.count(old) == 1, f"{old!r} is not there once"
    path.write_text(text.replace(old, new))
    return folder


def run_of(outcome: golden.Outcome, name: str) -> golden.runs.Run:
    return next(run for run in outcome.runs if run.name == name)


SOFTMAX = "self.router(x).sigmoid()", "self.router(x).softmax()"
DOWN = '    down: ExpertLinear = nn.stacked("down", "w2")\n'


@pytest.mark.parametrize("router", ["sigmoid=True", "bias=self.bias"])
def test_another_choice_is_the_routers(tmp_path: Path, router: str):
    own = f"""{DOWN}
    def choose(self, x):
        return nn.choose_experts(self.router(x), self.config.experts_used, {router})
"""
    models = changed(MODELS / "lfm2", tmp_path, "model.py", DOWN, own)
    (outcome,) = golden.check(HERE / "lfm2", "experts", models)
    run = run_of(outcome, "routers")
    assert not (outcome.ok or run.ok)
    assert run.note.startswith("blk.1.ffn: the router prefers expert ")
    assert "the reference has it below that by" in str(outcome)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("", ""),
        ("self.limited(scores + self.bias).top_k", "(scores + self.bias).top_k"),
        ("self.limited(scores + self.bias)", "self.limited(scores)"),
        (
            "self.limited(scores + self.bias).top_k(h.experts_used)",
            "self.limited(scores + self.bias).argsort().slice(0, 0, h.experts_used)",
        ),
        SOFTMAX,
    ],
    ids=["right", "limit ignored", "bias ignored", "the worst", "softmax"],
)
def test_groups_of_experts(tmp_path: Path, old: str, new: str):
    models = GROUPED if not old else changed(GROUPED, tmp_path, "dots1.py", old, new) / "grouped"
    (outcome,) = golden.check(GROUPED / "goldens" / "dots1", models=models)
    run = run_of(outcome, "routers")
    assert outcome.ok == run.ok == (not old)
    assert run.note.startswith("blk.1.ffn: the router prefers expert ") == bool(old)


def test_a_choice_near_a_tie_is_no_difference():
    """Weights in Q8_0 send a token of this prompt to another expert."""
    one, prompt = load_golden("lfm2", "experts"), load_golden("lfm2", "experts").prompt.tolist()
    errors = []
    for routers in ([], one.routers):
        with (
            ggmodel.load(golden.source_of(one, DType.Q8_0), **EXACT) as model,
            routed(model, routers) as routing,
        ):
            errors.append(golden.nmse(model.logits(prompt), one.logits_q8_0))
    assert errors[0] > 5e-3 and errors[1] < 5e-4
    assert routing.modules == ["blk.1.ffn", "blk.2.ffn"]


def test_a_model_chooses_for_itself_afterwards():
    one = load_golden("lfm2", "experts")
    prompt = one.prompt.tolist()
    swapped = [Router(3 - router.choices, router.scores) for router in one.routers]
    with ggmodel.load(golden.source_of(one), **EXACT) as model:
        before = model.logits(prompt)
        with routed(model, swapped):
            assert golden.nmse(model.logits(prompt), before) > 1e-2
        assert np.array_equal(model.logits(prompt), before)


def test_routers_that_do_not_pair():
    one = load_golden("lfm2", "experts")
    with ggmodel.load(golden.source_of(one), **EXACT) as model:
        with routed(model, one.routers[:1]) as routing:
            model.logits(one.prompt.tolist())
        assert routing.problem == "the reference chooses experts in 1 modules, the model in 2"


def limited(scores: np.ndarray) -> np.ndarray:
    """Scores [n, 4] of two groups, the one with the smaller sum left out."""
    sums = scores.reshape(len(scores), 2, 2).sum(2)
    kept = np.repeat(sums == sums.max(1, keepdims=True), 2, axis=1)
    return np.where(kept, scores, -np.inf)


def test_a_limit_of_groups_that_is_ignored():
    scores = np.array([[0.9, 0.1, 0.6, 0.7], [0.2, 0.3, 0.1, 0.0]], np.float32)
    theirs = limited(scores)
    router = Router(np.argsort(-theirs, axis=1)[:, :2].astype(np.int32), theirs)
    assert router.misled(theirs, 1e-10) == ""
    assert router.misled(limited(scores) * 2 + 1, 1e-10) == ""
    assert router.misled(scores, 1e-10).startswith("the router prefers expert 0 to 3 for token 0;")


def test_scores_nearer_than_rounding_choose_either_way():
    theirs = np.array([[0.5, 0.5 + 1e-6, -1.0]], np.float32)
    ours = np.array([[0.5 + 1e-6, 0.5, -1.0]])
    router = Router(np.array([[1]], np.int32), theirs)
    assert router.misled(ours, 1e-10) == ""
    assert router.misled(ours, 1e-16) != ""
    assert router.misled(np.exp(theirs.astype(np.float64)), 1e-16) == ""
    assert router.misled(np.full((1, 3), np.nan), 1e-10) != ""
    assert "among 2 experts" in router.misled(ours[:, :2], 1e-10)


def test_choices_in_files():
    router = Router(np.array([[1], [0]], np.int32), np.zeros((2, 3), np.float32))
    (again,) = from_arrays(to_arrays([router]))
    assert np.array_equal(again.choices, router.choices)
    assert from_arrays({}) == []
    outside = Router(np.array([[3]], np.int32), router.scores)
    with pytest.raises(ValueError, match="no choices of experts"):
        from_arrays(to_arrays([outside]))


def misrouted(activations: Activations) -> Activations:
    """As if the reference had other scores in its second router."""
    first, second = activations.routers
    scores = second.scores[:, ::-1].copy()
    used = second.choices.shape[1]
    choices = np.argsort(-scores, axis=1, kind="stable")[:, :used].astype(np.int32)
    activations.routers = [first, Router(choices, scores)]
    return activations


def test_diff_names_the_module_of_a_router():
    with ggmodel.load(source_of("mixtral"), **EXACT) as model:
        assert diff(model, saved("mixtral")).ok
        result = diff(model, misrouted(saved("mixtral")))
    assert result.first is not None
    assert result.first.path == "layers[1].ffn"


@pytest.mark.parametrize("dtype", [DType.F32, DType.F16, DType.BF16, DType.Q8_0], ids=str)
def test_diff_of_groups_in_every_type(tmp_path: Path, dtype: DType):
    """Its reference is `ggmodel diff --save-reference` of `ggmodel golden --checkpoint`."""
    reference = Activations.load(GROUPED / "reference.npz")
    (case,) = golden.Cases(GROUPED / "goldens" / "dots1").names
    one = golden.Golden.load(GROUPED / "goldens" / "dots1" / f"{case}.npz")
    old, new = "self.limited(scores + self.bias).top_k", "(scores + self.bias).top_k"
    wrong = changed(GROUPED, tmp_path, "dots1.py", old, new) / "grouped"
    for models in (GROUPED, wrong):
        source = golden.source_of(one, dtype, models)
        with ggmodel.load(source, models=models, **EXACT) as model:
            result = diff(model, reference)
        assert result.ok == (models is GROUPED)
    assert result.first is not None
    assert result.first.path == "layers[1].ffn"
    assert "the reference leaves it out" in result.first.note
