"""The largest logits of whole vocabularies."""

from __future__ import annotations

import numpy as np
import pytest

from ggmodel.runner.sampling.selection import largest

WIDTH = 1000  # blocks


@pytest.mark.parametrize("k", [1, 40, 100, 200])
@pytest.mark.parametrize("order", ["rising", "falling", "turned", "random"])
def test_the_largest_whatever_the_order_of_the_blocks(k: int, order: str):
    maxima = np.arange(WIDTH)
    maxima = {
        "rising": maxima,
        "falling": maxima[::-1],
        "turned": np.roll(maxima, -k),
        "random": np.random.default_rng(k).permutation(maxima),
    }[order]
    logits = np.full(64 * WIDTH, -1.0, np.float32)
    logits[:WIDTH] = maxima
    assert largest(logits, k).tolist() == np.argsort(-maxima, kind="stable")[:k].tolist()


@pytest.mark.parametrize("n", [64 * 80, 64 * 2500 + 5])
@pytest.mark.parametrize("k", [1, 40])
def test_the_largest_of_a_vocabulary(n: int, k: int):
    logits = np.random.default_rng(n + k).normal(size=n).astype(np.float32)
    expected = np.argsort(-logits, kind="stable")[:k]
    np.testing.assert_array_equal(largest(logits, k), expected)


@pytest.mark.parametrize("value", [1.0, -1.0, 3e-40, -3e-40])
def test_neighbouring_numbers_keep_their_order(value: float):
    first = np.float32(value)
    numbers = [first]
    for _ in range(5):
        numbers.append(np.nextafter(numbers[-1], np.float32(np.inf)))
    assert largest(np.array(numbers), 6).tolist() == [5, 4, 3, 2, 1, 0]
