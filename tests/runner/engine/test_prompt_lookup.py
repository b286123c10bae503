"""Answers with draft tokens are those without: token by token, whatever ends or interrupts them."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Iterator, Sequence
from itertools import repeat
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

import ggmodel
from ggmodel.convert import from_hf
from ggmodel.errors import ConfigError, KvCacheFull
from ggmodel.gguf_file import MemorySource
from ggmodel.model import find
from ggmodel.runner import Completion, Grammar, LoadedModel, Sampler
from ggmodel.runner.engine.drafting import Costs
from ggmodel.runner.engine.lookup import Lookup
from ggmodel.runner.engine.sequences import common_prefix
from tests.golden.files import load_golden
from tests.kvcache.statespace import MODELS as RECURRENT
from tests.kvcache.statespace import source as recurrent
from tests.runner.ahead import prepared

STORIES = Path(__file__).parents[3] / "examples" / "assets" / "stories.gguf"
EXACT: dict[str, Any] = {"kv_type": "f32", "flash_attention": "off"}
# Kernels round differently at other batch sizes: where the two best tokens are this close, or a
# random number this close to where it would choose another one, the choice is not the model's.
TIE = 1e-3
# A window of 8 positions beside layers without one, and a window of one; chunks of 8.
WINDOWS = [("gemma3", "softcap"), ("gemma3", "window_1"), ("llama4", "interleaved")]
Answers = dict[tuple[int, ...], list[int]]
SENTENCE = "Once upon a time, there was a little fox named Pip. Pip loved to play in the forest."


@pytest.fixture(autouse=True)
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every batch costs the same: as much is guessed as can be."""
    monkeypatch.setattr(Costs, "measured", lambda self, size: True)
    monkeypatch.setattr(Costs, "of", lambda self, size: 1.0)
    monkeypatch.setattr(Costs, "largest", property(lambda self: 32))


@pytest.fixture(scope="module", params=["when needed", "ahead"])
def stories(unrounded: MemorySource, request: pytest.FixtureRequest) -> Iterator[LoadedModel]:
    """Batches are prepared when they are needed, or, as where another processor computes, while
    the one before is computed."""
    with (
        prepared(request.param),
        ggmodel.load(
            unrounded, parallel=4, context_length=256, batch_size=64, threads=1, **EXACT
        ) as model,
    ):
        yield model


class Told(Lookup):
    """Guesses the answer that it was told, a fifth of the tokens wrongly."""

    answers: ClassVar[dict[tuple[int, ...], list[int]]] = {}

    def __init__(self, tokens: Sequence[int]):
        self._answer = self.answers[tuple(tokens)]
        self._at, self._chance = 0, random.Random(len(tokens))
        self.alike = 32

    def push(self, token: int) -> None:
        self._at += 1

    def chances(self) -> Iterator[float]:
        return repeat(0.9)

    def draft(self, n: int) -> list[int]:
        guess = (self._answer[self._at :] + [7] * n)[: self._chance.randint(0, min(n, 9))]
        return [7 if self._chance.random() < 0.2 else token for token in guess]


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Answers:
    """Answers by their prompts, which are guessed in place of what lookup finds."""
    monkeypatch.setattr("ggmodel.runner.requests.generation.Lookup", Told)
    monkeypatch.setattr(Told, "answers", {})
    return Told.answers


def nothing_is_in_use(model: LoadedModel) -> None:
    model.engine.call(lambda: None)  # after what was posted before
    slots, cache = model.engine.sequences.all, model.engine.cache
    assert all(slot.free and not slot.pending for slot in slots)
    for slot in slots:
        assert cache.length(slot.number) == len(slot.tokens)
        for part in getattr(cache, "caches", [cache]):
            held = part.table.position[part.table.member[slot.number]]
            first = max(part.rule.keeps_from(len(slot.tokens)), 0)
            assert set(range(first, len(slot.tokens))) <= set(held) <= set(range(len(slot.tokens)))


def same_or_tied(model: LoadedModel, prompt: Sequence[int], got: Completion, want: Completion):
    """Whether two greedy answers are equal; False where they part at a tie."""
    if got.tokens == want.tokens:
        assert (got, got.finish_reason) == (want, want.finish_reason)
        return True
    n = common_prefix(got.tokens, want.tokens)
    best = np.sort(model.logits([*prompt, *want.tokens[:n]])[-1])[-2:]
    assert best[1] - best[0] < TIE, f"token {n}"
    return False


