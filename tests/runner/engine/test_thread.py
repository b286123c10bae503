"""The engine's thread: everybody's turn comes, nobody hangs, and it goes with its model."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ggmodel
from ggmodel.errors import Busy, Cancelled, ComputeError, GraphError, OutOfMemory
from ggmodel.gguf_file import MemorySource
from ggmodel.runner import LoadedModel, Sampler
from ggmodel.runner.engine.scoring import Scoring
from ggmodel.runner.engine.sequences import Sequence
from ggmodel.runner.engine.step import Chunk
from ggmodel.runner.requests.generation import Generation

STORIES = Path(__file__).parents[3] / "examples" / "assets" / "stories.gguf"
PROMPT = [1, 5, 9]
DEADLINE = 20.0  # seconds, of which all of these need one or two


@pytest.fixture
def both(source: MemorySource) -> Iterator[LoadedModel]:
    with ggmodel.load(source, kv_type="f32", context_length=256, parallel=2) as model:
        yield model


def within(seconds: float, work: Callable[[], object]) -> None:
    """Fails unless the work is done in time."""
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(seconds)
    assert not thread.is_alive()


def engine_threads() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name == "ggmodel-engine"]


@pytest.mark.parametrize("what", ["embed", "score", "logits"])
def test_jobs_in_a_loop_let_requests_and_other_jobs_go_on(both: LoadedModel, what: str):
    over, calls = threading.Event(), 0

    def hog() -> None:
        nonlocal calls
        while not over.is_set():
            {"embed": both.embed, "score": both.score, "logits": both.logits}[what](
                [PROMPT] if what == "embed" else PROMPT  # type: ignore[arg-type]
            )
            calls += 1

    thread = threading.Thread(target=hog, daemon=True)
    thread.start()
    try:
        within(DEADLINE, lambda: both.generate(PROMPT, max_tokens=20))
        within(DEADLINE, lambda: [both.embed([PROMPT]) for _ in range(10)])
    finally:
        over.set()
        thread.join(DEADLINE)
    assert calls > 0


@pytest.mark.parametrize("what", ["generate", "embed", "logits", "close"])
def test_a_sampler_that_asks_its_own_model_is_told(both: LoadedModel, what: str):
    class Asking(Sampler):
        def draw(self, logits: np.ndarray, random: np.random.Generator) -> int:
            {
                "generate": lambda: both.generate(PROMPT, max_tokens=1),
                "embed": lambda: both.embed([PROMPT]),
                "logits": lambda: both.logits(PROMPT),
                "close": both.close,
            }[what]()
            return 3

    def ask() -> None:
        with pytest.raises(Busy, match="very model"):
            both.generate(PROMPT, sampler=Asking(0), max_tokens=2)

    within(DEADLINE, ask)
    assert len(both.generate(PROMPT, max_tokens=2).tokens) == 2
    assert not both.engine.sequences.working


@pytest.mark.parametrize("where", ["coroutine", "thread"])
def test_a_step_that_fails_ends_the_requests(
    both: LoadedModel, monkeypatch: pytest.MonkeyPatch, where: str
):
    def fails() -> list[Chunk]:
        raise ComputeError("something that should not be")

    async def ask() -> list[int]:
        return [piece.token async for piece in both.astream(PROMPT, max_tokens=3, temperature=0)]

    def tokens() -> list[int]:
        if where == "thread":
            return both.generate(PROMPT, max_tokens=3, temperature=0).tokens
        return asyncio.run(asyncio.wait_for(ask(), DEADLINE))

    want = tokens()
    with monkeypatch.context() as patch:
        patch.setattr(both.engine.scheduler, "schedule", fails)
        with pytest.raises(ComputeError, match="should not be"):
            tokens()
    assert tokens() == want


def test_requests_are_told_even_if_their_slots_cannot_be_freed(
    both: LoadedModel, monkeypatch: pytest.MonkeyPatch
):
    def fails(*_: object) -> None:
        raise ComputeError("something that should not be")

    def ask() -> None:
        with pytest.raises(ComputeError, match="should not be"):
            both.generate(PROMPT, max_tokens=3)

    with monkeypatch.context() as patch:
        patch.setattr(both.engine.scheduler, "schedule", fails)
        patch.setattr(Sequence, "release", fails)
        within(DEADLINE, ask)
    assert len(both.generate(PROMPT, max_tokens=3).tokens) == 3


def test_a_stream_is_computed_a_little_ahead_and_no_further(both: LoadedModel):
    stream = both.stream(PROMPT, temperature=0)
    next(stream)
    both.engine.call(lambda: None)
    (slot,) = both.engine.sequences.working
    deadline, before = time.monotonic() + DEADLINE, -1
    while len(slot.tokens) > before and time.monotonic() < deadline:
        before = len(slot.tokens)
        time.sleep(0.05)
    assert len(PROMPT) + 4 <= len(slot.tokens) <= len(PROMPT) + 12
    rest = [next(stream).token for _ in range(60)]  # and it goes on when pieces are taken
    assert len(rest) == 60
    stream.close()


def test_a_slow_consumer_gets_everything(both: LoadedModel):
    want = both.generate(PROMPT, max_tokens=40, temperature=0).tokens
    got = []
    for i, piece in enumerate(both.stream(PROMPT, max_tokens=40, temperature=0)):
        got.append(piece.token)
        if i % 10 == 0:
            time.sleep(0.02)
    assert got == want


@pytest.mark.parametrize(("batch_size", "parallel"), [(1, 2), (2, 3), (2, 2)])
def test_a_prompt_gets_on_beside_more_answers_than_a_batch_holds(
    source: MemorySource, batch_size: int, parallel: int
):
    with ggmodel.load(
        source, kv_type="f32", context_length=256, batch_size=batch_size, parallel=parallel
    ) as model:
        busy = [model.request([3 + n], max_tokens=200) for n in range(parallel - 1)]

        def run(request: Generation) -> None:
            with pytest.raises(Cancelled):
                request.run()

        threads = [threading.Thread(target=run, args=[one], daemon=True) for one in busy]
        for thread in threads:
            thread.start()
        late = model.generate(list(range(2, 12)), max_tokens=2)
        assert len(late.tokens) == 2
        for request in busy:
            model.engine.cancel(request)
        for thread in threads:
            thread.join(DEADLINE)
            assert not thread.is_alive()


def test_the_rest_of_a_shift_is_no_prefix(source: MemorySource):
    with ggmodel.load(source, kv_type="f32", flash_attention="off", context_length=32) as model:
        model.generate(PROMPT, max_tokens=60, context_shift=True, num_keep=2, temperature=0)
        (slot,) = model.engine.sequences.all
        held = list(slot.tokens)
        assert len(held) > 10
        again = model.generate([*held[:12], 4], max_tokens=4, temperature=0, top_logprobs=1)
    with ggmodel.load(source, kv_type="f32", flash_attention="off", context_length=32) as model:
        fresh = model.generate([*held[:12], 4], max_tokens=4, temperature=0, top_logprobs=1)
    assert again.tokens == fresh.tokens
    np.testing.assert_allclose(again.logprobs, fresh.logprobs, atol=1e-5)  # type: ignore[arg-type]


class Interrupted(Exception):
    """In place of Ctrl-C, which comes in the main thread alone."""


@dataclass
class Endless:
    """A job that looks whether somebody waits for it."""

    model: LoadedModel
    began: threading.Event = field(default_factory=threading.Event)
    ended: threading.Event = field(default_factory=threading.Event)

    def __call__(self) -> None:
        self.began.set()
        end = time.monotonic() + DEADLINE
        try:
            while time.monotonic() < end:
                self.model.engine.check_abandoned()
                time.sleep(0.001)
        except Cancelled:
            self.ended.set()
            raise


def test_work_that_nobody_waits_for_ends(both: LoadedModel):
    work = Endless(both)

    def give_up(signum: int, frame: object) -> None:
        raise Interrupted

    import signal

    before = signal.signal(signal.SIGALRM, give_up)
    try:
        threading.Thread(
            target=lambda: (work.began.wait(DEADLINE), os.kill(os.getpid(), signal.SIGALRM)),
            daemon=True,
        ).start()
        with pytest.raises(Interrupted):
            both.engine.call(work)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert work.ended.wait(DEADLINE)
    assert len(both.generate(PROMPT, max_tokens=2).tokens) == 2


def test_work_whose_caller_is_interrupted_before_it_waits_ends(
    both: LoadedModel, monkeypatch: pytest.MonkeyPatch
):
    work, thread = Endless(both), both.engine
    submit = thread._send

    def interrupted(message: Any) -> None:
        submit(message)
        assert work.began.wait(DEADLINE)
        raise Interrupted

    monkeypatch.setattr(thread, "_send", interrupted)
    with pytest.raises(Interrupted):
        both.engine.call(work)
    assert work.ended.wait(DEADLINE)


def test_closing_fails_what_waits_and_comes_later(both: LoadedModel):
    go_on, entered, errors = threading.Event(), threading.Event(), list[Exception]()

    def hold() -> None:
        entered.set()
        go_on.wait(DEADLINE)

    def ask() -> None:
        try:
            both.logits(PROMPT)
        except GraphError as error:
            errors.append(error)

    threads = [threading.Thread(target=both.engine.call, args=[hold], daemon=True)]
    threads[0].start()
    assert entered.wait(DEADLINE)
    threads.append(threading.Thread(target=ask, daemon=True))
    threads.append(threading.Thread(target=both.close, daemon=True))
    for thread in threads[1:]:
        thread.start()
        time.sleep(0.05)
    go_on.set()
    for thread in threads:
        thread.join(DEADLINE)
        assert not thread.is_alive()
    assert len(errors) <= 1  # it was in time, or it was told
    for work in (lambda: both.generate(PROMPT), lambda: both.embed([PROMPT])):
        with pytest.raises(GraphError, match="closed"):
            work()
    both.close()


def test_the_thread_begins_with_the_first_request_and_goes_with_the_model(source: MemorySource):
    before = len(engine_threads())
    model = ggmodel.load(source, context_length=64)
    assert len(engine_threads()) == before
    model.generate(PROMPT, max_tokens=2)
    assert len(engine_threads()) == before + 1
    engine = weakref.ref(model.engine)
    del model
    gc.collect()
    end = time.monotonic() + DEADLINE
    while len(engine_threads()) > before and time.monotonic() < end:
        time.sleep(0.01)
    assert len(engine_threads()) == before and engine() is None


FORKS = """
import os, sys, threading, ggmodel
model = ggmodel.load(sys.argv[1], threads=1, parallel=2)
stream = model.stream("One day", max_tokens=200)
next(stream)
thread = threading.Thread(target=lambda: model.generate("A bear", max_tokens=400), daemon=True)
thread.start()
child = os.fork()
if child:
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert len(model.generate("Once", max_tokens=3).tokens) == 3
    sys.exit(code)
