"""Sampling against its definition."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from ggmodel.errors import ComputeError, ConfigError
from ggmodel.runner import Sampler
from ggmodel.runner.sampling import Sampling, log_probabilities
from ggmodel.runner.sampling.selection import largest, reaching

CLOSE = 1e-9


class Fixed:
    """A generator that has one number only."""

    def __init__(self, number: float):
        self.number = number

    def random(self) -> float:
        return self.number


def softmax(scores: list[float]) -> list[float]:
    powers = [math.exp(s - max(scores)) for s in scores]
    total = math.fsum(powers)
    return [p / total for p in powers]


def until(p: list[float], enough: float) -> int:
    """How many are needed to reach a sum. Where rounding decides there is nothing to compare."""
    for count in range(1, len(p) + 1):
        so_far = math.fsum(p[:count])
        assume(enough == 1 or abs(so_far - enough) > CLOSE)
        if so_far >= enough and enough < 1:
            return count
    return len(p)


def definition(logits: np.ndarray, sampler: Sampler) -> dict[int, float]:
    """The distribution to draw from, most likely first: full sorts, exact sums, no shortcuts."""
    possible = [i for i in range(len(logits)) if logits[i] > -np.inf]
    ids = sorted(possible, key=lambda i: (-logits[i], i))
    ids = ids[: sampler.top_k or None]
    p = softmax([float(logits[i]) / sampler.temperature for i in ids])
    if sampler.typical_p < 1:
        entropy = -math.fsum(q * math.log(q) for q in p if q)
        odd = [abs(-math.log(q) - entropy) if q else math.inf for q in p]
        order = sorted(range(len(p)), key=lambda i: (odd[i], i))
        count = until([p[i] for i in order], sampler.typical_p)
        if count < len(order):  # equal tokens on both sides: rounding decides
            near = abs(odd[order[count - 1]] - odd[order[count]])
            assume(near > CLOSE or logits[ids[order[count - 1]]] == logits[ids[order[count]]])
        chosen = sorted(order[:count])
        ids = [ids[i] for i in chosen]
        p = [p[i] / math.fsum(p[i] for i in chosen) for i in chosen]
    ids = ids[: until(p, sampler.top_p)]
    assume(all(abs(q / p[0] - sampler.min_p) > CLOSE for q in p) or sampler.min_p == 0)
    kept = {i: q for i, q in zip(ids, p, strict=False) if q and q >= sampler.min_p * p[0]}
    return {i: q / math.fsum(kept.values()) for i, q in kept.items()}


def some_logits(seed: int, n: int, kind: str) -> np.ndarray:
    random = np.random.default_rng(seed)
    logits = random.normal(0, 3, n)
    if kind == "ties":
        logits = np.round(logits)
    elif kind == "masked":
        logits[random.random(n) < 0.9] = -np.inf
        logits[0] = 1
    elif kind == "flat":
        logits /= 100
    elif kind == "blocks":  # the largest lie side by side
        logits = np.sort(logits)
    return logits.astype(np.float32)


@pytest.mark.slow
@settings(derandomize=True, max_examples=200, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    n=st.one_of(st.integers(1, 70), st.integers(600, 3000)),
    kind=st.sampled_from(["normal", "ties", "masked", "flat", "blocks"]),
    temperature=st.floats(0.05, 3),
    top_k=st.sampled_from([0, 0, 1, 3, 40, 500]),
    top_p=st.sampled_from([0.0, 0.1, 0.5, 0.9, 0.999, 1.0]),
    min_p=st.sampled_from([0.0, 0.0, 0.01, 0.3, 1.0]),
    typical_p=st.sampled_from([1.0, 1.0, 0.9, 0.2]),
    uniform=st.floats(0, 1, exclude_max=True),
)
def test_what_is_kept_and_drawn(
    seed, n, kind, temperature, top_k, top_p, min_p, typical_p, uniform
):
    logits = some_logits(seed, n, kind)
    sampler = Sampler(temperature, top_k, top_p, min_p, typical_p=typical_p)
    want = definition(logits, sampler)
    ids, p = sampler.distribution(logits)
    assert ids.tolist() == list(want)
    np.testing.assert_allclose(p, list(want.values()), rtol=1e-6, atol=1e-14)

    sums = np.cumsum(list(want.values()))
    assume(np.abs(sums - uniform).min() > CLOSE)
    drawn = sampler.draw(logits, Fixed(uniform))  # type: ignore[arg-type]
    assert drawn == list(want)[int(np.searchsorted(sums, uniform))]


@settings(derandomize=True, max_examples=200, deadline=None)
@given(
    values=st.lists(
        st.one_of(
            st.sampled_from([0.0, -0.0, 1.0, -1.0, 3.4e38, -3.4e38, 1e-45, -math.inf]),
            st.floats(width=32, allow_nan=False, allow_infinity=False),
        ),
        min_size=1,
        max_size=400,
    ),
    k=st.integers(0, 5),
    data=st.data(),
)
def test_the_largest(values: list[float], k: int, data: st.DataObject):
    logits = np.array(values, np.float32)
    finite = [i for i in range(len(logits)) if logits[i] > -np.inf]
    order = sorted(finite, key=lambda i: (-logits[i], i))
    assert largest(logits, k).tolist() == order[:k]
    assert largest(logits, len(logits) + k).tolist() == (order if k or order else [])
    least = float(data.draw(st.sampled_from([float(x) for x in logits])))
    assert reaching(logits, least).tolist() == [i for i in order if logits[i] >= least]


def test_the_tail_behind_the_last_block_counts():
    logits = np.zeros(64 * 100 + 63, np.float32)
    logits[[5, 6400, 6462]] = 1, 3, 2
    assert largest(logits, 4).tolist() == [6400, 6462, 5, 0]


@pytest.mark.parametrize("n", [49_152, 262_144])
@pytest.mark.parametrize("top_p", [0.1, 0.9, 1.0])
@pytest.mark.parametrize("scale", [0, 0.5, 2, 8])
def test_whole_vocabularies_without_top_k(n: int, top_p: float, scale: float):
    logits = np.random.default_rng(n).normal(0, scale, n).astype(np.float32)
    order = np.argsort(-logits, kind="stable")
    p = np.exp((logits[order] - np.float64(logits.max())) / 0.8)
    p /= p.sum()
    kept = int(np.searchsorted(np.cumsum(p), top_p)) + 1 if top_p < 1 else n
    sums = np.cumsum(p[:kept]) / p[:kept].sum()
    sampler = Sampler(0.8, 0, top_p)
    for uniform in (0.0, 0.3, 0.77, 0.999999):
        want = order[np.searchsorted(sums, uniform, side="right")]
        assert sampler.draw(logits, Fixed(uniform)) == want  # type: ignore[arg-type]
    # Sums of equal logits in another order round to another last token.
    assert abs(len(sampler.distribution(logits)[0]) - kept) <= (scale == 0)


@settings(derandomize=True, max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), n=st.integers(1, 40), top_k=st.integers(0, 45))
def test_draws_follow_the_distribution(seed: int, n: int, top_k: int):
    logits = some_logits(seed, n, "normal")
    sampler = Sampler(1.2, top_k, 0.95, seed=seed % 1000)
    want = np.zeros(n)
    ids, p = sampler.distribution(logits)
    want[ids] = p
    sampling = sampler.begin()
    draws = np.bincount([sampling.sample(logits) for _ in range(400)], minlength=n)
    assert set(np.flatnonzero(draws)) <= set(ids)
    # Six standard deviations of a binomial: one failure in some 10⁸ tokens.
    assert (np.abs(draws - 400 * want) <= 6 * np.sqrt(400 * want * (1 - want)) + 1).all()


def test_temperature_zero_takes_the_most_likely():
    logits = np.array([0, 5, 5, 1], np.float32)
    assert {Sampler(temperature=0).begin().sample(logits) for _ in range(10)} == {1}
    assert {Sampler(temperature=1e-9, top_k=1).begin().sample(logits) for _ in range(10)} == {1}
    assert Sampler(0).distribution(logits)[0].tolist() == [1]
    penalised = Sampler(0, repeat_penalty=2).begin([1])
    assert penalised.sample(logits) == 2
    assert Sampler(0, logit_bias={3: 9}).begin().sample(logits) == 3


@pytest.mark.parametrize("temperature", [5e-324, 1e-300, 1e-9, 1e9, 1e308])
@pytest.mark.parametrize(
    "options", [{}, {"top_k": 0}, {"top_k": 0, "top_p": 1.0, "min_p": 0.1}, {"typical_p": 0.9}]
)
def test_extreme_temperatures(temperature: float, options: dict):
    logits = np.array([3e38, -3e38, 1, -np.inf, 2.9e38], np.float32)
    ids, p = Sampler(temperature, **options).distribution(logits)
    assert 3 not in ids and p.sum() == pytest.approx(1)
    assert len(ids) == (1 if temperature < 1e9 else len(ids))


def test_seeds_reproduce_and_minus_one_does_not():
    logits = np.zeros(1000, np.float32)

    def draw(sampler: Sampler) -> list[int]:
        sampling = sampler.begin()
        return [sampling.sample(logits) for _ in range(8)]

    seven, random = Sampler(1, 0, 1, 0, 7), Sampler(1, 0, 1, 0, -1)
    assert draw(seven) == draw(seven) == draw(Sampler(1, 0, 1, seed=7))
    assert draw(seven) != draw(Sampler(1, 0, 1, 0, 8))
    assert draw(random) != draw(random)


def test_one_sampler_serves_many_requests():
    rows = np.random.default_rng(1).normal(0, 1, (40, 500)).astype(np.float32)
    sampler = Sampler(1, 50, seed=3, repeat_penalty=1.5, frequency_penalty=0.4)

    def answer(prompt: int) -> list[int]:
        sampling = sampler.begin([prompt] * 3)
        for row in rows:
            sampling.accept(sampling.sample(row))
        return list(sampling.history)

    alone = [answer(i) for i in range(16)]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(answer, range(16))) == alone


@settings(derandomize=True, max_examples=200, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    prompt=st.lists(st.integers(-2, 12), max_size=12),
    answer=st.lists(st.integers(0, 9), max_size=12),
    last=st.integers(-1, 9),
    repeat=st.sampled_from([1.0, 1.3, 0.7, 1e30]),
    frequency=st.sampled_from([0.0, 0.5, -0.25]),
    presence=st.sampled_from([0.0, 1.5, -1.0]),
    bias=st.dictionaries(st.integers(0, 9), st.sampled_from([2.5, -1.0, -math.inf]), max_size=3),
)
def test_penalties_and_bias(seed, prompt, answer, last, repeat, frequency, presence, bias):
    logits = some_logits(seed, 10, "normal")
    want = logits.copy()
    for token, number in bias.items():
        want[token] = float(want[token]) + number
    history = prompt + answer
    window = [] if last == 0 else history if last == -1 else history[-last:]
    for token in set(window) & set(range(10)):
        x = float(want[token])
        x = x / repeat if x > 0 else x * repeat
        want[token] = x - window.count(token) * frequency - presence
    sampler = Sampler(
        repeat_penalty=repeat,
        repeat_last_n=last,
        frequency_penalty=frequency,
        presence_penalty=presence,
        logit_bias=bias,
    )
    sampling = sampler.begin(prompt)
    for token in answer:
        sampling.accept(token)
    before = logits.tobytes()
    found = sampler.adjust(logits, sampling.history)
    assert logits.tobytes() == before
    np.testing.assert_allclose(found, want, rtol=1e-6, atol=1e-6)


def test_a_penalty_beyond_all_numbers_does_no_harm():
    sampling = Sampler(0, repeat_penalty=1e300).begin([0])
    assert sampling.sample(np.array([-1, -2], np.float32)) == 1


@pytest.mark.parametrize("temperature", [0, 5e-324, 1.0, 1e308])
@pytest.mark.parametrize(
    "penalties",
    [
        {"repeat_penalty": 0.01, "logit_bias": {0: 1e38, 1: -1e38}},
        {"repeat_penalty": 1e308, "logit_bias": {0: -1e38}},
        {"frequency_penalty": 1e38, "presence_penalty": -1e38},
        {"frequency_penalty": -1e38, "presence_penalty": -1e38, "logit_bias": {1: -math.inf}},
    ],
    ids=range(4),
)
@pytest.mark.parametrize("rest", [{}, {"top_k": 0, "top_p": 5e-324, "min_p": 5e-324}])
def test_the_largest_penalties_leave_numbers(temperature: float, penalties: dict, rest: dict):
    sampling = Sampler(temperature, **penalties, **rest).begin([0, 0, 1, 2])
    adjusted = sampling.sampler.adjust(np.array([5, -5, 0], np.float32), sampling.history)
    assert (np.isfinite(adjusted) | (adjusted == penalties.get("logit_bias", {}).get(1))).all()
    assert sampling.sampler.distribution(adjusted)[1].sum() == pytest.approx(1)
    assert sampling.sample(np.array([5, -5, 0], np.float32)) in range(3)


def test_logits_are_left_as_they_are():
    logits = np.random.default_rng(0).normal(size=100).astype(np.float32)
    copy = logits.copy()
    Sampler(seed=1).begin().sample(logits)
    Sampler(seed=1, top_k=0, repeat_penalty=3, logit_bias={4: 1}).begin([1, 2]).sample(logits)
    log_probabilities(logits, 1, 5)
    assert logits.tobytes() == copy.tobytes()


@pytest.mark.parametrize("options", [{"temperature": 0}, {}, {"top_k": 0}, {"typical_p": 0.5}])
@pytest.mark.parametrize(
    "logits", [[], [0, np.nan, 1], [np.nan], [-np.inf, -np.inf], [1, np.inf]], ids=str
)
def test_logits_that_mean_nothing(logits: list[float], options: dict):
    with pytest.raises(ComputeError):
        Sampler(**options).begin([0]).sample(np.array(logits, np.float32))


def test_bias_that_leaves_nothing():
    sampling = Sampler(logit_bias={0: -math.inf, 1: -math.inf}).begin()
    with pytest.raises(ComputeError, match="logit_bias"):
        sampling.sample(np.zeros(2, np.float32))
    with pytest.raises(ConfigError, match="token 7, the vocabulary has 2"):
        Sampler(logit_bias={7: 1}).begin().sample(np.zeros(2, np.float32))


@pytest.mark.parametrize(
    "option",
    [
        {"temperature": -1},
        {"temperature": math.nan},
        {"temperature": math.inf},
        {"temperature": "1"},
        {"top_k": 2.5},
        {"typical_p": 1.5},
        {"repeat_penalty": 0},
        {"repeat_penalty": 1e-300},
        {"repeat_last_n": -2},
        {"frequency_penalty": math.nan},
        {"frequency_penalty": 1e308},
        {"presence_penalty": -math.inf},
        {"logit_bias": {1: math.inf}},
        {"logit_bias": {1: math.nan}},
        {"logit_bias": {1: 1e308}},
        {"logit_bias": {-1: 1.0}},
        {"logit_bias": {"a": 1.0}},
    ],
    ids=str,
)
def test_options_are_checked(option: dict):
    with pytest.raises(ConfigError, match=next(iter(option))):
        Sampler(**option)


class EveryOther(Sampler):
    """Never takes the most likely token, and notes what each request was given."""

    def begin(self, prompt=(), *, constraint=None) -> Sampling:
        return Counting(self, prompt, constraint)

    def adjust(self, logits, history):
        adjusted = super().adjust(logits, history).copy()
        adjusted[adjusted.argmax()] = -np.inf
        return adjusted


class Counting(Sampling):
    calls = 0

    def sample(self, logits: np.ndarray) -> int:
        self.calls += 1
        return super().sample(logits)


def test_subclasses():
    sampling = EveryOther(0).begin()
    assert isinstance(sampling, Counting)
    assert [sampling.sample(np.array([1, 3, 2], np.float32)) for _ in range(2)] == [2, 2]
    assert sampling.calls == 2


class Even:
    """Allows four even tokens."""

    def __init__(self):
        self.seen: list[int] = []
        self.masks = 0

    @property
    def finished(self) -> bool:
        return len(self.seen) == 4

    def allows(self, token: int) -> bool:
        return token % 2 == 0

    def mask(self, size: int) -> np.ndarray:
        self.masks += 1
        return np.arange(size) % 2 == 0

    def accept(self, token: int) -> None:
        self.seen.append(token)

    def copy(self) -> Even:
        return deepcopy(self)


@pytest.mark.parametrize("temperature", [0, 1])
def test_a_constraint_is_asked_for_its_mask_only_after_a_refusal(temperature: float):
    even = Even()
    sampling = Sampler(temperature, top_k=1).begin([9], constraint=even)
    rows = np.eye(6, dtype=np.float32)[[0, 1, 2, 3]]
    for row in rows:
        assert not sampling.finished
        sampling.accept(sampling.sample(row))
    assert sampling.finished
    assert even.seen == [0, 0, 2, 0] and even.masks == 2
    assert sampling.history == [9, 0, 0, 2, 0]


def test_a_constraint_that_nothing_fulfils():
    sampling = Sampler(logit_bias={0: -math.inf}).begin(constraint=Even())
    with pytest.raises(ComputeError, match="logit_bias"):
        sampling.sample(np.array([0, 1], np.float32))
