"""Choosing the next token."""

from __future__ import annotations

import math

import numpy as np

from ..errors import ComputeError, ConfigError


class Sampler:
    """Top-k, temperature, softmax, top-p, min-p, draw, in this order.

    Args:
        temperature: 0 always takes the most likely token.
        top_k: keeps the k most likely; 0 keeps all.
        top_p: keeps the most likely tokens until their probabilities reach this sum.
        min_p: drops tokens less likely than this share of the most likely one's probability.
        seed: −1 is random, any other number reproducible.

    Raises:
        ConfigError: a value outside of its range.
    """

    def __init__(
        self,
        temperature: float = 0.8,
        top_k: int = 40,
        top_p: float = 0.9,
        min_p: float = 0.0,
        seed: int = -1,
    ):
        for name, value, lo, hi in (
            ("temperature", temperature, 0, math.inf),
            ("top_k", top_k, 0, math.inf),
            ("top_p", top_p, 0, 1),
            ("min_p", min_p, 0, 1),
            ("seed", seed, -1, math.inf),
        ):
            whole = name in ("top_k", "seed")
            if not isinstance(value, (int, np.integer) if whole else (int, float, np.number)):
                kind = "an integer" if whole else "a number"
                raise ConfigError(f"{name} is {value!r}; it must be {kind}")
            if not lo <= value <= hi:
                raise ConfigError(f"{name} is {value}; it must lie between {lo} and {hi}")
        self.temperature, self.top_k, self.top_p, self.min_p = temperature, top_k, top_p, min_p
        self._random = np.random.default_rng(None if seed == -1 else seed)

    def sample(self, logits: np.ndarray) -> int:
        """The next token's id.

        Args:
            logits: float32 [vocabulary]; not changed.

        Raises:
            ComputeError: no logits, or NaN among them.
        """
        best = most_likely(logits)
        if self.temperature == 0:
            return best
        ids = self._candidates(logits)
        # In float64 and from the largest: a temperature near 0 must not overflow.
        scores = logits[ids].astype(np.float64)
        with np.errstate(over="ignore"):  # towards −∞, whose probability is 0
            scores = (scores - scores[0]) / self.temperature
        p = np.exp(scores)
        p /= p.sum()
        if self.top_p < 1:
            before = np.cumsum(p) - p
            p = p[before < self.top_p] if self.top_p > 0 else p[:1]
        p = p[p >= self.min_p * p[0]]
        total = np.cumsum(p)
        drawn = np.searchsorted(total, self._random.random() * total[-1], side="right")
        return int(ids[min(int(drawn), len(p) - 1)])

    def _candidates(self, logits: np.ndarray) -> np.ndarray:
        """The ids of the top k, most likely first; equal logits in order of id."""
        k = self.top_k
        if not 0 < k < len(logits):
            return np.argsort(-logits, kind="stable")
        # A partition breaks ties at the edge at will: only take its threshold.
        least = np.partition(logits, -k)[-k]
        top = np.flatnonzero(logits >= least)
        return top[np.argsort(-logits[top], kind="stable")][:k]


def most_likely(logits: np.ndarray) -> int:
    """The index of the largest logit.

    Raises:
        ComputeError: there is none, it is NaN, or all are −∞.
    """
    if not logits.size:
        raise ComputeError("the model gave no logits")
    best = int(logits.argmax())  # of numbers and NaN, argmax gives the first NaN
    if not math.isfinite(logits[best]):
        raise ComputeError(
            f"the model's logits hold {logits[best]}: its weights or hyperparameters are broken; "
            "`ggmodel check FILE` shows what was loaded"
        )
    return best


def log_probability(logits: np.ndarray, token: int) -> float:
    """log softmax(logits)[token]."""
    shifted = logits.astype(np.float64) - float(logits.max())
    return float(shifted[token] - math.log(np.exp(shifted).sum()))
