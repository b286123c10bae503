"""Many requests at once: each gets what it would get alone."""

from __future__ import annotations

import asyncio
import gc
import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ggmodel
from ggmodel.errors import Busy, ComputeError, GraphError
from ggmodel.gguf_file import MemorySource
from ggmodel.ml.process import RunnerProcess
from ggmodel.model import Step
from ggmodel.runner import LoadedModel, Sampler
from ggmodel.runner.engine.step import Chunk
from ggmodel.runner.loading.preparation import Preparation
from ggmodel.runner.options import Options
from ggmodel.runner.requests.generation import Generation
from tests.runner.ahead import prepared
from tests.runner.engine.alike import nothing_is_in_use, same_or_tied

STORIES = Path(__file__).parents[3] / "examples" / "assets" / "stories.gguf"
# ggml's fused attention sums up in F16, in tiles that hang on the batch, and it rounds activations
# to 8 bits before they meet 8-bit weights: a bit that falls the other way moves logits by more than
# a tie.
EXACT: dict[str, Any] = {"kv_type": "f32", "flash_attention": "off"}


@pytest.fixture(scope="module", params=["when needed", "ahead"])
def stories(unrounded: MemorySource, request: pytest.FixtureRequest) -> Iterator[LoadedModel]:
    """Batches are prepared when they are needed, or, as where another processor computes, while
    the one before is computed."""
    with (
        prepared(request.param),
        ggmodel.load(
            unrounded, parallel=8, context_length=128, batch_size=64, threads=2, **EXACT
        ) as model,
    ):
        yield model


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_64_requests_over_8_slots_with_cancellations(
    stories: LoadedModel, unrounded: MemorySource, seed: int
):
    chance = random.Random(seed)
    words = "once upon a time there was a little fox who liked the sea and a bear".split()
    prompts = [
        stories.tokenize(" ".join(chance.choices(words, k=chance.randint(1, 40))))
        for _ in range(64)
    ]
    lengths = [chance.randint(1, 40) for _ in prompts]
    cancelled = {i: chance.randint(0, 5) for i in range(64) if chance.random() < 0.25}
    answers: dict[int, list[int]] = {}
    errors: list[BaseException] = []

    def serve(indices: list[int]) -> None:
        try:
            for i in indices:
                stream = stories.stream(prompts[i], max_tokens=lengths[i], temperature=0)
                tokens = []
                for piece in stream:
                    tokens.append(piece.token)
                    if cancelled.get(i) == len(tokens):
                        stream.close()
                        break
                answers[i] = tokens
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=serve, args=(list(range(n, 64, 16)),)) for n in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive()
    assert not errors
    nothing_is_in_use(stories)
    ties = 0
    with ggmodel.load(unrounded, context_length=128, threads=2, **EXACT) as alone:
        for i, got in answers.items():
            done = alone.generate(prompts[i], max_tokens=lengths[i], temperature=0)
            want = done.tokens[: len(got)] if i in cancelled else done.tokens
            ties += not same_or_tied(alone, prompts[i], got, want)
    assert ties <= 3  # none so far


def test_a_prompt_that_begins_like_an_earlier_one_computes_the_rest(stories: LoadedModel):
    prompt = stories.tokenize("Once upon a time, there was a little fox named Pip.")
    first = stories.generate(prompt, max_tokens=8, temperature=0)
    steps: list[int] = []
    start = stories.engine.cache.start_forward

    def noted(step, reserve=False):
        steps.append(len(step.tokens))
        start(step, reserve)

    stories.engine.cache.start_forward = noted  # type: ignore[method-assign]
    try:
        again = stories.generate(prompt, max_tokens=8, temperature=0)
        assert steps[0] == 1  # of what is cached, one token is computed again for its output
        assert again.tokens == first.tokens
        steps.clear()
        longer = stories.generate([*prompt, *first.tokens, 65], max_tokens=1, temperature=0)
        assert steps[0] == 2 and len(longer.tokens) == 1  # the last token was never computed
    finally:
        del stories.engine.cache.start_forward  # type: ignore[method-assign]
    nothing_is_in_use(stories)


