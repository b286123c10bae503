"""Whose turn it is: nobody starves, and who is interrupted leaves the door open."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import pytest

import ggmodel
from ggmodel.errors import Busy, ComputeError
from ggmodel.gguf_file import MemorySource
from ggmodel.runner import LoadedModel, Sampler
from ggmodel.runner.engine.batches import Work
from ggmodel.runner.engine.turns import Turns

PROMPT = [1, 5, 9]


@pytest.fixture(autouse=True)
def nobody_looks_by_itself(monkeypatch: pytest.MonkeyPatch):
    """Or a sleeper that nobody wakes would do so later, unseen."""
    monkeypatch.setattr("ggmodel.runner.engine.turns._LOOK", 3600)


@pytest.fixture
def both(source: MemorySource):
    with ggmodel.load(source, kv_type="f32", context_length=256, parallel=2) as model:
        yield model


def within(seconds: float, work: Callable[[], object]) -> None:
    """Fails unless the work is done in time."""
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(seconds)
    assert not thread.is_alive()


@pytest.mark.parametrize("what", ["embed", "score", "logits"])
def test_who_computes_apart_in_a_loop_lets_others_go_on(both: LoadedModel, what: str):
    over = threading.Event()
    calls = 0

    def hog() -> None:
        nonlocal calls
        while not over.is_set():
            {"embed": both.embed, "score": both.score, "logits": both.logits}[what](
                [PROMPT] if what == "embed" else PROMPT  # type: ignore[arg-type]
            )
            calls += 1

    thread = threading.Thread(target=hog)
    thread.start()
    try:
        within(20, lambda: both.generate(PROMPT, max_tokens=20))
        counts = [0, 0]

        def embed(n: int) -> None:
            for _ in range(10):
                both.embed([PROMPT])
                counts[n] += 1

        within(20, lambda: embed(0))
    finally:
        over.set()
        thread.join()
    assert calls > 0


def test_a_wait_that_is_interrupted_is_over(monkeypatch: pytest.MonkeyPatch):
    turns = Turns(lambda: False, lambda request: None)
    entered, go_on = threading.Event(), threading.Event()

    def hold() -> None:
        with turns.alone():
            entered.set()
            go_on.wait()

    holder = threading.Thread(target=hold)
    holder.start()
    entered.wait()
    with monkeypatch.context() as patch:

        def interrupted(self: object, timeout: float | None = None) -> bool:
            raise KeyboardInterrupt

        patch.setattr(threading.Condition, "wait", interrupted)
        with pytest.raises(KeyboardInterrupt), turns.alone():
            pass
    go_on.set()
    holder.join()
    within(5, lambda: turns.alone().__enter__())


def test_a_sampler_that_asks_its_own_model_is_told(both: LoadedModel):
    class Asking(Sampler):
        def draw(self, logits: np.ndarray, random: np.random.Generator) -> int:
            return both.generate(PROMPT, max_tokens=1).tokens[0]

    def ask() -> None:
        with pytest.raises(Busy, match="very model"):
            both.generate(PROMPT, sampler=Asking(0), max_tokens=2)

    within(20, ask)
    assert len(both.generate(PROMPT, max_tokens=2).tokens) == 2
    assert not both.engine.slots.working


def test_a_step_that_fails_ends_what_coroutines_wait_for(
    both: LoadedModel, monkeypatch: pytest.MonkeyPatch
):
    def fails() -> list[Work]:
        raise ComputeError("something that should not be")

    async def ask() -> list[int]:
        return [piece.token async for piece in both.astream(PROMPT, max_tokens=3, temperature=0)]

    with monkeypatch.context() as patch:
        patch.setattr(both.engine, "_collect", fails)
        with pytest.raises(ComputeError, match="should not be"):
            asyncio.run(asyncio.wait_for(ask(), 20))
    tokens = asyncio.run(asyncio.wait_for(ask(), 20))
    assert tokens == both.generate(PROMPT, max_tokens=3, temperature=0).tokens


@pytest.mark.parametrize(("batch_size", "parallel"), [(1, 2), (2, 3), (2, 2)])
def test_a_prompt_gets_on_beside_more_answers_than_a_batch_holds(
    source: MemorySource, batch_size: int, parallel: int
):
    with ggmodel.load(
        source, kv_type="f32", context_length=256, batch_size=batch_size, parallel=parallel
    ) as model:
        busy = [model.request([3 + n], max_tokens=200) for n in range(parallel - 1)]
        for request in busy:
            request._whole = True  # they want to go on, whether or not anybody listens
            request.begin()
        late = model.generate(list(range(2, 12)), max_tokens=2)
        assert len(late.tokens) == 2
        assert all(not request.done for request in busy)
        for request in busy:
            model.engine.cancel(request)


def test_what_a_shift_left_is_no_prefix(source: MemorySource):
    with ggmodel.load(source, kv_type="f32", flash_attention="off", context_length=32) as model:
        model.generate(PROMPT, max_tokens=60, context_shift=True, num_keep=2, temperature=0)
        (slot,) = model.engine.slots.all
        held = list(slot.tokens)
        assert len(held) > 10
        again = model.generate([*held[:12], 4], max_tokens=4, temperature=0, top_logprobs=1)
    with ggmodel.load(source, kv_type="f32", flash_attention="off", context_length=32) as model:
        fresh = model.generate([*held[:12], 4], max_tokens=4, temperature=0, top_logprobs=1)
    assert again.tokens == fresh.tokens
    np.testing.assert_allclose(again.logprobs, fresh.logprobs, atol=1e-5)  # type: ignore[arg-type]


def test_a_sleeper_that_is_interrupted_as_it_is_woken_wakes_another(
    monkeypatch: pytest.MonkeyPatch,
):
    """Of two that wait, the first is told to go on and gets Ctrl-C that very moment."""
    interrupted = threading.Event()

    class Interrupted(threading.Condition):
        def wait(self, timeout: float | None = None) -> bool:
            woken = super().wait(timeout)
            if not interrupted.is_set() and threading.current_thread().name == "first":
                interrupted.set()
                raise KeyboardInterrupt
            return woken

    turns = Turns(lambda: True, lambda request: None)
    done = {"first": False, "second": False}
    turns._stepper = -1  # somebody is at it
    monkeypatch.setattr("ggmodel.runner.engine.turns.threading.Condition", Interrupted)

    def wait(name: str) -> None:
        request: Any = object()
        turns._step = lambda: done.update(second=True) or True  # type: ignore[func-returns-value]
        with suppress(KeyboardInterrupt):
            turns.wait(request, lambda: done[name])

    threads = []
    for name in done:
        threads.append(threading.Thread(target=wait, args=[name], name=name, daemon=True))
        threads[-1].start()
        while len(turns._sleepers) < len(threads):
            time.sleep(0.001)
    turns._stepper = 0
    turns._end()
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()
    assert interrupted.is_set() and done["second"]
