"""Log-probabilities of tokens by the model alone.

They come from its own logits, before penalties, bias and temperature, as those of llama.cpp's
server do unless it is asked for `post_sampling_probs`.
"""

from __future__ import annotations

import math

import numpy as np

from .selection import largest, parts


def log_probabilities(
    logits: np.ndarray, token: int, top: int = 0
) -> tuple[float, list[tuple[int, float]]]:
    """log softmax(logits) of a token and of the most likely ones, to some 1e-5.

    Args:
        logits: float32 [vocabulary] without NaN; not changed.
        top: how many of the most likely tokens to list; impossible ones are left out.

    Returns:
        The token's log-probability; (token, log-probability), most likely first.
    """
    best = logits.max()
    with np.errstate(over="ignore"):  # towards −∞
        sums = [float(np.exp(part - best).sum()) for part in parts(logits)]
    total = float(best) + math.log(sum(sums))
    ids = largest(logits, top)
    listed = [(int(i), float(logits[i]) - total) for i in ids]
    return float(logits[token]) - total, listed


def log_probability(logits: np.ndarray, token: int) -> float:
    """log softmax(logits)[token]."""
    return log_probabilities(logits, token)[0]
