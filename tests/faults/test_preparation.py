"""Faults of preparation still fit their files, and one of them is caught and named."""

from __future__ import annotations

import pytest

from tests.faults.preparation import FAULTS, ROOT, named, verdict


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{fault.golden}, {fault.description}")
def test_a_fault_changes_one_place(fault):
    text = (ROOT / "sdk" / "ggmodel" / fault.path).read_text("utf-8")
    assert text.count(fault.before) == 1 and fault.before != fault.after


def test_a_spectrum_with_another_floor_is_named():
    index = next(i for i, f in enumerate(FAULTS) if f.description == "the floor as a least value")
    assert named(FAULTS[index], verdict(index)["verdict"])
