"""Log-probabilities against their definition in float64."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ggmodel.runner.sampling import log_probabilities, log_probability


@settings(derandomize=True, max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    n=st.one_of(st.integers(1, 50), st.integers(16_000, 40_000)),
    kind=st.sampled_from(["normal", "ties", "masked"]),
    top=st.integers(0, 20),
)
def test_log_probabilities(seed: int, n: int, kind: str, top: int):
    random = np.random.default_rng(seed)
    logits = random.normal(0, 3, n).astype(np.float32)
    if kind == "ties":
        logits = np.round(logits)
    elif kind == "masked":
        logits[random.random(n) < 0.9] = -np.inf
        logits[0] = 1
    wide = logits.astype(np.float64)
    want = wide - wide.max() - np.log(np.exp(wide - wide.max()).sum())
    own, listed = log_probabilities(logits, n // 2, top)
    assert own == pytest.approx(want[n // 2], abs=1e-5)
    assert own == log_probability(logits, n // 2)
    order = np.argsort(-logits, kind="stable")
    assert [i for i, _ in listed] == [i for i in order[:top] if logits[i] > -np.inf]
    for i, p in listed:
        assert p == pytest.approx(want[i], abs=1e-5)


def test_log_probabilities_of_a_model_that_is_sure():
    logits = np.array([3e38, -3e38, -np.inf], np.float32)
    own, listed = log_probabilities(logits, 0, 3)
    assert own == 0 and [i for i, _ in listed] == [0, 1]
    assert log_probability(logits, 2) == -math.inf
