"""Speculative decoding by a draft model: the same answers, whatever the draft model says."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ggmodel
from ggmodel.convert import from_hf, quantize
from ggmodel.errors import ComputeError, ConfigError
from ggmodel.gguf_file import MemorySource, open_gguf
from ggmodel.model import find
from ggmodel.runner import Completion, Grammar, LoadedModel, Sampler
from ggmodel.runner.engine.draft_model import DraftModel
from ggmodel.runner.engine.drafting import Costs
from ggmodel.runner.engine.sequences import common_prefix
from tests.golden.files import load_golden
from tests.kvcache.statespace import MODELS as RECURRENT
from tests.kvcache.statespace import source as recurrent

EXACT: dict[str, Any] = {"kv_type": "f32", "flash_attention": "off"}
TIE = 1e-3  # as in test_prompt_lookup.py
PROMPT = "Once upon a time, there was a little fox named Pip."


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches of the model cost the same, drafts nothing: as much is drafted as can be."""
    monkeypatch.setattr(Costs, "measured", lambda self, size: True)
    monkeypatch.setattr(Costs, "of", lambda self, size: 1.0)
    monkeypatch.setattr(Costs, "largest", property(lambda self: 32))
    monkeypatch.setattr(DraftModel, "seconds", lambda self, lengths: 0.0)


@pytest.fixture(scope="module")
def noisy(unrounded: MemorySource) -> MemorySource:
    """The model with some noise in its weights: it agrees most of the time."""
    chance = np.random.default_rng(0)
    tensors = {
        name: (a := np.frombuffer(unrounded.data(name), np.float32).reshape(t.shape[::-1]))
        + (0.15 * a.std() * chance.standard_normal(a.shape)).astype(np.float32) * (a.ndim > 1)
        for name, t in unrounded.tensors.items()
    }
    return MemorySource(dict(unrounded.metadata), tensors)


@pytest.fixture(scope="module")
def plain(unrounded: MemorySource) -> Iterator[LoadedModel]:
    with ggmodel.load(unrounded, parallel=4, context_length=256, threads=1, **EXACT) as model:
        yield model


@pytest.fixture
def drafted(unrounded: MemorySource, noisy: MemorySource, eager: None) -> Iterator[LoadedModel]:
    with ggmodel.load(
        unrounded, draft=noisy, parallel=4, context_length=256, threads=1, **EXACT
    ) as model:
        yield model


def same_or_tied(
    model: LoadedModel, prompt: Sequence[int], got: Completion, want: Completion
) -> bool:
    """Whether two greedy answers are equal; False where they part at a tie."""
    if got.tokens == want.tokens:
        assert (got, got.finish_reason) == (want, want.finish_reason)
        return True
    n = common_prefix(got.tokens, want.tokens)
    best = np.sort(model.logits([*prompt, *want.tokens[:n]])[-1])[-2:]
    assert best[1] - best[0] < TIE, f"token {n}"
    return False


def prompts(model: LoadedModel, count: int) -> list[list[int]]:
    chance = random.Random(count)
    animals, names = ["fox", "bear", "cat", "bird", "dog"], ["Pip", "Tom", "Lily", "Ben", "Mia"]
    text = "Once upon a time there was a {} named {}."
    return [
        model.tokenize(text.format(chance.choice(animals), chance.choice(names)))
        for _ in range(count)
    ]