def test_a_busy_slot_lends_its_prefix(stories: LoadedModel):
    prompt = stories.tokenize("One day, a small bear found a boat by the river.")
    want = stories.generate(prompt, max_tokens=20, temperature=0).tokens
    streams = [stories.stream(prompt, max_tokens=20, temperature=0) for _ in range(4)]
    tokens = [[next(stream).token] for stream in streams]
    cache: Any = stories.engine.cache
    shared = cache.table.member.sum(axis=0).max()
    assert shared >= 4  # sequences have cells in common
    for stream, begun in zip(streams, tokens, strict=True):
        begun += [piece.token for piece in stream]
    for got in tokens:
        same_or_tied(stories, prompt, got, want)
    nothing_is_in_use(stories)


def test_requests_wait_for_a_slot(stories: LoadedModel):
    with ggmodel.load(STORIES, context_length=64, threads=1) as model:
        first = model.stream("Once", max_tokens=10, temperature=0)
        next(first)
        answers: list[str] = []
        thread = threading.Thread(
            target=lambda: answers.append(model.generate("One day", max_tokens=3, temperature=0))
        )
        thread.start()
        time.sleep(0.2)
        assert thread.is_alive() and not answers
        assert len(list(first)) == 9
        thread.join(20)
        assert answers
        # A thread that would wait for itself is told.
        first = model.stream("Once", max_tokens=10)
        next(first)
        with pytest.raises(Busy, match="parallel"):
            model.generate("One day")
        first.close()
        assert model.generate("One day", max_tokens=2).tokens


class Failing(Sampler):
    """Fails at its third token."""

    calls = 0

    def draw(self, logits, random):
        self.calls += 1
        if self.calls == 3:
            raise ComputeError("this sampler fails")
        return super().draw(logits, random)


def test_batches_are_prepared_while_others_are_computed(source: MemorySource):
    used: list[bool] = []
    with RunnerProcess() as runner:
        steps = Preparation(source, Options(context_length=64, batch_size=4), runner=runner)
        with steps:
            steps.take_steps()
            steps.backend.load()
            engine = steps.engine
            place = engine.steps.place

            def watched(chunks: list[Chunk]) -> Step:
                prepared = engine.sequences.prepared
                step = place(chunks)
                used.append(prepared is not None and step.placed is prepared.placed)
                return step

            engine.steps.place = watched  # type: ignore[method-assign]
            prompt = np.arange(3, 13, dtype=np.int32)
            options: dict[str, Any] = {"max_tokens": 6, "stop": ()}
            done = Generation(engine, None, prompt, Sampler(0), **options).run()
    with ggmodel.load(source, context_length=64) as model:
        assert model.generate(prompt.tolist(), max_tokens=6, temperature=0).tokens == done.tokens
    # Three batches of the prompt, five tokens; nothing comes before the first.
    assert used == [False] + [True] * 7


def test_one_request_that_fails_ends_alone(stories: LoadedModel):
    good = stories.stream("Once upon a time", max_tokens=12, temperature=0)
    want = stories.generate("Once upon a time", max_tokens=12, temperature=0).tokens
    bad = stories.request("Once upon a time", sampler=Failing(0)).pieces()
    tokens = [next(good).token]
    next(bad)
    next(bad)
    with pytest.raises(ComputeError, match="this sampler fails"):
        next(bad)
    tokens += [piece.token for piece in good]
    same_or_tied(stories, stories.tokenize("Once upon a time"), tokens, want)
    nothing_is_in_use(stories)


def test_a_stream_that_is_dropped_frees_its_slot(stories: LoadedModel):
    for _ in range(20):
        stream = stories.stream("Once", temperature=0)
        next(stream)
        del stream
    gc.collect()
    nothing_is_in_use(stories)


