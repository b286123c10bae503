"""The harness notices what must not happen, and a reproducer shows it again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from tests.fuzz import damage, jsons, registry, reproducer
from tests.fuzz.__main__ import main
from tests.fuzz.faulty import Faulty
from tests.fuzz.fuzzer import from_json, seeded, to_json
from tests.fuzz.parent import Children, Result

CASES = 25
FAULTS = {
    "foreign": "KeyError at child.py:one > faulty.py:run > faulty.py:foreign",
    "leaving": "SystemExit at",
    "thread": "in a thread: KeyError at",
    "crash": "SIGSEGV at",
    "hang": "hung at",
    "bomb": "MemoryError at",
    "at_exit": "exit status 7 at",
}
DEADLY = ("crash", "hang", "at_exit")

Fault = Callable[[str], None]


@pytest.fixture
def fault(monkeypatch: pytest.MonkeyPatch) -> Fault:
    """`fault("crash")` has some cases of the next children misbehave."""
    return lambda name: monkeypatch.setenv("GGMODEL_FUZZ_FAULT", name)


def run(jobs: int = 1) -> Result:
    return Children(Faulty, seed=1, cases=CASES, jobs=jobs).run()


def test_children_import_the_tree_that_is_tested(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "ggmodel.py").write_text("raise SystemExit('the changed copy')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(RuntimeError, match="a child of faulty does not start:\nthe changed copy"):
        run()


def test_harmless_cases_are_counted():
    result = run()
    assert (result.cases, result.deaths, result.findings) == (CASES, 0, {})
    assert result.counts == {"steps": 3 * CASES}
    assert 5 < result.refused < CASES - 5
    assert result.samples[0][-1][1:] == pytest.approx([16 << 20, 6, 1], rel=2)


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_a_finding_and_can_be_replayed(tmp_path: Path, fault: Fault, name: str):
    fault(name)
    result = run()
    assert result.cases == CASES
    (found,) = result.findings.values()
    assert found.title.startswith(FAULTS[name].partition(" > ")[0].partition(" at ")[0])
    assert found.count == sum(seeded(Faulty(tmp_path), 1, i)["fault"] == name for i in range(CASES))
    assert result.deaths == (found.count if name in DEADLY else 0)
    assert f"the fault is {name}" in found.text
    path = reproducer.save(tmp_path / "found", Faulty, 1, found)
    fault("none")  # the file has the case itself
    assert [*reproducer.replay(path).findings] == [found.title]
    fault(name)
    assert [*reproducer.replay(path, history=3).findings] == [found.title]
    fault("none")
    assert not reproducer.replay(path, history=3).findings


def test_the_cases_are_the_same_for_any_number_of_children():
    one, three = run(), run(jobs=3)
    assert (one.cases, one.refused, one.counts) == (three.cases, three.refused, three.counts)
    assert len(three.samples) == 3


def test_the_command_prints_a_table_and_writes_reproducers(
    tmp_path: Path, fault: Fault, capsys: pytest.CaptureFixture[str]
):
    assert main(["--only", "images", "--cases", "10", "--folder", str(tmp_path)]) == 0
    assert [line.split()[:2] for line in capsys.readouterr().out.splitlines()] == [
        ["fuzzer", "cases"],
        ["images", "10"],
    ]
    assert not list(tmp_path.iterdir())
    fault("foreign")
    found = next(iter(run().findings.values()))
    path = reproducer.save(tmp_path, Faulty, 1, found)
    assert main(["--replay", str(path)]) == 1
    said = capsys.readouterr().out
    assert "faulty: KeyError at" in said and f"--replay {path}" in said
    with pytest.raises(SystemExit):
        main(["--only", "nothing"])
    assert "there is no fuzzer 'nothing'" in capsys.readouterr().err


def test_cases_become_text_and_come_back():
    case = {"files": {"a": [b"\xff\0", 3]}, "none": None, "text": "é\ud800", "n": [1, 2.5, True]}
    assert from_json(to_json(case)) == case


def test_shares_of_time_add_up():
    chosen = registry.named([])
    assert sum(registry.shares(chosen, 600)) == pytest.approx(600)
    assert [one.name for one in registry.named(["ops", "gguf"])] == ["ops", "gguf"]
    assert len({one.name for one in chosen}) == len(chosen)


def test_damage_changes_most_bytes_and_values():
    random = Random(1)
    raw = bytes(range(200))
    assert sum(damage.damaged(random, raw) != raw for _ in range(100)) > 90
    assert all(isinstance(damage.damaged(random, b""), bytes) for _ in range(100))
    value = {"a": [1, 2.5, "x", None, {"b": True}], "c": {}}
    texts = {jsons.written(random, jsons.mutated(random, value)) for _ in range(100)}
    assert len(texts) > 80
    assert value == {"a": [1, 2.5, "x", None, {"b": True}], "c": {}}
