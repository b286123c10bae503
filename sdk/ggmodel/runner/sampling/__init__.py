"""Sampling: options, the state of one request, and log-probabilities of tokens.

Log-probabilities come from the model's own logits, before penalties, bias and temperature, as those
of llama.cpp's server do; with `post_sampling_probs` those of the distribution that is drawn from.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from functools import cached_property
from inspect import signature
from typing import Any, Protocol

import numpy as np

from ...errors import ComputeError, ConfigError
from ...gguf_file.types import LARGEST
from .selection import largest, mass, most_likely, parts, reaching, weights

__all__ = ["Sampler", "Sampling", "log_probabilities", "log_probability"]

_STRIDE = 32
_TINY = math.ulp(0.0)

_BIAS = 1e38  # sums with logits stay below the largest float32
# Least and largest value of each option; whole numbers are bounded by integers.
_RANGES: dict[str, tuple[float, float]] = {
    "temperature": (0.0, math.inf),
    "top_k": (0, math.inf),
    "top_p": (0.0, 1.0),
    "min_p": (0.0, 1.0),
    "seed": (-1, math.inf),
    "typical_p": (0.0, 1.0),
    "repeat_penalty": (0.01, math.inf),
    "repeat_last_n": (-1, math.inf),
    "frequency_penalty": (-_BIAS, _BIAS),
    "presence_penalty": (-_BIAS, _BIAS),
}


class Constraint(Protocol):
    """A rule for the tokens of one request (see `Grammar.begin`)."""

    @property
    def finished(self) -> bool:
        """Whether nothing may follow any more."""
        ...

    def allows(self, token: int) -> bool:
        """Whether the token may come next."""
        ...

    def mask(self, size: int) -> np.ndarray:
        """Which tokens may come next, bool [size]."""
        ...

    def accept(self, token: int) -> None:
        """Notes that the token, which is allowed, came."""
        ...

    def copy(self) -> Constraint:
        """The same rule at the same place, for tokens that may not come."""
        ...


class Sampler:
    """How tokens are chosen. Its options never change; one sampler serves many requests at once,
    each with a state of its own: the `Sampling` that `begin` gives.

    Logit bias, penalties, then, unless the temperature is 0: top-k, temperature, softmax,
    typical, top-p, min-p, draw, in this order. (llama.cpp has typical between top-k and top-p
    too, but applies the temperature last.)

    A penalty looks at the last tokens of prompt and answer, in llama.cpp's way: a logit above 0 is
    divided by `repeat_penalty`, any other multiplied with it; then `frequency_penalty` times the
    number of occurrences is subtracted, and `presence_penalty` once.

    Subclasses may override `adjust` (what happens to logits before a choice), `draw` (the choice)
    and `begin` (to give each request a state of its own: a subclass of `Sampling`). The first two
    are called for many requests, maybe from several threads: they must change neither their
    arguments, except for the random generator, nor the sampler.

    Args:
        temperature: 0 is greedy decoding.
        top_k: samples from the k most likely tokens; 0 is off.
        top_p: samples from the smallest set of tokens whose probabilities add up to this; 1 is off.
        min_p: drops tokens less probable than this times the most probable one; 0 is off.
        seed: −1 is random. Any other number gives the same answer again from the same version with
            the same options, for a request that is computed alone: with others in its batch, sums
            may be rounded otherwise.
        typical_p: locally typical sampling: samples from the tokens whose information is closest to
            the entropy, until their probabilities exceed this sum; 1 is off.
        repeat_penalty: penalises tokens that already occurred; 1 is off, 0.01 the least.
        repeat_last_n: last tokens that penalties consider; 0 is none, −1 all.
        frequency_penalty: subtracted from a token's logit for each time it occurred; 0 is off.
        presence_penalty: subtracted from a token's logit once if it occurred; 0 is off.
        logit_bias: token id → number added to its logit; −∞ rules it out.

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
        *,
        typical_p: float = 1.0,
        repeat_penalty: float = 1.0,
        repeat_last_n: int = 64,
        frequency_penalty: float = 0.0,
        presence_penalty: float = 0.0,
        logit_bias: Mapping[int, float] | None = None,
    ):
        self.temperature, self.top_k, self.top_p, self.min_p = temperature, top_k, top_p, min_p
        self.seed, self.typical_p = seed, typical_p
        self.repeat_penalty, self.repeat_last_n = repeat_penalty, repeat_last_n
        self.frequency_penalty, self.presence_penalty = frequency_penalty, presence_penalty
        if not isinstance(logit_bias, Mapping | None):
            raise ConfigError(f"logit_bias is {logit_bias!r:.80}; it must be a dict of token ids")
        self.logit_bias = dict(logit_bias or {})
        for name, (least, most) in _RANGES.items():
            _check(name, getattr(self, name), least, most)
        for token, bias in self.logit_bias.items():
            _check("a token of logit_bias", token, 0, math.inf)
            if bias != -math.inf:
                _check(f"logit_bias[{token}]", bias, -_BIAS, _BIAS)
        self._biased = np.array(list(self.logit_bias), np.intp)
        self._bias = np.array(list(self.logit_bias.values()), np.float64)
        self._penalises = repeat_last_n != 0 and (
            repeat_penalty != 1 or frequency_penalty != 0 or presence_penalty != 0
        )

    def begin(
        self, prompt: Iterable[int] = (), *, constraint: Constraint | None = None
    ) -> Sampling:
        """The state of one request.

        Args:
            prompt: its tokens, which the penalties count too.
            constraint: a rule for the answer, such as a grammar.
        """
        return Sampling(self, prompt, constraint)

    def adjust(self, logits: np.ndarray, history: Sequence[int]) -> np.ndarray:
        """Logits with bias and penalties: a copy, or `logits` itself if nothing changes.

        Args:
            logits: float32 [vocabulary]; not changed.
            history: the tokens of prompt and answer.

        Raises:
            ConfigError: a token of `logit_bias` lies outside the vocabulary.
        """
        window = history[-self.repeat_last_n :] if self.repeat_last_n > 0 else history
        penalised = self._penalises and len(window) > 0
        if not penalised and not self.logit_bias:
            return logits
        adjusted = logits.copy()
        # In float64, rounded once per step; what leaves float32's range becomes its largest number.
        with np.errstate(over="ignore"):
            if self.logit_bias:
                if (outside := max(self.logit_bias)) >= len(logits):
                    raise ConfigError(
                        f"logit_bias names token {outside}, the vocabulary has {len(logits)}"
                    )
                adjusted[self._biased] = logits[self._biased] + self._bias
            if penalised:
                ids, counts = np.unique(np.asarray(window, np.int64), return_counts=True)
                inside = (ids >= 0) & (ids < len(logits))  # others stand for images
                ids, counts = ids[inside], counts[inside]
                old = adjusted[ids].astype(np.float64)
                new = np.where(old > 0, old / self.repeat_penalty, old * self.repeat_penalty)
                new -= counts * self.frequency_penalty + self.presence_penalty
                adjusted[ids] = np.where(np.isinf(old), old, new.clip(-LARGEST, LARGEST))
        return adjusted

    def draw(self, logits: np.ndarray, random: np.random.Generator) -> int:
        """One token out of adjusted logits; uses one random number unless the temperature is 0.

        Raises:
            ComputeError: no logits, NaN among them, or all −∞.
        """
        best = most_likely(logits)
        if self.temperature == 0:
            return best
        uniform = random.random()
        ids, sums, total = self._kept(logits, float(logits[best]), uniform)
        drawn = int(sums.searchsorted(uniform * total, side="right"))
        return int(ids[min(drawn, len(ids) - 1)])

    def distribution(self, logits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The distribution of `draw`: ids, most likely first, and their probabilities, float64.

        Raises:
            ComputeError: as for `draw`.
        """
        best = most_likely(logits)
        if self.temperature == 0:
            return np.array([best]), np.ones(1)
        ids, sums, total = self._kept(logits, float(logits[best]), 1.0)
        return ids, np.diff(sums, prepend=0) / total

    def _kept(
        self, logits: np.ndarray, best: float, uniform: float
    ) -> tuple[np.ndarray, np.ndarray, float]:
        """Ids that are kept, most likely first, running sums of their weights, their total.

        If all tokens are kept, only those up to the share `uniform` of the total are listed.
        """
        size, total = len(logits), None
        if self.top_k or self.typical_p < 1:
            ids = largest(logits, min(self.top_k or size, size))
            shares = weights(logits[ids], best, self.temperature)
            if self.typical_p < 1:
                ids, shares = self._typical(ids, shares)
        else:
            ids, shares, total = self._unlimited(logits, best, uniform)
        sums = shares.cumsum()
        # Shares fall: both limits keep a beginning.
        count = int(np.count_nonzero(shares >= max(self.min_p, _TINY)))
        if self.top_p < 1:
            reach = self.top_p * (sums[-1] if total is None else total)
            count, total = min(count, int(sums.searchsorted(reach)) + 1), None
        return ids[:count], sums[:count], float(sums[count - 1]) if total is None else total

    def _unlimited(
        self, logits: np.ndarray, best: float, uniform: float
    ) -> tuple[np.ndarray, np.ndarray, float | None]:
        """The most likely tokens that can matter without top-k, their weights, and the weight of
        all tokens where it is needed."""
        least = -math.inf
        if self.min_p:
            # Lower by more than rounding can move it: `_kept` looks at the weights themselves.
            distance = self.temperature * -math.log(self.min_p)
            least = best - distance - 1e-6 * (1 + abs(best) + distance)
            if self.top_p == 1:
                ids = reaching(logits, least)
                return ids, weights(logits[ids], best, self.temperature), None
        total = mass(logits, best, self.temperature)
        target = total * (self.top_p if self.top_p < 1 else uniform)
        # The weight of every 32nd logit tells how far down to look. It may be wrong, but a sum
        # beyond the target proves that no other token matters.
        some = np.sort(logits[::_STRIDE])
        below = _STRIDE * weights(some, best, self.temperature).cumsum()
        for part in (0.7, 0.1, 0.01):
            at = int(below.searchsorted(part * (total - target)))
            edge = float(some[max(0, min(at, len(some) - _STRIDE // 2))])
            ids = reaching(logits, max(edge, least))
            shares = weights(logits[ids], best, self.temperature)
            if edge <= least or shares.sum() > target * (1 + 1e-9):
                return ids, shares, total
        ids = largest(logits, len(logits))
        return ids, weights(logits[ids], best, self.temperature), total

    def _typical(self, ids: np.ndarray, shares: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Keeps the tokens whose information is closest to the entropy."""
        p = shares / shares.sum()
        p = p[: np.count_nonzero(p)]
        information = -np.log(p)
        order = np.argsort(np.abs(information - (p * information).sum()), kind="stable")
        enough = int(p[order].cumsum().searchsorted(self.typical_p, side="right")) + 1
        kept = np.sort(order[:enough])
        return ids[kept], shares[kept] / shares[kept[0]]


DEFAULTS: dict[str, Any] = {
    name: one.default for name, one in signature(Sampler).parameters.items() if name in _RANGES
}
"""Numeric options of `Sampler` and their defaults."""


class Sampling:
    """One request's draws: its own random numbers and its own history.

    Attributes:
        sampler: the options.
        history: the tokens of prompt and answer.
    """

    def __init__(
        self, sampler: Sampler, prompt: Iterable[int] = (), constraint: Constraint | None = None
    ):
        self.sampler, self.history, self._constraint = sampler, [int(i) for i in prompt], constraint

    @cached_property
    def _random(self) -> np.random.Generator:
        from numpy.random import default_rng  # slow to import

        return default_rng(None if self.sampler.seed == -1 else self.sampler.seed)

    @property
    def finished(self) -> bool:
        """Whether the answer is complete; ask before each `sample`."""
        return self._constraint is not None and self._constraint.finished

    def sample(self, logits: np.ndarray) -> int:
        """The next token's id; tell `accept` if it is taken.

        A token that the constraint refuses is drawn again from those that it allows.

        Args:
            logits: float32 [vocabulary]; not changed.

        Raises:
            ComputeError: no logits, NaN among them, or no token that is possible and allowed.
        """
        draws = self.sampler.temperature > 0 or type(self.sampler) is not Sampler
        random: Any = self._random if draws else None  # the likeliest token needs none
        before = random.bit_generator.state if draws else None
        try:
            adjusted = self.sampler.adjust(logits, self.history)
            token = self.sampler.draw(adjusted, random)
            if self._constraint is None or self._constraint.allows(token):
                return token
            masked = np.where(self._constraint.mask(len(logits)), adjusted, np.float32(-np.inf))
            if masked.max() == -np.inf:
                raise ComputeError(
                    "the grammar allows only tokens that logit_bias or the model rules out"
                )
            return self.sampler.draw(masked, random)
        except BaseException:  # sampling again, as after Ctrl-C, takes the same random numbers
            if before is not None:
                random.bit_generator.state = before
            raise

    def copy(self) -> Sampling:
        """One that samples as this one will: with equal random numbers, history and constraint."""
        constraint = None if self._constraint is None else self._constraint.copy()
        copied = Sampling(self.sampler, constraint=constraint)
        copied.history = list(self.history)
        if self.sampler.temperature > 0:
            vars(copied)["_random"] = deepcopy(self._random)
        return copied

    def log_probabilities(
        self, logits: np.ndarray, token: int, top: int = 0
    ) -> tuple[float, list[tuple[int, float]]]:
        """As the function `log_probabilities`, of the distribution that `sample` drew the token
        from; call it before `accept`. A sampler with another `draw` has `Sampler`'s."""
        logits = self.sampler.adjust(logits, self.history)
        ids, probabilities = self.sampler.distribution(logits)
        if self._constraint is not None and token not in ids:
            allowed = self._constraint.mask(len(logits))
            ids, probabilities = self.sampler.distribution(
                np.where(allowed, logits, np.float32(-np.inf))
            )
        with np.errstate(divide="ignore"):
            likely = dict(zip(ids.tolist(), np.log(probabilities).tolist(), strict=True))
        return likely.get(token, -math.inf), list(likely.items())[:top]

    def accept(self, token: int) -> None:
        """Notes that the token was taken."""
        self.history.append(token)
        if self._constraint is not None:
            self._constraint.accept(token)


def _check(name: str, value: object, least: float, most: float) -> None:
    whole = isinstance(least, int)
    kinds = (int, np.integer) if whole else (int, float, np.number)
    if isinstance(value, bool) or not isinstance(value, kinds):
        raise ConfigError(
            f"{name} is {value!r:.80}; it must be {'an integer' if whole else 'a number'}"
        )
    if not whole and _is_infinite(value):
        raise ConfigError(f"{name} is {value!r:.80}; it must be finite")
    if not least <= value <= most:
        bounds = f"be {least:g} or more" if most == math.inf else f"lie from {least:g} to {most:g}"
        raise ConfigError(f"{name} is {value}; it must {bounds}")


def _is_infinite(value: Any) -> bool:
    try:
        return math.isinf(value)
    except OverflowError:  # of an integer beyond all floats
        return True


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
