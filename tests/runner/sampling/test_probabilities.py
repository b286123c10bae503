"""Log-probabilities against their definition in float64."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ggmodel.runner.sampling import Sampler, log_probabilities, log_probability


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


def test_log_probabilities_after_sampling():
    """The softmax is over the tokens that top-k leaves, after bias and temperature."""
    logits = np.random.default_rng(3).normal(0, 2, 50).astype(np.float32)
    sampling = Sampler(0.5, top_k=4, top_p=1.0, seed=1, logit_bias={7: 9.0}).begin()
    wide = logits.astype(np.float64)
    wide[7] += 9
    order = np.argsort(-wide)[:4]
    shares = np.exp((wide[order] - wide.max()) / 0.5)
    shares /= shares.sum()
    own, listed = sampling.log_probabilities(logits, int(order[1]), 3)
    assert own == pytest.approx(math.log(shares[1]), abs=1e-5)
    assert [i for i, _ in listed] == order[:3].tolist()
    assert [p for _, p in listed] == pytest.approx(np.log(shares[:3]).tolist(), abs=1e-5)
    other = int(np.argmin(wide))
    assert sampling.log_probabilities(logits, other)[0] == -math.inf


def test_log_probabilities_after_a_rule():
    """A token that was drawn again has its probability among those that the rule allows."""

    class Even:
        finished = False

        def allows(self, token: int) -> bool:
            return token % 2 == 0

        def mask(self, size: int) -> np.ndarray:
            return np.arange(size) % 2 == 0

        def accept(self, token: int) -> None: ...

        def copy(self) -> Even:
            return self

    logits = np.array([0.0, 9.0, 1.0, 8.0], np.float32)
    sampling = Sampler(1.0, top_k=2, top_p=1.0).begin(constraint=Even())
    own, listed = sampling.log_probabilities(logits, 2, 4)
    assert own == pytest.approx(math.log(math.e / (1 + math.e)), abs=1e-6)
    assert [i for i, _ in listed] == [2, 0]
