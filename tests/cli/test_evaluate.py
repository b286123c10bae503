"""`ggmodel eval`; the figures are tested in tests/workbench."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.workbench.models import STORIES

HOW = ("--context-length", 128, "--threads", 1, "--gpu-layers", 0)
TASKS = [
    {"prompt": "The fox found a", "choices": [" stone", " wxyz"], "answer": 0},
    {"prompt": "Once upon a", "choices": [" qqqq", " time"], "answer": " time"},
    {"prompt": "Once upon a time", "answer": "never", "max_tokens": 2},
]


@pytest.fixture
def tasks(tmp_path: Path) -> Path:
    (tmp_path / "tasks.jsonl").write_text("".join(json.dumps(t) + "\n" for t in TASKS))
    return tmp_path / "tasks.jsonl"


def test_a_file(program: Any, tasks: Path):
    ran = program("eval", STORIES, tasks, *HOW)
    assert (ran.returncode, ran.stderr) == (0, "")
    shares = "acc 1.0000 ± 0.0000\nacc_norm 1.0000 ± 0.0000\nexact_match 0.0000 ± 0.0000\n"
    assert ran.stdout == f"3 documents\n{shares}"


def test_results_are_kept(program: Any, tasks: Path, tmp_path: Path):
    results = tmp_path / "results.jsonl"
    first = program("eval", STORIES, tasks, *HOW, "--results", results, "--json")
    whole = results.read_bytes()
    model, *rows = [json.loads(line) for line in whole.splitlines()]
    assert list(model) == ["model"] and [row["line"] for row in rows] == [1, 2, 3]
    changed = json.loads(whole.splitlines()[1]) | {"right": False}
    cut = whole.splitlines()[0] + b"\n" + json.dumps(changed).encode() + b'\n{"line": 2, "di'
    results.write_bytes(cut)  # killed while it wrote, and marked to see that it is read
    again = program("eval", STORIES, tasks, *HOW, "--results", results, "--json")
    assert json.loads(first.stdout)["acc"]["value"] == 1
    assert json.loads(again.stdout)["acc"]["value"] == 0.5
    assert [json.loads(line).get("line") for line in results.read_bytes().splitlines()] == [
        None,
        1,
        2,
        3,
    ]


def test_results_of_another_model(program: Any, model_path: Path, tasks: Path, tmp_path: Path):
    results = tmp_path / "results.jsonl"
    results.write_text('{"model": "another"}\n')
    ran = program("eval", STORIES, tasks, *HOW, "--results", results)
    assert ran.returncode == 1 and "has results of another model" in ran.stderr


@pytest.mark.parametrize("name", ["missing.jsonl", "."])
def test_no_tasks(program: Any, name: str):
    ran = program("eval", STORIES, name)
    assert (ran.returncode, ran.stdout) == (1, "") and ran.stderr.startswith("error: ")
