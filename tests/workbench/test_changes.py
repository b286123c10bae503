"""Comparisons that could miss something: other numbers, parts of goldens, and files left out."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ggmodel.errors import ConfigError, FormatError
from ggmodel.workbench import golden
from ggmodel.workbench.golden import changes
from ggmodel.workbench.golden.coverage import hold
from tests.golden.files import HERE, Golden, load_golden
from tests.workbench.test_coverage import SCALED, models, stored

__all__ = ["models"]  # the fixture
CRASH = "x = x + y.scale({1.0: 1.0}[self.config.residual])"


def with_changes(folder: Path, values: dict[str, Any]) -> golden.Cases:
    """A golden with other numbers, whose results the model cannot know."""
    cases = stored(folder, plain=1.0)
    one = Golden.load(cases.path("plain"))
    one.changes, one.changed = values, np.ones((len(values), one.logits.shape[1]), np.float32)
    one.save("plain")
    return cases


def wrong(cases: golden.Cases, folder: Path) -> list[golden.runs.Run]:
    (outcome,) = golden.check(cases.folder, models=folder)
    return [run for run in outcome.runs if not run.ok]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ([None, 4], [[None, 5], [None, 9], [None, 2]]),
        ([True, 4], [[False, 5], [False, 9], [False, 2]]),
        ([None, "text"], []),
        ([], []),
        (2.0, [2.74, 20.0, 2000.0]),
        (0.0, [0.5, 5.0, 50.0]),
        # An epsilon a little larger shows at some of its uses alone.
        (0.001, [1.0, 0.01, 0.001 * 1.37]),
    ],
)
def test_others(value: Any, expected: list[Any]):
    assert list(changes.others(value)) == expected


def test_a_model_that_refuses_all_numbers_has_followed_none(models: Path):
    (run,) = wrong(with_changes(models, {"num_key_value_heads": 3}), models)
    assert (run.name, run.note) == (changes.FOLLOWS, "none of 1 could be compared")


def test_a_model_that_fails_at_a_number(models: Path):
    cases = with_changes(models, {"residual_multiplier": 1.37})
    file = models / "llama.py"
    text = file.read_text()
    assert SCALED in text
    file.write_text(text.replace(SCALED, CRASH))
    run = wrong(cases, models)[0]
    assert run.name == "with residual_multiplier = 1.37" and "1.37" in run.note


def test_numbers_that_no_golden_changes_need_no_reason(models: Path):
    cases = stored(models, plain=1.0, other=0.5)
    again = models / "again" / "llama"
    shutil.copytree(cases.folder, again)
    file = again / "cases.py"
    file.write_text(file.read_text() + 'UNFOLLOWED = {"plain.rope_*": "none"}\n')
    with pytest.raises(ConfigError, match=r"UNFOLLOWED .* has plain\.rope_\*, which no golden"):
        hold(golden.Cases(again), models)


def test_a_part_that_is_no_longer_made_differs():
    stored_one = load_golden("lfm2", "experts")
    assert golden.compare(stored_one, stored_one) == []
    wrong_parts = golden.compare(replace(stored_one, routers=[]), stored_one)
    assert "routers.0.choices" in wrong_parts


def test_an_expert_that_is_left_out_is_another_score():
    one = load_golden("lfm2", "experts")
    scores = one.routers[0].scores.copy()
    scores[0, 0] = 0.0
    limited = scores.copy()
    limited[0, 0] = -np.inf
    made, kept = (
        replace(one, routers=[replace(one.routers[0], scores=s), *one.routers[1:]])
        for s in (limited, scores)
    )
    assert golden.compare(made, kept) == ["routers.0.scores"]


def test_files_of_a_case_that_were_not_made(tmp_path: Path):
    folder = tmp_path / "paddleocr"
    shutil.copytree(HERE / "paddleocr", folder, ignore=shutil.ignore_patterns("prepared"))
    case = next(iter(golden.Cases(folder).module.FILES))
    with pytest.raises(FormatError, match=r"there is no .*--update` makes it"):
        list(golden.check(folder, case))
