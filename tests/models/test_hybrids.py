"""Models with recurrent layers for several users: each gets what it would get alone."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import ggmodel
from ggmodel.errors import Error
from ggmodel.gguf_file import MemorySource
from ggmodel.model import Step
from ggmodel.runner import LoadedModel
from ggmodel.runner.engine.scoring import Scoring
from ggmodel.workbench.golden import nmse, source_of
from tests.golden.text import golden_of

EXACT: dict[str, Any] = {"kv_type": "f32", "flash_attention": "off", "threads": 1}
# Sums are taken in another order where batches are others.
BOUND = 1e-9
DRAW = np.random.default_rng(3)
TEXTS = [DRAW.integers(8, 64, n).tolist() for n in (3, 41, 1, 17, 29)]
TEXTS.append(TEXTS[1][:30] + TEXTS[3])  # begins as another one


MODELS = """
    lfm2/published lfm2/bias lfm2/two_taps lfm2/experts
    granitehybrid/dense granitehybrid/experts
    falcon_h1/published falcon_h1/norm
    nemotron_h/published nemotron_h/biases nemotron_h/experts nemotron_h/latent
    kimi_linear/published kimi_linear/latent
    olmo_hybrid/published olmo_hybrid/rope qwen3next/published
    jamba/published jamba/dense
    mamba/published mamba2/published mamba2/biases
    qwen35/published qwen35/bias qwen35/experts
    rwkv7/published rwkv7/heads
""".split()


@pytest.fixture(scope="module", params=MODELS)
def source(request: pytest.FixtureRequest) -> MemorySource:
    return source_of(golden_of(request.param))


@pytest.fixture
def model(source: MemorySource) -> Iterator[LoadedModel]:
    with ggmodel.load(source, parallel=4, context_length=64, batch_size=16, **EXACT) as loaded:
        yield loaded


@pytest.fixture
def alone(source: MemorySource) -> Iterator[LoadedModel]:
    with ggmodel.load(source, context_length=64, **EXACT) as loaded:
        yield loaded


def equal(got: Any, want: Any) -> None:
    assert got.tokens == want.tokens
    assert nmse(np.array(got.logprobs), np.array(want.logprobs)) < BOUND


def together(model: LoadedModel, **options: Any) -> list[Any]:
    """The answers to all texts, which are more than there are slots, asked for at once."""
    with ThreadPoolExecutor(len(TEXTS)) as pool:
        waiting = [
            pool.submit(model.generate, t, temperature=0, logprobs=True, **options) for t in TEXTS
        ]
        return [done.result(120) for done in waiting]


@pytest.mark.parametrize("options", [{"max_tokens": 12}, {"max_tokens": 40, "context_shift": True}])
def test_six_texts_over_four_slots(model: LoadedModel, alone: LoadedModel, options: Any):
    """The second way goes beyond the context: a shift computes what is left again."""
    for text, got in zip(TEXTS, together(model, **options), strict=True):
        equal(got, alone.generate(text, temperature=0, logprobs=True, **options))


def test_a_conversation_goes_on_where_it_ended(model: LoadedModel, alone: LoadedModel):
    steps: list[int] = []
    start = model.engine.cache.start_forward

    def noted(step: Step, reserve: bool = False) -> None:
        steps.append(len(step.tokens))
        start(step, reserve)

    first = model.generate(TEXTS[1], max_tokens=5, temperature=0)
    longer = [*TEXTS[1], *first.tokens, 9, 10]
    model.engine.cache.start_forward = noted  # type: ignore[method-assign]
    got = model.generate(longer, max_tokens=1, temperature=0, logprobs=True)
    assert steps[0] == 3  # the last token was never computed
    # Half of it is no state that is kept, but the end of the first piece of 16 is.
    steps.clear()
    half = model.generate([*longer[:20], 11], max_tokens=1, temperature=0, logprobs=True)
    assert steps[0] == 5
    for text, found in ((longer, got), ([*longer[:20], 11], half)):
        want = alone.generate(text, max_tokens=1, temperature=0, logprobs=True)
        equal(found, want)


def test_states_cannot_be_shifted(model: LoadedModel):
    with Scoring(model.engine).sequence() as sequence:
        Scoring(model.engine).extend(sequence, np.array(TEXTS[1], np.int32), 0)
        with pytest.raises(Error, match="cannot lose positions 4 to 8"):
            model.engine.cache.remove(sequence, 4, 8)
        assert model.engine.cache.length(sequence) == len(TEXTS[1])
