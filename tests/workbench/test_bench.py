"""Benchmarks measure the work that they name; the speed itself is for docs/benchmarks.md."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import ggmodel
from ggmodel.errors import ComputeError, ConfigError, Unsupported
from ggmodel.gguf_file import MemorySource
from ggmodel.model import Step
from ggmodel.runner import LoadedModel
from ggmodel.runner.requests.generation import Generation
from ggmodel.workbench.bench import (
    BenchResult,
    Test,
    bench,
    first_token,
    peak_memory,
    plan,
    setting,
)
from tests.workbench.models import EMBEDDER, STORIES


@pytest.fixture(scope="module")
def stories() -> Iterator[LoadedModel]:
    with ggmodel.load(STORIES, context_length=128, parallel=3) as loaded:
        yield loaded


class Computed(NamedTuple):
    """The content of a step, whose arrays may serve the next one, and of all sequences."""

    tokens: list[int]
    positions: list[int]
    sequences: list[int]
    held: int


@pytest.fixture
def steps(stories: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> list[Computed]:
    """All that is computed."""
    found: list[Computed] = []
    run = stories.engine.graphs.run

    def spy(step: Step, *args: Any) -> np.ndarray:
        arrays = (step.tokens, step.positions, step.sequences)
        held = sum(len(slot.tokens) for slot in stories.engine.sequences.all)
        tokens, positions, sequences = (a.tolist() for a in arrays)
        found.append(Computed(tokens, positions, sequences, held))
        return run(step, *args)

    monkeypatch.setattr(stories.engine.graphs, "run", spy)
    return found


def test_all_combinations():
    tests = plan([8, 0, 4], [2], [0, 16], [1, 3])
    assert [test.name for test in tests] == [
        "pp8", "pp4", "tg2", "tg2 x3", "pp8 @ d16", "pp4 @ d16", "tg2 @ d16", "tg2 x3 @ d16",
    ]  # fmt: skip
    assert [test.context for test in tests] == [8, 4, 4, 4, 24, 20, 20, 20]
    assert plan([0], [4], [0], [1]) == [Test(tokens=4)]


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        (([0], [0], [0], [1]), "nothing to measure"),
        (([], [], [0], [1]), "nothing to measure"),
        (([-1], [4], [0], [1]), "pp-1: prompts, tokens and depths are 0 or more"),
        (([4], [-4], [0], [1]), "tg-4: prompts"),
        (([4], [4], [-1], [1]), "pp4 @ d-1: prompts"),
        (([0], [4], [0], [0]), "sequences at least 1"),
    ],
)
def test_what_cannot_be_measured(numbers: tuple[list[int], ...], message: str):
    with pytest.raises(ConfigError, match=message):
        plan(*numbers)


def test_a_prompt(stories: LoadedModel, steps: list[Computed]):
    (found,) = bench(stories, [Test(prompt=20)], 3)
    assert len(found.samples) == 3 and found.microseconds_outside_ggml is None
    prompts = [step.tokens for step in steps]
    assert [len(prompt) for prompt in prompts] == [20] * 4  # one of them does not count
    assert len({tuple(prompt) for prompt in prompts}) == 4
    assert [step.held for step in steps] == [0] * 4
    steps.clear()
    list(bench(stories, [Test(prompt=20)], 3))
    assert [step.tokens for step in steps] == prompts


def test_decoding(stories: LoadedModel, steps: list[Computed]):
    (found,) = bench(stories, [Test(tokens=5)], 2)
    assert len(found.samples) == 2
    once, twice = [0, 1], [0, 1, 2, 3, 4, 5]
    assert [step.positions for step in steps] == [[p] for p in once + twice * 2]


def test_a_depth_is_filled_once(stories: LoadedModel, steps: list[Computed]):
    list(bench(stories, [Test(tokens=3, depth=20)], 3))
    counted = steps[2:]  # after what does not count
    again = [[20], [21], [22], [23]]
    assert [step.positions for step in counted] == [
        [*range(20)], *again, [19], *again, [19], *again,
    ]  # fmt: skip
    assert counted[0].held == 0 and all(step.held == step.positions[0] for step in counted)


def test_a_prompt_at_a_depth(stories: LoadedModel, steps: list[Computed]):
    list(bench(stories, [Test(prompt=4, depth=20)], 2))
    counted = [step.positions for step in steps[1:]]
    assert counted == [[*range(20)], [*range(20, 24)], [19], [*range(20, 24)]]


@pytest.mark.parametrize("depth", [0, 10])
def test_sequences_are_decoded_together(stories: LoadedModel, steps: list[Computed], depth: int):
    (found,) = bench(stories, [Test(tokens=12, depth=depth, sequences=3)], 1)
    decoded = steps[-12:]
    assert [sorted(step.sequences) for step in decoded] == [[0, 1, 2]] * 12
    assert [set(step.positions) for step in decoded] == [{depth + 1 + i} for i in range(12)]
    assert found.test.name == "tg12 x3" + (" @ d10" if depth else "")


def test_tokens_of_all_sequences_count(stories: LoadedModel, monkeypatch: pytest.MonkeyPatch):
    run = stories.engine.graphs.run

    def slow(step: Step, *args: Any) -> np.ndarray:
        time.sleep(0.02)
        return run(step, *args)

    monkeypatch.setattr(stories.engine.graphs, "run", slow)
    (found,) = bench(stories, [Test(tokens=4, sequences=3)], 1)
    assert 50 < found.tokens_per_second < 3 / 0.02


def test_no_token_ends_it(source: MemorySource, vary: Any, vocabulary: dict[str, Any]):
    """The model says the same token over and over, and that is the one to end with."""
    changes: dict[str, Any] = {"metadata": vocabulary}
    with ggmodel.load(vary(source, **changes)) as model:
        said = model.generate([0], max_tokens=4, temperature=0).tokens
    vocabulary = {**vocabulary, "tokenizer.ggml.eos_token_id": said[0]}
    with ggmodel.load(vary(source, metadata=vocabulary)) as model:
        assert model.generate([0], max_tokens=4, temperature=0).tokens == []
        assert first_token(model) > 0
        (found,) = bench(model, [Test(tokens=8)], 1)
        assert found.tokens_per_second > 0


def test_requests_go_on_afterwards(stories: LoadedModel):
    want = stories.generate("A fox", temperature=0, max_tokens=10).tokens
    list(bench(stories, [Test(prompt=9), Test(tokens=3, depth=5, sequences=3)], 1))
    assert stories.generate("A fox", temperature=0, max_tokens=10).tokens == want
    assert not stories.engine.sequences.working


# outside of ggml

PAUSE = 0.02  # seconds, long beside what a token of this model takes


def test_sampling_is_outside_of_ggml(stories: LoadedModel, monkeypatch: pytest.MonkeyPatch):
    accept = Generation.accept

    def slow(self: Generation, *args: Any) -> int | None:
        time.sleep(PAUSE)
        return accept(self, *args)

    monkeypatch.setattr(Generation, "accept", slow)
    (found,) = bench(stories, [Test(tokens=4)], 1)
    assert found.microseconds_outside_ggml is not None
    assert found.microseconds_outside_ggml > PAUSE * 1e6
    assert found.tokens_per_second < 1 / PAUSE


def test_computing_is_not(stories: LoadedModel, monkeypatch: pytest.MonkeyPatch):
    threads: Any = stories.backend.hardware.threads  # type: ignore[attr-defined]
    begin = threads.begin

    def slow() -> float:
        began = begin()
        time.sleep(PAUSE)
        return began

    monkeypatch.setattr(threads, "begin", slow)
    (found,) = bench(stories, [Test(tokens=4)], 3)
    assert found.microseconds_outside_ggml is not None
    assert 0 < found.microseconds_outside_ggml < PAUSE * 1e6
    assert found.tokens_per_second < 1 / PAUSE


def test_where_ggml_computes_nothing():
    with ggmodel.load(STORIES, backend="reference", context_length=16) as model:
        (found,) = bench(model, [Test(tokens=2)], 1)
        assert found.microseconds_outside_ggml is None
        about = setting(model)
        assert (about.ggml, about.threads, about.devices) == (None, None, {"CPU": ""})


# figures


def test_mean_and_deviation():
    found = BenchResult(Test(tokens=1), [1.0, 2.0, 6.0])
    assert found.tokens_per_second == 3
    assert found.stddev == pytest.approx(np.std([1, 2, 6], ddof=1))
    assert BenchResult(Test(tokens=1), [4.0]).stddev == 0


def test_the_setting(stories: LoadedModel):
    about = setting(stories)
    tensors = stories.source.tensors.values()
    assert (about.architecture, about.type) == ("llama", "Q8_0")
    assert about.parameters == sum(int(np.prod(t.shape)) for t in tensors)
    assert about.size_bytes == sum(t.nbytes for t in tensors)
    assert about.threads is not None and about.threads >= 1
    assert about.ggml is not None and about.devices["CPU"]


def test_peak_memory_stays():
    before = peak_memory()
    block_size = 1 << 27
    block = np.ones(block_size, np.uint8)
    with_block = peak_memory()
    assert with_block > before or with_block > block.nbytes
    del block
    # The kernel adds up pages in batches, one for each core, so that readings are off by some.
    assert peak_memory() > with_block - (block_size >> 6)


def test_peak_memory_where_proc_does_not_tell_it(monkeypatch: pytest.MonkeyPatch):
    told = peak_memory()
    monkeypatch.setattr(Path, "read_text", lambda _: "Name:\tpython\nVmRSS:\t 7 kB\n")
    assert told / 2 < peak_memory() < told * 2


# refusals


def test_no_repetitions(stories: LoadedModel):
    with pytest.raises(ConfigError, match="0 repetitions"):
        list(bench(stories, [Test(prompt=4)], 0))


@pytest.mark.parametrize("test", [Test(prompt=129), Test(tokens=4, sequences=4)])
def test_more_than_the_model_was_loaded_for(stories: LoadedModel, test: Test):
    with pytest.raises(ConfigError, match=f"{test.name} needs .* loaded with 3 of 128"):
        list(bench(stories, [test]))


def test_a_model_that_only_embeds():
    with ggmodel.load(EMBEDDER) as model:
        for measure in (first_token, lambda m: list(bench(m, [Test(prompt=4)]))):
            with pytest.raises(Unsupported, match="generates nothing, it only embeds"):
                measure(model)


def test_logits_that_are_no_numbers(source: MemorySource, vary: Any, vocabulary: dict[str, Any]):
    norm = np.full(64, np.nan, np.float32)
    broken = vary(source, metadata=vocabulary, tensors={"output_norm.weight": norm})
    with ggmodel.load(broken) as model, pytest.raises(ComputeError, match=r"nan|NaN"):
        list(bench(model, [Test(tokens=4)]))
