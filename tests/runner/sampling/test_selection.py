"""The largest logits of whole vocabularies."""

from __future__ import annotations

import numpy as np
import pytest

from ggmodel.runner.sampling.selection import largest


@pytest.mark.parametrize("k", [1, 7, 40])
@pytest.mark.parametrize("n", [64 * 80, 64 * 100 + 5])
def test_the_largest_of_a_vocabulary(n: int, k: int):
    for seed in range(50):
        logits = np.random.default_rng(seed).normal(size=n).astype(np.float32)
        expected = np.argsort(-logits, kind="stable")[:k]
        np.testing.assert_array_equal(largest(logits, k), expected)