def prompts(model: LoadedModel, count: int, seed: int) -> list[list[int]]:
    """Beginnings of stories; every other one tells a sentence twice."""
    chance = random.Random(seed)
    animals, names = ["fox", "bear", "cat", "bird", "dog"], ["Pip", "Tom", "Lily", "Ben", "Mia"]
    texts = []
    for i in range(count):
        animal, name = chance.choice(animals), chance.choice(names)
        text = f"Once upon a time there was a {animal} named {name}. {name} liked the sea."
        texts.append(model.tokenize(text + (" " + text[: chance.randint(9, 60)]) * (i % 2)))
    return texts


@pytest.mark.slow
def test_greedy_answers_are_the_same(stories: LoadedModel):
    ties = accepted = drafted = 0
    for prompt in prompts(stories, 16, 1):
        want = stories.generate(prompt, max_tokens=60, temperature=0)
        got = stories.generate(prompt, max_tokens=60, temperature=0, prompt_lookup=True)
        ties += not same_or_tied(stories, prompt, got, want)
        drafted, accepted = drafted + got.usage.drafted, accepted + got.usage.accepted
        assert want.usage.drafts == want.usage.drafted == want.usage.accepted == 0
        # A step gives its accepted draft tokens and one more.
        assert got.usage.drafts <= got.usage.drafted
        assert got.usage.drafts + got.usage.accepted <= len(got.tokens)
    assert ties <= 1  # none so far
    assert drafted > accepted > 20
    nothing_is_in_use(stories)


@pytest.mark.slow
def test_greedy_answers_whatever_part_of_a_guess_is_right(stories: LoadedModel, told: Answers):
    ties = accepted = drafted = 0
    for prompt in prompts(stories, 16, 5):
        want = stories.generate(prompt, max_tokens=60, temperature=0)
        told[tuple(prompt)] = want.tokens
        got = stories.generate(prompt, max_tokens=60, temperature=0, prompt_lookup=True)
        ties += not same_or_tied(stories, prompt, got, want)
        drafted, accepted = drafted + got.usage.drafted, accepted + got.usage.accepted
    assert ties <= 1  # none so far
    assert drafted > accepted > 300
    nothing_is_in_use(stories)


class Near(Sampler):
    """Notes how close each draw was to the next token's share."""

    def __init__(self, *args: Any, **options: Any):
        super().__init__(*args, **options)
        self.distance: list[float] = []

    def draw(self, logits: np.ndarray, random: np.random.Generator) -> int:
        state = random.bit_generator.state
        token = super().draw(logits, random)
        random.bit_generator.state = state
        uniform, (_, shares) = random.random(), self.distribution(logits)
        self.distance.append(float(np.abs(shares.cumsum()[:-1] - uniform).min(initial=1.0)))
        return token


@pytest.mark.slow
@pytest.mark.parametrize(
    "options", [{}, {"repeat_penalty": 1.2, "top_k": 0}, {"min_p": 0.05, "top_p": 1.0}]
)
def test_sampled_answers_are_the_same_for_each_seed(
    stories: LoadedModel, options: dict[str, Any], told: Answers
):
    near = accepted = drafted = 0
    for seed, prompt in enumerate(prompts(stories, 10, 2)):
        sampler = Near(0.8, seed=seed, **options)
        want = stories.generate(prompt, max_tokens=40, sampler=sampler)
        told[tuple(prompt)] = want.tokens
        got = stories.generate(
            prompt, max_tokens=40, sampler=Sampler(0.8, seed=seed, **options), prompt_lookup=True
        )
        if got.tokens != want.tokens:
            assert sampler.distance[common_prefix(got.tokens, want.tokens)] < TIE
            near += 1
        drafted, accepted = drafted + got.usage.drafted, accepted + got.usage.accepted
    assert near <= 1  # none so far
    assert drafted > accepted > 100
    nothing_is_in_use(stories)