def test_closing_the_model_ends_requests(source: MemorySource):
    model = ggmodel.load(source, context_length=64, parallel=2)
    stream = model.stream([1, 2, 3], temperature=0)
    next(stream)
    model.close()
    with pytest.raises(GraphError, match="closed"):
        list(stream)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_a_text_four_times_the_context_stays_fluent(seed: int):
    with ggmodel.load(STORIES, context_length=128, threads=2) as model:
        assert model.tokenizer is not None
        never_ends = dict.fromkeys(model.tokenizer.eog, -100.0)
        done = model.generate(
            "Once upon a time",
            max_tokens=4 * 128,
            context_shift=True,
            num_keep=4,
            temperature=0.7,
            seed=seed,
            logit_bias=never_ends,
        )
        assert (len(done.tokens), done.finish_reason) == (512, "length")
        # The model gives text from the training data -0.7, random tokens -13.
        pieces = [done.tokens[i : i + 96] for i in range(0, 512 - 96, 80)]
        assert all(model.score(piece).mean() > -2.5 for piece in pieces)
        without = model.generate("Once upon a time", temperature=0, logit_bias=never_ends)
        assert without.finish_reason == "length"
        assert len(without.tokens) == 128 - len(model.tokenize("Once upon a time"))


def test_coroutines_share_the_engine(stories: LoadedModel):
    prompts = [f"One day, a {animal}" for animal in ("fox", "bear", "cat", "bird", "dog")] * 3

    async def one(prompt: str) -> list[int]:
        request = stories.request(prompt, sampler=Sampler(0), max_tokens=12)
        return [piece.token async for piece in request.apieces()]

    async def all_of_them() -> list[list[int]]:
        return await asyncio.gather(*map(one, prompts))

    for prompt, got in zip(prompts, asyncio.run(all_of_them()), strict=True):
        want = stories.generate(prompt, max_tokens=12, temperature=0).tokens
        same_or_tied(stories, stories.tokenize(prompt), got, want)
    nothing_is_in_use(stories)


def test_a_coroutine_that_is_cancelled_frees_its_slot(stories: LoadedModel):
    async def leave() -> None:
        request = stories.request("One day", sampler=Sampler(0))
        async for _ in request.apieces():
            break
        task = asyncio.create_task(anext(stories.request("Once", sampler=Sampler(0)).apieces()))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(leave())
    end = time.monotonic() + 5  # for the step that was under way
    while stories.engine.sequences.working and time.monotonic() < end:
        time.sleep(0.01)
    nothing_is_in_use(stories)


def test_a_coroutine_that_waits_for_itself_is_told(source: MemorySource):
    async def wait() -> None:
        first = model.request([1, 2, 3], sampler=Sampler(0)).apieces()
        await anext(first)
        with pytest.raises(Busy, match="parallel"):
            await anext(model.request([4, 5], sampler=Sampler(0)).apieces())
        await first.aclose()
        assert (await anext(model.request([4, 5], sampler=Sampler(0)).apieces())).token >= 0

    with ggmodel.load(source, context_length=64) as model:
        asyncio.run(asyncio.wait_for(wait(), 30))


class Interrupting(Sampler):
    """Raises what Ctrl-C does."""

    def draw(self, logits, random):
        raise KeyboardInterrupt


def test_an_interruption_in_a_sampler_belongs_to_its_own_request(stories: LoadedModel):
    want = stories.generate("Once upon a time", max_tokens=8, temperature=0).tokens
    other = stories.stream("Once upon a time", max_tokens=8, temperature=0)
    tokens = [next(other).token]
    with pytest.raises(KeyboardInterrupt):
        stories.generate("One day", sampler=Interrupting(0), max_tokens=8)
    assert tokens + [piece.token for piece in other] == want
    nothing_is_in_use(stories)
