"""Each penalty by itself."""

from __future__ import annotations

import numpy as np
import pytest

from ggmodel.runner.sampling import Sampler


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"repeat_penalty": 0.5}, [8.0, -2.0, 3.0]),
        ({"repeat_penalty": 2.0}, [2.0, -8.0, 3.0]),
        ({"frequency_penalty": 1.0}, [2.0, -5.0, 3.0]),
        ({"frequency_penalty": -1.0}, [6.0, -3.0, 3.0]),
        ({"presence_penalty": 1.0}, [3.0, -5.0, 3.0]),
        ({"presence_penalty": -1.0}, [5.0, -3.0, 3.0]),
        ({"repeat_penalty": 2.0, "repeat_last_n": 0}, [4.0, -4.0, 3.0]),
        ({"frequency_penalty": 1.0, "repeat_last_n": 1}, [3.0, -4.0, 3.0]),
        ({"frequency_penalty": 1.0, "repeat_last_n": -1}, [2.0, -5.0, 3.0]),
    ],
    ids=str,
)
def test_a_penalty_by_itself(options: dict[str, float], expected: list[float]):
    logits = np.array([4, -4, 3], np.float32)
    sampler = Sampler(**options)  # type: ignore[arg-type]
    assert sampler.adjust(logits, [0, 1, 0]).tolist() == expected