@pytest.mark.slow
def test_requests_side_by_side_some_of_which_guess(stories: LoadedModel, told: Answers):
    texts = prompts(stories, 24, 3)
    alone = [stories.generate(p, max_tokens=40, temperature=0) for p in texts]
    told.update({tuple(p): done.tokens for p, done in zip(texts, alone, strict=True)})
    together: dict[int, Completion] = {}

    def serve(indices: Sequence[int]) -> None:
        for i in indices:
            guess = i % 3 > 0
            together[i] = stories.generate(
                texts[i], max_tokens=40, temperature=0, prompt_lookup=guess
            )

    threads = [threading.Thread(target=serve, args=(range(n, 24, 6),)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert len(together) == 24
    ties = sum(
        not same_or_tied(stories, texts[i], together[i], alone[i]) for i in range(len(texts))
    )
    assert ties <= 1  # none so far
    assert sum(done.usage.accepted for done in together.values()) > 100
    nothing_is_in_use(stories)


def test_streams_that_are_left_early_and_coroutines(stories: LoadedModel, told: Answers):
    prompt = stories.tokenize(SENTENCE + " " + SENTENCE[:50])
    want = stories.generate(prompt, max_tokens=40, temperature=0)
    told[tuple(prompt)] = want.tokens
    for n in (1, 2, 5, 11):
        stream = stories.stream(prompt, temperature=0, prompt_lookup=True)
        assert [next(stream).token for _ in range(n)] == want.tokens[:n]
        stream.close()
        nothing_is_in_use(stories)

    async def pieces() -> list[int]:
        stream = stories.astream(prompt, max_tokens=40, temperature=0, prompt_lookup=True)
        return [piece.token async for piece in stream]

    assert asyncio.run(pieces()) == want.tokens
    nothing_is_in_use(stories)


def test_ends_that_fall_among_guesses(stories: LoadedModel, told: Answers):
    prompt = stories.tokenize(SENTENCE + " " + SENTENCE[:50])
    whole = stories.generate(prompt, max_tokens=30, temperature=0)
    told[tuple(prompt)] = whole.tokens
    for stop in {whole[a : a + 4] for a in range(0, 60, 7)}:
        want = stories.generate(prompt, max_tokens=30, temperature=0, stop=stop)
        got = stories.generate(prompt, max_tokens=30, temperature=0, stop=stop, prompt_lookup=True)
        assert (got, got.tokens, got.finish_reason) == (want, want.tokens, want.finish_reason)
        nothing_is_in_use(stories)
    for most in range(1, 13):
        got = stories.generate(prompt, max_tokens=most, temperature=0, prompt_lookup=True)
        assert got.tokens == whole.tokens[:most]
        nothing_is_in_use(stories)


def test_log_probabilities_are_the_same(stories: LoadedModel, told: Answers):
    prompt = stories.tokenize(SENTENCE + " " + SENTENCE[:50])
    options: dict[str, Any] = {"max_tokens": 20, "temperature": 0, "logprobs": True}
    want = stories.generate(prompt, **options)
    told[tuple(prompt)] = want.tokens
    got = stories.generate(prompt, **options, prompt_lookup=True)
    assert got.usage.accepted > 5
    assert got.logprobs is not None and want.logprobs is not None
    np.testing.assert_allclose(got.logprobs, want.logprobs, atol=1e-4)


def test_what_a_grammar_allows(stories: LoadedModel):
    grammar = Grammar.regex("(Pip loved to play in the (sea|forest)\\. ){3}")
    prompt = stories.tokenize(SENTENCE + " ")
    for seed in range(8):
        options: dict[str, Any] = {"grammar": grammar, "temperature": 0.8, "seed": seed}
        want = stories.generate(prompt, **options)
        got = stories.generate(prompt, **options, prompt_lookup=True)
        assert (got, got.tokens) == (want, want.tokens)
        assert got.usage.accepted > 5 and got.finish_reason == "stop"


def test_a_context_that_is_shifted(unrounded: MemorySource, told: Answers):
    with ggmodel.load(unrounded, context_length=64, threads=1, **EXACT) as model:
        prompt = model.tokenize(SENTENCE)
        # It never ends by itself.
        options: dict[str, Any] = {"temperature": 0, "logit_bias": {1: -1e9, 4: -1e9}}
        full = model.generate(prompt, **options)
        told[tuple(prompt)] = full.tokens
        got = model.generate(prompt, prompt_lookup=True, **options)
        assert got.tokens == full.tokens and len(prompt) + len(full.tokens) == 64
        assert got.finish_reason == full.finish_reason == "length"
        assert got.usage.accepted > 10
        options |= {"max_tokens": 200, "num_keep": 4}
        want = model.generate(prompt, context_shift=True, **options)
        told[tuple(prompt)] = want.tokens
        got = model.generate(prompt, context_shift=True, prompt_lookup=True, **options)
        assert got.tokens == want.tokens and len(want.tokens) == 200
        assert got.usage.accepted > 60


@pytest.mark.parametrize(("architecture", "case"), WINDOWS)
def test_windows_and_chunks(architecture: str, case: str, told: Answers):
    golden = load_golden(architecture, case)
    source = from_hf(find(architecture), golden.config, golden.weights())
    chance = random.Random(4)
    with ggmodel.load(source, context_length=200, batch_size=32, threads=1, **EXACT) as model:
        accepted = drafted = 0
        for _ in range(6):
            passage = [chance.randrange(3, 60) for _ in range(20)]
            prompt = passage * 2 + passage[:3]
            want = model.generate(prompt, max_tokens=90, temperature=0)
            told[tuple(prompt)] = want.tokens
            got = model.generate(prompt, max_tokens=90, temperature=0, prompt_lookup=True)
            assert got.tokens == want.tokens
            drafted, accepted = drafted + got.usage.drafted, accepted + got.usage.accepted
            nothing_is_in_use(model)
        assert drafted > accepted > 100


@pytest.mark.parametrize("kinds", ["ss", "as"])
def test_recurrent_layers(kinds: str, told: Answers):
    """States go back to before a batch with draft tokens; what was accepted is computed again."""
    with ggmodel.load(recurrent(kinds), models=RECURRENT, context_length=128, **EXACT) as model:
        sizes, run = list[int](), model.engine.graphs.run

        def noted(step: Any, *args: Any) -> np.ndarray:
            sizes.append(len(step.tokens))
            return run(step, *args)

        model.engine.graphs.run = noted  # type: ignore[method-assign]
        chance = random.Random(7)
        accepted = drafted = 0
        for _ in range(6):
            prompt = [chance.randrange(3, 24) for _ in range(40)]
            want = model.generate(prompt, max_tokens=60, temperature=0)
            told[tuple(prompt)] = want.tokens
            sizes.clear()
            got = model.generate(prompt, max_tokens=60, temperature=0, prompt_lookup=True)
            assert got.tokens == want.tokens
            assert max(sizes[1:]) <= 32  # the prompt is not computed again
            drafted, accepted = drafted + got.usage.drafted, accepted + got.usage.accepted
            again = model.generate(prompt + want.tokens[:3] + [3], max_tokens=1)
            assert again.usage.reused_tokens == len(prompt)  # its checkpoint is kept
        assert drafted > accepted > 100


def test_a_batch_with_guesses_that_fails_is_computed_without(
    stories: LoadedModel, monkeypatch: pytest.MonkeyPatch
):
    prompt = stories.tokenize(SENTENCE + " " + SENTENCE[:50])
    want = stories.generate(prompt, max_tokens=30, temperature=0)
    start, refused = stories.engine.cache.start_forward, []

    def full(step: Any, reserve: bool = False) -> None:
        if len(step.outputs) > 1:
            refused.append(len(step.outputs))
            raise KvCacheFull("full")
        start(step, reserve)

    monkeypatch.setattr(stories.engine.cache, "start_forward", full)
    got = stories.generate(prompt, max_tokens=30, temperature=0, prompt_lookup=True)
    assert refused and got.tokens == want.tokens
    assert got.usage.drafted == 0
    monkeypatch.undo()
    nothing_is_in_use(stories)


def test_a_sampler_that_fails_at_a_guess_ends_its_request_alone(
    stories: LoadedModel, told: Answers
):
    prompt = stories.tokenize(SENTENCE + " " + SENTENCE[:50])
    want = stories.generate(prompt, max_tokens=30, temperature=0)

    told[tuple(prompt)] = want.tokens

    class Failing(Sampler):
        def adjust(self, logits: np.ndarray, history: Sequence[int]) -> np.ndarray:
            if len(history) == len(prompt) + 9:
                raise ValueError("no")
            return logits

    pieces = stories.stream(prompt, sampler=Failing(0), prompt_lookup=True)
    other = stories.stream(prompt, max_tokens=30, temperature=0, prompt_lookup=True)
    together: tuple[list[int], list[int]] = ([], [])
    for _ in range(9):
        together[0].append(next(pieces).token)
        together[1].append(next(other).token)
    with pytest.raises(ValueError, match="no"):
        next(pieces)
    together[1].extend(piece.token for piece in other)
    assert together == (want.tokens[:9], want.tokens)
    nothing_is_in_use(stories)


def test_batches_stay_within_their_size(unrounded: MemorySource):
    options: dict[str, Any] = {"context_length": 128, "batch_size": 6, "parallel": 4}
    with ggmodel.load(unrounded, threads=1, **options, **EXACT) as model:
        sizes: list[tuple[int, int]] = []
        run = model.engine.graphs.run

        def noted(step: Any, *args: Any) -> np.ndarray:
            sizes.append((len(step.tokens), len(step.outputs)))
            return run(step, *args)

        model.engine.graphs.run = noted  # type: ignore[method-assign]
        prompt = model.tokenize(SENTENCE + " " + SENTENCE[:50])
        streams = [
            model.stream(prompt, max_tokens=20, temperature=0, prompt_lookup=True) for _ in range(4)
        ]
        told = [[next(stream).token] for stream in streams]
        for tokens, stream in zip(told, streams, strict=True):
            tokens += [piece.token for piece in stream]
        assert told == [told[0]] * 4
        assert max(size for size, _ in sizes) == 6
        assert any(outputs > 4 for _, outputs in sizes)  # drafts beside other sequences


def test_images_are_never_guessed_and_what_is_no_option(model: LoadedModel):
    with pytest.raises(ConfigError, match="prompt_lookup is 3; it must be True or False"):
        model.generate([1], prompt_lookup=3)  # type: ignore[arg-type]