def say():
    for ask in (
        lambda: model.generate("Once", max_tokens=2),
        lambda: model.embed(["Once"]),
        lambda: model.logits("Once"),
        lambda: list(stream),
        lambda: list(model.stream("Once")),
    ):
        try:
            ask()
        except ggmodel.errors.GraphError as error:
            if "forked" not in str(error):
                return 8
        else:
            return 9
    model.close()
    return 7
code = say()
if sys.argv[2] == "at once":
    os._exit(code)
sys.exit(code)
"""


@pytest.mark.parametrize("how", ["at once", "as usual"])
def test_a_child_that_was_forked_during_a_step_is_told(how: str):
    done = subprocess.run([sys.executable, "-c", FORKS, str(STORIES), how], timeout=60)
    assert done.returncode == 7


ENDS = """
import sys, ggmodel
model = ggmodel.load(sys.argv[1])
stream = model.stream("Once upon a time", max_tokens=200)
next(stream)
"""


def test_the_process_ends_while_a_stream_is_open():
    done = subprocess.run(
        [sys.executable, "-c", ENDS, str(STORIES)], timeout=60, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")


class Five(Sampler):
    """Always the same token, so that nothing ends by itself."""

    def draw(self, logits: np.ndarray, random: np.random.Generator) -> int:
        return 5


def test_busy_is_said_behind_somebody_elses_request(source: MemorySource):
    with ggmodel.load(source, kv_type="f32", context_length=256) as model:
        stream = model.stream(PROMPT, sampler=Five(0))
        next(stream)
        other = threading.Thread(target=lambda: model.generate(PROMPT, max_tokens=2), daemon=True)
        other.start()
        while not model.engine.scheduler.waiting and other.is_alive():
            time.sleep(0.001)
        with pytest.raises(Busy, match="parallel"):
            model.generate(PROMPT, max_tokens=2)
        stream.close()
        other.join(DEADLINE)
        assert not other.is_alive()


def test_threads_that_wait_for_each_other_are_told(both: LoadedModel):
    barrier, said = threading.Barrier(2), list[str]()

    def hold_and_ask() -> None:
        with both.stream(PROMPT, sampler=Five(0)) as stream:
            next(stream)
            barrier.wait(DEADLINE)
            try:
                both.generate(PROMPT, max_tokens=2)
                said.append("answered")
            except Busy:
                said.append("busy")

    threads = [threading.Thread(target=hold_and_ask, daemon=True) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE)
        assert not thread.is_alive()
    assert sorted(said) == ["answered", "busy"]


def test_jobs_do_not_hide_that_a_request_is_stuck(source: MemorySource):
    with ggmodel.load(source, kv_type="f32", context_length=256) as model:
        over = threading.Event()

        def hog() -> None:
            while not over.is_set():
                model.engine.call(lambda: time.sleep(0.001))

        hogs = [threading.Thread(target=hog, daemon=True) for _ in range(3)]
        for thread in hogs:
            thread.start()
        try:
            stream = model.stream(PROMPT, sampler=Five(0))
            next(stream)
            with pytest.raises(Busy):
                model.generate(PROMPT, max_tokens=2)
        finally:
            over.set()
            for thread in hogs:
                thread.join(DEADLINE)


def test_a_stream_goes_with_its_closed_loop(source: MemorySource):
    with ggmodel.load(source, kv_type="f32", context_length=256) as model:
        loop = asyncio.new_event_loop()
        stream = model.astream(PROMPT, sampler=Five(0))
        loop.run_until_complete(stream.__anext__())
        loop.close()
        del stream
        gc.collect()
        within(DEADLINE, lambda: model.generate(PROMPT, max_tokens=2))


def test_a_request_is_used_once(both: LoadedModel):
    request = both.request(PROMPT, max_tokens=3)
    assert len(request.run().tokens) == 3
    with pytest.raises(GraphError, match="once"):
        request.run()
    request = both.request(PROMPT, max_tokens=3)
    pieces = request.pieces()
    first = next(pieces).token
    with pytest.raises(GraphError, match="once"):
        request.run()
    assert [first, *(piece.token for piece in pieces)] == request.tokens


def test_a_cancelled_answer_is_no_answer(both: LoadedModel):
    class Cancelling(Five):
        def draw(self, logits: np.ndarray, random: np.random.Generator) -> int:
            request.cancel()
            return 5

    request = both.request(PROMPT, sampler=Cancelling(0), max_tokens=200)
    with pytest.raises(Cancelled):
        request.run()


def test_a_stream_is_closed_from_another_thread(both: LoadedModel):
    stream, taken = both.stream(PROMPT, sampler=Five(0)), list[str]()
    first = threading.Event()

    def take() -> None:
        for piece in stream:
            taken.append(piece)
            first.set()

    thread = threading.Thread(target=take, daemon=True)
    thread.start()
    assert first.wait(DEADLINE)
    stream.close()
    thread.join(DEADLINE)
    assert not thread.is_alive() and stream.finish_reason is None


def test_a_thread_that_cannot_start_is_tried_again(
    both: LoadedModel, monkeypatch: pytest.MonkeyPatch
):
    def fails(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", fails)
        with pytest.raises(OutOfMemory, match="can't start new thread"):
            both.generate(PROMPT, max_tokens=2)
    assert len(both.generate(PROMPT, max_tokens=2).tokens) == 2


def test_memory_is_told_while_the_engine_records(both: LoadedModel):
    over, errors = threading.Event(), list[BaseException]()

    def look() -> None:
        while not over.is_set():
            try:
                both.memory.size()
            except BaseException as error:
                errors.append(error)

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    for n in range(1, 12):
        both.logits(list(range(1, n + 1)))
    over.set()
    thread.join(DEADLINE)
    assert errors == []


def test_the_engine_does_not_begin_while_its_memory_is_told(both: LoadedModel):
    looking, enough = threading.Event(), threading.Event()

    def look() -> None:
        looking.set()
        enough.wait(DEADLINE)

    look_on = threading.Thread(target=both.engine.between_steps, args=(look,), daemon=True)
    look_on.start()
    assert looking.wait(DEADLINE)
    ask = threading.Thread(target=both.logits, args=([1, 2],), daemon=True)
    ask.start()
    ask.join(0.3)
    begun = both.engine._thread
    enough.set()
    ask.join(DEADLINE)
    assert begun is None and not ask.is_alive()


def test_masked_logits_are_not_computed_anew(source: MemorySource, monkeypatch: pytest.MonkeyPatch):
    with ggmodel.load(
        source, kv_type="f32", flash_attention="off", context_length=64, parallel=2
    ) as model:
        run = model.engine.graphs.run

        def masked(*args: object) -> np.ndarray:
            rows = run(*args)  # type: ignore[arg-type]
            rows[..., -1] = -np.inf
            return rows

        monkeypatch.setattr(model.engine.graphs, "run", masked)
        model.batch([PROMPT, PROMPT[::-1]], max_tokens=10, temperature=0)
        assert model.engine.graphs.recorded + model.engine.graphs.replayed <= 14


def test_a_sequence_of_ones_own_that_is_lost_says_so(both: LoadedModel):
    with Scoring(both.engine).sequence() as sequence:
        Scoring(both.engine).extend(sequence, np.array(PROMPT, np.int32), 0)
        both.engine.call(lambda: both.engine.cache.wipe(sequence))
        with pytest.raises(ComputeError, match="holds 0 positions, not 3"):
            Scoring(both.engine).extend(sequence, np.array(PROMPT, np.int32), 3)
