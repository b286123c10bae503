"""Sampling against its definition."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ggmodel.errors import ComputeError
from ggmodel.runner import Sampler


def probabilities(
    logits: np.ndarray, temperature: float, top_k: int, top_p: float, min_p: float
) -> np.ndarray:
    """The distribution to draw from, written from the definition: full sorts, no shortcuts."""
    order = sorted(range(len(logits)), key=lambda i: (-logits[i], i))
    if top_k:
        order = order[:top_k]
    scaled = np.array([float(logits[i]) for i in order]) / temperature
    p = np.exp(scaled - scaled.max())
    p /= p.sum()
    kept, mass = [], 0.0
    for i, share in zip(order, p, strict=True):
        if kept and mass >= top_p:
            break
        kept.append((i, share))
        mass += share
    kept = [(i, share) for i, share in kept if share >= min_p * kept[0][1]]
    result = np.zeros(len(logits))
    for i, share in kept:
        result[i] = share
    return result / result.sum()


@settings(derandomize=True, max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    n=st.integers(1, 40),
    temperature=st.floats(0.05, 3),
    top_k=st.integers(0, 45),
    top_p=st.floats(0.05, 1),
    min_p=st.floats(0, 0.5),
)
def test_draws_follow_the_definition(seed, n, temperature, top_k, top_p, min_p):
    logits = np.random.default_rng(seed).normal(0, 2, n).astype(np.float32)
    want = probabilities(logits, temperature, top_k, top_p, min_p)
    sampler = Sampler(temperature, top_k, top_p, min_p, seed=seed % 1000)
    draws = np.bincount([sampler.sample(logits) for _ in range(400)], minlength=n)
    assert set(np.flatnonzero(draws)) <= set(np.flatnonzero(want))
    # Six standard deviations of a binomial: one failure in some 10⁸ tokens.
    assert (np.abs(draws - 400 * want) <= 6 * np.sqrt(400 * want * (1 - want)) + 1).all()


def test_temperature_zero_takes_the_most_likely():
    logits = np.array([0, 5, 5, 1], np.float32)
    assert {Sampler(temperature=0).sample(logits) for _ in range(10)} == {1}
    assert {Sampler(temperature=1e-9, top_k=1).sample(logits) for _ in range(10)} == {1}


def test_seeds_reproduce_and_minus_one_does_not():
    logits = np.zeros(1000, np.float32)

    def draw(seed: int) -> list[int]:
        sampler = Sampler(1, 0, 1, 0, seed)
        return [sampler.sample(logits) for _ in range(8)]

    assert draw(7) == draw(7) != draw(8)
    assert draw(-1) != draw(-1)


def test_logits_are_left_as_they_are():
    logits = np.random.default_rng(0).normal(size=100).astype(np.float32)
    copy = logits.copy()
    Sampler(seed=1).sample(logits)
    assert logits.tobytes() == copy.tobytes()


@pytest.mark.parametrize("temperature", [0, 0.8])
@pytest.mark.parametrize(
    "logits", [[], [0, np.nan, 1], [np.nan], [-np.inf, -np.inf], [1, np.inf]], ids=str
)
def test_logits_that_mean_nothing(logits: list[float], temperature: float):
    with pytest.raises(ComputeError):
        Sampler(temperature).sample(np.array(logits, np.float32))