def test_greedy_answers_are_the_same(plain: LoadedModel, drafted: LoadedModel):
    ties = accepted = computed = 0
    for prompt in prompts(plain, 8):
        want = plain.generate(prompt, max_tokens=60, temperature=0)
        got = drafted.generate(prompt, max_tokens=60, temperature=0)
        ties += not same_or_tied(plain, prompt, got, want)
        computed, accepted = computed + got.usage.drafted, accepted + got.usage.accepted
    assert ties <= 1  # none so far
    assert computed > accepted > 100


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"top_k": 0, "top_p": 1.0, "temperature": 1.0},
        {"repeat_penalty": 1.3, "frequency_penalty": 0.2},
        {"logprobs": True, "top_logprobs": 3},
        {"stop": [" the", "was a"]},
        {"logit_bias": {300: 2.0, 301: -1e9}, "min_p": 0.05},
    ],
)
def test_sampled_answers_are_the_same_for_each_seed(
    plain: LoadedModel, drafted: LoadedModel, options: dict[str, Any]
):
    computed = accepted = others = 0
    for seed, prompt in enumerate(prompts(plain, 6)):
        want = plain.generate(prompt, max_tokens=40, seed=seed, **options)
        got = drafted.generate(prompt, max_tokens=40, seed=seed, **options)
        computed, accepted = computed + got.usage.drafted, accepted + got.usage.accepted
        others += got.tokens != want.tokens
        if got.tokens == want.tokens:
            assert (got, got.finish_reason) == (want, want.finish_reason)
            np.testing.assert_allclose(got.logprobs or 0, want.logprobs or 0, atol=1e-4)
    assert others <= 1  # none so far; random numbers may fall where rounding decides
    assert computed > accepted > (computed // 4 if "stop" not in options else 0)


def test_a_grammar_is_followed_by_drafts_too(plain: LoadedModel, drafted: LoadedModel):
    grammar = Grammar.regex("(Pip loved to play in the (sea|forest)\\. ){3}")
    for seed in range(4):
        options: dict[str, Any] = {"grammar": grammar, "temperature": 0.8, "seed": seed}
        want = plain.generate(PROMPT, **options)
        got = drafted.generate(PROMPT, **options)
        assert (got, got.tokens) == (want, want.tokens)
        assert got.usage.accepted > got.usage.drafted / 2 > 5


def test_requests_side_by_side(plain: LoadedModel, drafted: LoadedModel):
    texts = prompts(plain, 12)
    want = [plain.generate(prompt, max_tokens=40, temperature=0) for prompt in texts]
    got = drafted.batch(texts, max_tokens=40, temperature=0)
    pairs = zip(texts, got, want, strict=True)
    assert sum(not same_or_tied(plain, *one) for one in pairs) <= 1
    assert sum(one.usage.accepted for one in got) > 100


def test_streams_that_are_left_early(plain: LoadedModel, drafted: LoadedModel):
    want = plain.generate(PROMPT, max_tokens=40, temperature=0).tokens
    for n in (1, 2, 5, 11):
        with drafted.stream(PROMPT, temperature=0) as stream:
            assert [next(stream).token for _ in range(n)] == want[:n]
    assert drafted.generate(PROMPT, max_tokens=40, temperature=0).tokens == want
    for most in range(1, 9):
        assert drafted.generate(PROMPT, max_tokens=most, temperature=0).tokens == want[:most]


def test_a_context_that_is_shifted(unrounded: MemorySource, noisy: MemorySource, eager: None):
    options: dict[str, Any] = {"temperature": 0, "logit_bias": {1: -1e9, 4: -1e9}}
    options |= {"max_tokens": 150, "num_keep": 4, "context_shift": True}
    loading: dict[str, Any] = {"context_length": 64, "threads": 1, **EXACT}
    with ggmodel.load(unrounded, **loading) as model:
        want = model.generate(PROMPT, **options)
    with ggmodel.load(unrounded, draft=noisy, draft_tokens=4, **loading) as model:
        got = model.generate(PROMPT, **options)
    assert got.tokens == want.tokens and got.usage.accepted > 20


class Uniform(Sampler):
    """A sampler of a user's, with the choices of ours."""


def test_a_sampler_of_a_user_is_taken_for_a_greedy_one(plain: LoadedModel, drafted: LoadedModel):
    want = plain.generate(PROMPT, max_tokens=30, sampler=Uniform(0))
    got = drafted.generate(PROMPT, max_tokens=30, sampler=Uniform(0))
    assert got.tokens == want.tokens and got.usage.accepted > 5


def test_the_distribution_is_the_models_own(source: MemorySource, eager: None):
    """Chi-squared of the second and third token together, of a vocabulary of 64 tokens, with the
    model's own probabilities after top-k; the draft model is another one altogether."""
    other = load_golden("llama", "plain_gqa")
    chance = np.random.default_rng(1)
    weights = {
        name: w + (0.05 * w.std() * chance.standard_normal(w.shape)).astype(w.dtype)
        for name, w in other.weights().items()
    }
    draft = from_hf(find("llama"), other.config, weights)
    sampler, prompt, draws = {"temperature": 1.0, "top_k": 4, "top_p": 1.0}, [5, 6, 7], 3000
    with ggmodel.load(source, draft=draft, context_length=32, threads=1, **EXACT) as model:
        chosen = Sampler(**sampler)  # type: ignore[arg-type]
        expected: dict[tuple[int, ...], float] = {(): 1.0}
        for _ in range(3):
            longer: dict[tuple[int, ...], float] = {}
            for tokens, p in expected.items():
                ids, shares = chosen.distribution(model.logits([*prompt, *tokens])[-1])
                longer |= {(*tokens, int(i)): p * q for i, q in zip(ids, shares, strict=True)}
            expected = longer
        counts = dict.fromkeys(expected, 0)
        computed = accepted = 0
        for seed in range(draws):
            got = model.generate(prompt, max_tokens=3, seed=seed, **sampler)  # type: ignore[arg-type]
            counts[tuple(got.tokens)] += 1
            computed, accepted = computed + got.usage.drafted, accepted + got.usage.accepted
    common = [one for one, p in expected.items() if p * draws >= 5]
    rare = [one for one in expected if one not in common]
    seen = [counts[one] for one in common] + [sum(counts[one] for one in rare)]
    means = [draws * expected[one] for one in common] + [draws * sum(expected[o] for o in rare)]
    squares = sum((n - m) ** 2 / m for n, m in zip(seen, means, strict=True) if m > 0)
    freedom = len(common)
    # Beyond the mean by four standard deviations: 1 of 10,000 such tests.
    assert squares < freedom + 4 * (2 * freedom) ** 0.5
    assert 0.2 * computed < accepted < 0.95 * computed, (accepted, computed)


def test_a_draft_model_that_fails_is_left_out(
    plain: LoadedModel, drafted: LoadedModel, monkeypatch: pytest.MonkeyPatch
):
    assert drafted.draft is not None
    want = plain.generate(PROMPT, max_tokens=20, temperature=0)

    def fails(*args: Any) -> Any:
        raise ComputeError("lost")

    monkeypatch.setattr(drafted.draft.engine.graphs, "run", fails)
    got = drafted.generate(PROMPT, max_tokens=20, temperature=0)
    assert got.tokens == want.tokens and got.usage.drafted == 0
    monkeypatch.undo()
    assert drafted.generate(PROMPT, max_tokens=20, temperature=0).tokens == want.tokens


def test_a_prompt_that_another_sequence_read_is_not_read_again(drafted: LoadedModel):
    assert drafted.draft is not None
    run, sizes = drafted.draft.engine.graphs.run, list[int]()

    def noted(step: Any, *args: Any) -> np.ndarray:
        sizes.append(len(step.tokens))
        return run(step, *args)

    drafted.draft.engine.graphs.run = noted  # type: ignore[method-assign]
    prompt = PROMPT * 6
    drafted.generate(prompt, max_tokens=8, temperature=0)
    assert max(sizes) > 50
    sizes.clear()
    with drafted.stream(PROMPT, temperature=0) as first:  # takes the first sequence
        next(first)
        drafted.generate(prompt, max_tokens=8, temperature=0)
    assert sizes and max(sizes) < 50


def test_where_drafts_do_not_pay_none_are_made(unrounded: MemorySource, noisy: MemorySource):
    """The draft model is as large as the model, so that it cannot pay."""
    loading: dict[str, Any] = {"context_length": 512, "threads": 1, **EXACT}
    with ggmodel.load(unrounded, draft=noisy, **loading) as model:
        options: dict[str, Any] = {"temperature": 0, "logit_bias": {1: -1e9, 4: -1e9}}
        got = model.generate(PROMPT, max_tokens=400, **options)
    assert got.usage.drafted < 100


@pytest.mark.parametrize(("kinds", "others"), [("ss", "ss"), ("as", "ss"), ("ss", "aa")])
def test_recurrent_layers(kinds: str, others: str, eager: None):
    """The model has some, or the draft model."""
    loading: dict[str, Any] = {"models": RECURRENT, "context_length": 128, **EXACT}
    target, accepted = recurrent(kinds), 0
    for draft in (target, recurrent(others)):
        with ggmodel.load(target, draft=draft, **loading) as model:
            for first in range(3, 7):
                prompt = [3 + n % 20 for n in range(first, first + 30)]
                got = model.generate(prompt, max_tokens=40, temperature=0)
                accepted += got.usage.accepted
                with ggmodel.load(target, **loading) as plain:
                    want = plain.generate(prompt, max_tokens=40, temperature=0)
                assert got.tokens == want.tokens
    assert accepted > 100


def test_the_vocabularies_must_agree(unrounded: MemorySource, source: MemorySource):
    tokens = list(unrounded.metadata["tokenizer.ggml.tokens"])

    def other(**changes: Any) -> MemorySource:
        keys = {f"tokenizer.ggml.{name}": value for name, value in changes.items()}
        tensors = {n: unrounded.data(n) for n in unrounded.tensors}
        metadata = {**unrounded.metadata, **keys}
        arrays = {
            n: np.frombuffer(d, np.float32).reshape(unrounded.tensors[n].shape[::-1])
            for n, d in tensors.items()
        }
        return MemorySource(metadata, arrays)

    for draft, message in [
        (other(tokens=[*tokens[:9], "?", *tokens[10:]]), "token 9 is '\\?'"),
        (other(tokens=tokens + [f"<{i}>" for i in range(200)]), "tokens, the model"),
        (other(model="bert"), "tokenizer.ggml.model is 'bert'"),
        (source, "cannot draft for this model"),
    ]:
        with pytest.raises(ConfigError, match=message):
            ggmodel.load(unrounded, draft=draft, context_length=64)


def test_a_loaded_model_drafts_as_a_file_does(
    unrounded: MemorySource, tmp_path: Path, plain: LoadedModel, eager: None
):
    path = tmp_path / "small.gguf"
    quantize(unrounded, path, "q8_0")
    want = plain.generate(PROMPT, max_tokens=30, temperature=0).tokens
    loading: dict[str, Any] = {"context_length": 128, "threads": 1, **EXACT}
    with ggmodel.load(path, context_length=128) as small:
        for draft in (str(path), path, small):
            with ggmodel.load(unrounded, draft=draft, **loading) as model:
                got = model.generate(PROMPT, max_tokens=30, temperature=0)
                assert got.tokens == want and got.usage.accepted > 15
        assert small.generate(PROMPT, max_tokens=3)
    with open_gguf(path) as file, pytest.raises(ConfigError, match="draft_tokens is 0"):
        ggmodel.load(unrounded, draft=file, draft_tokens=0)


def test_others_may_use_the_same_model_meanwhile(unrounded: MemorySource, eager: None):
    loading: dict[str, Any] = {"context_length": 128, "threads": 1, **EXACT}
    with (
        ggmodel.load(unrounded, **loading) as small,
        ggmodel.load(unrounded, draft=small, **loading) as model,
    ):
        want = small.generate(PROMPT, max_tokens=40, temperature=0).tokens
        answers: list[list[int]] = []

        def ask() -> None:
            answers.append(small.generate(PROMPT, max_tokens=40, temperature=0).tokens)

        threads = [threading.Thread(target=ask) for _ in range(3)]
        for thread in threads:
            thread.start()
        assert model.generate(PROMPT, max_tokens=40, temperature=0).tokens == want
        for thread in threads:
            thread.join(60)
        assert answers == [want] * 3
