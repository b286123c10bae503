"""A short run of the fuzzer of ops."""

from __future__ import annotations

import pytest

from ggmodel.ml import OPS, Tensor
from tests.fuzz.ops import program, templates
from tests.fuzz.ops.fuzzer import Ops
from tests.fuzz.parent import Children, Result

PROGRAMS = 1300


@pytest.fixture(scope="module")
def result() -> Result:
    return Children(Ops, seed=1, cases=PROGRAMS).run()


@pytest.mark.slow
def test_calls_give_tensors_or_errors_of_the_family(result: Result):
    assert not result.findings, "\n\n".join(f.title + f.text for f in result.findings.values())
    assert result.counts["calls"] > 10 * PROGRAMS


def test_memory_does_not_grow(result: Result):
    # Late allocations, such as the largest compute buffer, take some megabytes.
    assert result.growth < 8 << 20, result.samples


def test_most_programs_compute_something(result: Result):
    assert result.counts["computed programs"] > PROGRAMS / 2


def test_every_op_was_computed_and_was_refused(result: Result):
    assert {f"{how} {op}" for op in OPS for how in ("computed", "refused")} <= set(result.counts)


def test_the_same_seed_makes_the_same_calls():
    first, second = (Children(Ops, seed=9, cases=50).run() for _ in range(2))
    assert first.counts == second.counts


def test_an_op_without_a_case_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(OPS, "new_op", OPS["neg"])
    with pytest.raises(LookupError, match="new_op"):
        templates.harvest()


def test_a_method_with_arguments_of_another_kind_is_named(monkeypatch: pytest.MonkeyPatch):
    def method(self: Tensor, complicated: complex) -> None: ...

    monkeypatch.setattr(Tensor, "complicated", method, raising=False)
    with pytest.raises(LookupError, match=r"Tensor\.complicated\(complicated: complex\)"):
        program.public(Tensor)
