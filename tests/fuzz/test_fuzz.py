"""A short run of the fuzzer, and checks of the fuzzer itself."""

from __future__ import annotations

import signal

import pytest

from ggmodel.ml import OPS, Tensor
from tests.fuzz import program, run, templates
from tests.fuzz.run import Report

CALLS = 15_000


@pytest.fixture(scope="module")
def report() -> Report:
    return run.fuzz(CALLS, seed=1)


def test_no_op_kills_the_process(report: Report):
    assert not report.deaths, "\n\n".join(report.deaths)


def test_calls_give_tensors_or_errors_of_the_family(report: Report):
    assert not report.tally.leaks, "\n\n".join(report.tally.leaks)


def test_memory_does_not_grow(report: Report):
    # Late allocations, such as the largest compute buffer, take some megabytes.
    assert report.growth < 8 << 20, report.rss


def test_most_programs_compute_something(report: Report):
    assert report.tally.calls >= CALLS
    assert report.tally.computed > report.tally.programs / 2


def test_every_op_was_computed_and_was_refused(report: Report):
    assert set(report.tally.done) >= set(OPS)
    assert set(report.tally.refused) >= set(OPS)


def test_the_same_seed_makes_the_same_calls():
    first, second = (run.fuzz(600, seed=9) for _ in range(2))
    assert first.tally == second.tally


def test_a_death_is_reported_with_the_calls_that_led_to_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("GGMODEL_FUZZ_DIE_IN", "3")
    report = run.fuzz(200, seed=5, limit=1)
    (death,) = report.deaths
    assert death.startswith(f"program 3 of seed 5: {signal.Signals.SIGSEGV.name}\n")
    assert "ctx." in death
    assert report.tally.programs < 10


def test_a_hanging_program_is_ended(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("GGMODEL_FUZZ_HANG_IN", "2")
    monkeypatch.setattr(run, "PATIENCE", 1.5)
    (death,) = run.fuzz(200, seed=5, limit=1).deaths
    assert death.startswith("program 2 of seed 5: hung\n")


def test_an_op_without_a_case_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(OPS, "new_op", OPS["neg"])
    with pytest.raises(LookupError, match="new_op"):
        templates.harvest()


def test_a_method_with_arguments_of_another_kind_is_named(monkeypatch: pytest.MonkeyPatch):
    def method(self: Tensor, complicated: complex) -> None: ...

    monkeypatch.setattr(Tensor, "complicated", method, raising=False)
    with pytest.raises(LookupError, match=r"Tensor\.complicated\(complicated: complex\)"):
        program.public(Tensor)
