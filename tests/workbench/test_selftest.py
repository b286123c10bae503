"""The self-test of a ggml: it passes here, and notices what is wrong."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ggmodel import native
from ggmodel.errors import ComputeError
from ggmodel.workbench import selftest


def test_this_ggml_computes_what_it_should():
    result = selftest.self_test()
    assert result.version == native.version and result.devices[0] == "CPU"
    assert result.comparisons > 50
    # Far from the limits, and not so near that nothing was compared.
    assert 0.05 < result.worst < 0.8


@pytest.mark.parametrize("name", ["a product of Q4_K with 40 columns", "attention"])
@pytest.mark.parametrize("wrong", [np.nan, 0.5])
def test_one_wrong_number_is_noticed(monkeypatch: pytest.MonkeyPatch, name: str, wrong: float):
    computed = selftest._computed

    def faulty(weights: Any, pieces: Any, backend: str, params: Any) -> dict[str, np.ndarray]:
        found = computed(weights, {name: pieces[name]}, backend, params)
        if backend == "ggml":
            found[name].reshape(-1)[7] += wrong
        return found

    monkeypatch.setattr(selftest, "_computed", faulty)
    with pytest.raises(ComputeError, match=rf"{name} is wrong on CPU: off by .* is allowed"):
        selftest.self_test()


def test_a_failure_is_said_on_standard_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def fail() -> None:
        raise ComputeError("a product is wrong")

    monkeypatch.setattr(selftest, "self_test", fail)
    assert selftest.main() == 1
    assert capsys.readouterr() == ("", "a product is wrong\n")
