"""The rules of the bench of faults: they find their places, and make one change at each."""

from __future__ import annotations

import ast

import pytest

from tests.faults.rules import RULES
from tests.faults.source import Edit, Source, files, spelled
from tests.faults.subjects import ARCHITECTURES, served_by
from tests.faults.trial import Fault, faults

TOWERS = {"gemma3/vision.py", "llama4/vision.py", "mllama/vision.py"}


@pytest.fixture(scope="module")
def found() -> list[Fault]:
    return faults()


@pytest.mark.slow
def test_there_are_hundreds_in_all_architectures_and_towers(found: list[Fault]):
    assert len(found) >= 300
    assert {a for f in found for a in served_by(f.path)} == set(ARCHITECTURES)
    assert {f.path for f in found} >= TOWERS


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_finds_places(found: list[Fault], rule: str):
    paths = {f.path for f in found if f.rule == rule}
    assert paths
    # States are taken from the inputs of layers by one projector alone.
    assert len(paths) > 1 or rule == "end of a state"


@pytest.mark.slow
def test_a_changed_file_is_another_program(found: list[Fault]):
    healthy = {s.path: ast.dump(s.tree) for s in map(spelled, files())}
    for fault in found:
        assert ast.dump(ast.parse(fault.text)) != healthy[fault.path], fault
        assert fault.blames, fault
        assert fault.said and fault.line, fault


def test_faults_differ(found: list[Fault]):
    assert len({f.key for f in found}) == len(found)
    assert len({(f.path, f.text) for f in found}) == len(found)


def test_a_rule_changes_nothing_else():
    text = "class Layer:\n    def forward(self, x):\n        # é\n        return x + self.ffn(x)\n"
    source = Source("some/model.py", text)
    made = [(s.said, source.changed(*s.edits)) for s in RULES["residual"](source)]
    assert [said for said, _ in made] == [
        "x + self.ffn(x) → self.ffn(x)",
        "x + self.ffn(x) → (x + x + self.ffn(x))",
        "x + self.ffn(x) → x",
    ]
    assert made[0][1] == text.replace("x + self.ffn(x)", "self.ffn(x)")


def test_edits_are_applied_from_the_end():
    source = Source("some/model.py", "a = b\n")
    assert source.changed(Edit(0, 1, "long"), Edit(4, 5, "c")) == "long = c\n"
    with pytest.raises(AssertionError, match="overlap"):
        source.changed(Edit(0, 3, "x"), Edit(2, 4, "y"))


def test_the_end_of_a_recurrent_state_is_found():
    text = "class M:\n    def scan(self, part, x):\n        part.put('c', x.slice(0, n, n + 2))\n"
    source = Source("some/model.py", text)
    made = [source.changed(*s.edits) for s in RULES["end of a state"](source)]
    assert made == [
        text.replace("n, n + 2", "0, (n + 2) - (n)"),
        text.replace("n, n + 2", "(n) - 1, (n + 2) - 1"),
    ]
