"""The guessed tokens, and when guessing pays."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from ggmodel.runner.engine import speculation
from ggmodel.runner.engine.drafting import Costs
from ggmodel.runner.engine.lookup import Lookup
from ggmodel.runner.engine.speculation import SIZES, Speculation

LINEAR = {size: 1 + 0.38 * (size - 1) for size in range(1, 65)}  # as 8-bit weights on a processor


@pytest.mark.parametrize(
    ("text", "guess"),
    [
        ([1, 2, 3, 4, 5, 1, 2], [3, 4, 5, 1]),
        ([1, 2, 3, 1, 2, 4, 1, 2], [4, 1, 2, 4]),  # the latest; it repeats what is repeated
        ([1, 2, 1, 2], [1, 2, 1, 2]),
        ([7, 7, 7], [7, 7, 7, 7]),
        ([1, 2, 3, 4], []),
        ([1, 2, 3, -5, -6, 1, 2], [3]),  # not the image
        ([1], []),
        ([-5], []),
        ([9, 2, 3, 8, 2], []),  # one token alike is not enough
    ],
)
def test_a_text_goes_on_as_it_did(text: list[int], guess: list[int]):
    assert Lookup(text).draft(4) == guess
    pushed = Lookup(text[:1])
    for token in text[1:]:
        pushed.push(token)
    assert pushed.draft(4) == guess


def test_the_place_found_is_followed_until_the_text_goes_on_otherwise():
    lookup = Lookup([1, 2, 3, 4, 5, 6, 3, 4, 9, 1, 2])
    assert lookup.draft(3) == [3, 4, 5]
    lookup.push(3)
    lookup.push(4)  # which came later, too: before 9
    assert (lookup.draft(2), lookup.alike) == ([5, 6], 4)
    lookup.push(8)
    assert lookup.draft(2) == []
    lookup.push(1)
    lookup.push(2)
    assert (lookup.draft(2), lookup.alike) == ([3, 4], 2)


def test_chances_grow_with_what_is_alike_and_follow_what_happens():
    text = list(range(100))
    lookup = Lookup([*text, 0, 1])
    before = [chance for _, chance in zip(range(40), lookup.chances(), strict=False)]
    assert before == sorted(before) and 0 < before[0] < 0.5 < before[-1] < 1
    for token in text[2:60]:
        lookup.push(token)
    assert next(lookup.chances()) > before[-1]
    wrong = Lookup([*text, 0, 1])
    for i in range(0, 60, 3):
        wrong.push(200 + i)
        wrong.push(i)
        wrong.push(i + 1)
    assert next(wrong.chances()) < before[0] / 2


def test_the_first_chances_are_those_that_were_measured():
    chances = Lookup([*range(9), 0, 1]).chances()
    by_alike = dict(zip(range(2, 80), chances, strict=False))
    assert [by_alike[n] for n in (2, 3, 7, 8, 15, 16, 31, 32, 79)] == [
        *(0.3, 0.5, 0.75, 0.85, 0.85, 0.9, 0.9, 0.97, 0.97)
    ]


def test_a_token_costs_microseconds():
    chance = random.Random(0)
    lookup = Lookup([chance.randrange(300) for _ in range(20_000)])
    tokens = [chance.randrange(300) for _ in range(20_000)]
    began = time.process_time()
    for token in tokens:
        lookup.push(token)
    assert (time.process_time() - began) / len(tokens) < 20e-6  # 0.7e-6 on an idle machine


def test_costs_are_medians_and_those_not_seen_lie_between():
    costs = Costs()
    for seconds in (1.0, 9.0, 1.2):
        assert not costs.measured(1)
        costs.note(1, seconds)
    assert costs.measured(1) and costs.of(1) == 1.2
    assert 1.2 < costs.of(2) < 2.4 and costs.of(4) > costs.of(2)
    for seconds in (2.0, 2.0):
        costs.note(5, seconds)
    assert costs.of(5) == 2.0 and costs.largest == 5
    assert costs.of(3) == pytest.approx((costs.of(1) + costs.of(5)) / 2)
    assert costs.of(9) == pytest.approx(2 * costs.of(5) - costs.of(1))
    for _ in range(500):
        costs.note(1, 1.0)
    assert costs.of(5) < 1.5  # long ago: it is worth another try


class Clock:
    """The time on a machine whose batches take as long as a table says, with a graph if the size is
    new."""

    def __init__(self, costs: dict[int, float], graph: float = 1.0):
        self.costs, self.graph = costs, graph
        self.now, self.sizes = 1.0, list[int]()

    def perf_counter(self) -> float:
        return self.now

    def compute(self, size: int) -> None:
        self.now += self.costs[size] + (0 if size in self.sizes else self.graph)
        self.sizes.append(size)


Run = Callable[..., float]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    """`run(clock, prompt, answer, others)`: how much faster an answer is with guesses, beside
    others that have none."""

    def spoken(clock: Clock, prompt: list[int], answer: list[int], others: int = 0) -> float:
        monkeypatch.setattr(speculation, "time", clock)
        policy, lookup = Speculation(1 << 20, 64), Lookup(prompt)
        slot = _slot(prompt, lookup)
        beside = [_slot(prompt, None) for _ in range(others)]
        said = steps = 0
        while said < len(answer):
            slot.request.left = len(answer) - said
            start = len(slot.tokens)
            guesses = next(iter(policy.drafts([slot, *beside]).values()), [])
            clock.compute(1 + others + len(guesses))
            slot.tokens.append(0)
            slot.accepted = 0
            for guess in [*guesses, None]:
                lookup.push(answer[said])
                said += 1
                if guess != answer[said - 1]:
                    break
                slot.tokens.append(0)
                slot.accepted += 1
            work: list[Any] = [_work(slot, start, 1 + len(guesses))]
            work += [_work(one, len(one.tokens), 1) for one in beside]
            policy.computed(work, len(set(clock.sizes)))
            steps += 1
        return (clock.costs[1 + others] * len(answer) + clock.graph) / (clock.now - 1.0)

    return spoken


class _Slot(SimpleNamespace):
    __hash__ = object.__hash__  # type: ignore[assignment]


def _slot(prompt: Sequence[int], lookup: Lookup | None) -> Any:
    request = SimpleNamespace(lookup=lookup, left=0)
    return _Slot(tokens=list(prompt), pending=[0], request=request, accepted=0, replayed=0)


def _work(slot: Any, start: int, size: int) -> Any:
    return SimpleNamespace(sequence=slot, start=start, numbers=[0] * size, drafted=size - 1)


def test_an_edited_text_is_said_faster(run: Run):
    passage = random.Random(1).choices(range(30_000), k=600)
    edited = [40_000 + i if i % 40 == 39 else token for i, token in enumerate(passage)]
    clock = Clock(LINEAR)
    assert run(clock, passage, edited) > 0.75 * 16 / LINEAR[16]
    assert set(clock.sizes) <= {1, *SIZES}
    assert run(Clock(dict.fromkeys(LINEAR, 1.0)), passage, edited) > 6


def test_a_text_that_does_not_repeat_is_hardly_slower(run: Run):
    chance = random.Random(2)
    new = [chance.randrange(30_000) for _ in range(400)]
    assert run(Clock(LINEAR), new, new[::-1]) > 0.999
    # Pairs come again all the time, and nothing follows from them.
    pairs = [token for _ in range(200) for token in (5, 6, chance.randrange(30_000))]
    clock = Clock(LINEAR)
    assert run(clock, pairs[:90], pairs[90:]) > 0.97


@pytest.mark.parametrize("graph", [1.0, 20.0])
def test_where_batches_do_not_pay_little_is_lost(run: Run, graph: float):
    passage = random.Random(3).choices(range(30_000), k=600)
    costs = {size: float(size) for size in LINEAR}
    # One trial may take all that a graph takes.
    assert run(Clock(costs, graph), passage, passage) > 0.95 - 2 * graph / len(passage)


def test_a_slower_machine_tries_as_often(run: Run):
    passage = random.Random(3).choices(range(30_000), k=600)
    clocks = [Clock({n: float(n * unit) for n in LINEAR}, unit) for unit in (1, 1024)]
    for clock in clocks:
        run(clock, passage, passage)
    assert clocks[0].sizes == clocks[1].sizes and 0 < sum(n > 1 for n in clocks[0].sizes) < 100


def test_where_others_fill_the_batch_nothing_is_guessed(run: Run):
    passage = random.Random(4).choices(range(30_000), k=400)
    # Up to 8 tokens take as long as one.
    flat = {size: max(1.0, size / 8) for size in LINEAR}
    assert run(Clock(flat), passage, passage) > 5
    clock = Clock(flat)
    assert run(clock, passage, passage, others=7) > 0.97
    assert sum(size > 8 for size in clock.sizes) < 20


def test_those_who_asked_for_no_guesses_wait_a_quarter_longer_at_most(run: Run):
    passage = random.Random(5).choices(range(30_000), k=400)
    cheap = {size: 1 + 0.05 * (size - 1) for size in LINEAR}
    alone, beside = Clock(cheap), Clock(cheap)
    assert run(alone, passage, passage) > 4
    assert run(beside, passage, passage, others=1) > 2
    assert max(alone.sizes) == max(SIZES)
    assert 1.1 * cheap[2] < cheap[max(beside.sizes)] <= 1.25 * cheap[2]
