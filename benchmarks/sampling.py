"""Microseconds to choose a token, by size of vocabulary and options.

    python benchmarks/sampling.py [REPETITIONS]

The logits are normal random numbers: with deviation 3 nine tenths of the probability lie on some
hundreds of tokens, with deviation 1 on tens of thousands. Each number is the best of five medians
over steps with changing logits, so that other load on the machine matters little.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from ggmodel import Sampler
from ggmodel.runner.sampling import log_probabilities

SIZES = (49_152, 128_256, 262_144)
PENALTIES: dict[str, Any] = {
    "repeat_penalty": 1.1,
    "frequency_penalty": 0.2,
    "presence_penalty": 0.1,
}
# Name, options, deviation of the logits.
CASES: tuple[tuple[str, dict[str, Any], float], ...] = (
    ("default", {}, 3),
    ("greedy", {"temperature": 0}, 3),
    ("penalties", PENALTIES, 3),
    ("logit bias", {"logit_bias": dict.fromkeys(range(100), 1.0)}, 3),
    ("typical 0.95", {"typical_p": 0.95}, 3),
    ("top-k off", {"top_k": 0}, 3),
    ("top-k off, top-p 1", {"top_k": 0, "top_p": 1.0}, 3),
    ("top-k off, top-p 1, min-p 0.05", {"top_k": 0, "top_p": 1.0, "min_p": 0.05}, 3),
    ("top-k off, flat logits", {"top_k": 0}, 1),
)


def median(step: Callable[[np.ndarray], object], rows: np.ndarray, repetitions: int) -> float:
    """Microseconds of `step` on one row."""
    medians = []
    for _ in range(5):
        times = []
        for i in range(repetitions):
            began = time.perf_counter()
            step(rows[i % len(rows)])
            times.append(time.perf_counter() - began)
        medians.append(float(np.median(times)) * 1e6)
    return min(medians)


def main(repetitions: str = "60") -> None:
    normal = np.random.default_rng(0).normal(size=(8, max(SIZES))).astype(np.float32)
    print(f"{'µs a token':32}" + "".join(f"{size:>10,}" for size in SIZES))

    def show(name: str, step: Callable[[np.ndarray], object], deviation: float) -> None:
        rows = [np.ascontiguousarray(normal[:, :size]) * deviation for size in SIZES]
        found = [median(step, r.astype(np.float32), int(repetitions)) for r in rows]
        print(f"{name:32}" + "".join(f"{us:10.0f}" for us in found), flush=True)

    for name, options, deviation in CASES:
        sampling = Sampler(seed=0, **options).begin(range(0, 2000, 7))
        show(name, sampling.sample, deviation)
    show("logprob of a token", lambda row: log_probabilities(row, 5), 3)
    show("logprobs of the top 20", lambda row: log_probabilities(row, 5, 20), 3)


if __name__ == "__main__":
    main(*sys.argv[1:])
