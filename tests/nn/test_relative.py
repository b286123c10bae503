"""Buckets of distances, as the paper describes them."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ggmodel.nn import relative_buckets


def bucket(distance: int, count: int, farthest: int, ahead: bool) -> int:
    """arXiv 1910.10683, 2.1: one for each near distance, then by logarithm, the last for all
    farther ones."""
    first = 0
    if ahead:
        count //= 2
        first = count if distance > 0 else 0
    far = abs(distance) if ahead else max(-distance, 0)
    exact = count // 2
    if far < exact:
        return first + far
    share = math.log(far / exact) / math.log(farthest / exact)
    return first + min(exact + int(share * (count - exact)), count - 1)


@pytest.mark.parametrize("ahead", [True, False])
@pytest.mark.parametrize(("count", "farthest"), [(32, 128), (12, 20), (4, 9)])
def test_buckets(count: int, farthest: int, ahead: bool):
    distances = np.arange(-200, 201, dtype=np.int32).reshape(1, -1)
    found = relative_buckets(distances, count, farthest, ahead)
    want = [bucket(int(d), count, farthest, ahead) for d in distances.ravel()]
    assert found.dtype == np.int32 and found.shape == distances.shape
    # Where a logarithm is a whole number, float32 may fall on either side.
    assert np.abs(found.ravel() - want).max() <= 1 and (found.ravel() != want).mean() < 0.02
    assert set(found.ravel()) <= set(range(count))
    assert found[0, 200] == 0
