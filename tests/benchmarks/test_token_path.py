"""The path of a token stays as short as it is, and a chat's objects are noted."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest
from benchmarks.constructions import Construction, constructions, environment
from benchmarks.request_classes import BATCH, HANDLED, between
from benchmarks.token_path import token_path

from tests.children import import_path

# Reached so far. Less is better; more needs the reason in the commit.
FILES, FUNCTIONS = 20, 51


def test_a_token_runs_through_few_files_and_functions():
    called = token_path()
    path = [one for one in called if one.counts]
    listed = "\n".join(f"{one.file}:{one.line} {one.name}" for one in path)
    assert len({one.file for one in path}) <= FILES, listed
    assert len(path) <= FUNCTIONS, listed
    # Both threads are on it, from the stream to ggml.
    assert {one.thread for one in path} == {threading.current_thread().name, "ggmodel-engine"}
    assert {"runner/requests/generation.py", "ml/ggml/compute.py"} <= {one.file for one in path}


def test_objects_of_all_kinds_are_noted(tmp_path: Path):
    package = tmp_path / "import" / "ggmodel"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "kinds.py").write_text(
        textwrap.dedent("""
            import enum, inspect
            from dataclasses import dataclass
            from typing import NamedTuple
            import msgspec

            class Plain: pass
            class Below(Plain):
                def __init__(self, x): self.x = x
            @dataclass(frozen=True, slots=True)
            class Data:
                x: int
            class Pair(NamedTuple):
                x: int
                y: int
            class Own(str):
                def __new__(cls, x): return super().__new__(cls, x * 2)
            class Struct(msgspec.Struct, frozen=True):
                x: int = 0
            class Color(enum.Enum):
                RED = 1

            Plain(), Below(1), Color(1)
            assert (Data(1).x, Pair(1, 2).y, Own("a")) == (1, 2, "aa")
            assert msgspec.json.decode(b'{"x": 3}', type=Struct).x == 3
            assert str(inspect.signature(Below)) == "(x)"
            try:
                Plain(1)
            except TypeError:
                pass
            """)
    )
    notes = tmp_path / "notes"
    notes.mkdir()
    variables = environment(notes, os.pathsep.join((str(package.parent), import_path())))
    subprocess.run([sys.executable, "-c", "import ggmodel.kinds"], env=variables, check=True)
    noted = [one.name.removeprefix("ggmodel.kinds.") for one in constructions(notes)]
    assert noted == ["Plain", "Below", "Data", "Pair", "Own", "Struct", "Plain"]


def test_classes_from_the_handler_to_the_batch():
    names = ["a.Early", HANDLED, "a.Wish", "a.Wish", "a.Request", BATCH, "a.Late"]
    noted = [Construction(time, 1, name) for time, name in enumerate(names)]
    assert [one.name for one in between(noted)] == ["a.Wish", "a.Request", BATCH]
    with pytest.raises(SystemExit, match="correct these names"):
        between(noted[:5])
