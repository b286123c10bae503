"""The embedded model against the framework that trained it: examples/assets/stories.json."""

from __future__ import annotations

import hashlib
import importlib
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import ggmodel
from ggmodel.runner import LoadedModel

EXAMPLES = Path(__file__).parents[2] / "examples"
EXPECTED = json.loads((EXAMPLES / "assets" / "stories.json").read_text())
FILE = EXAMPLES / "assets" / "stories.gguf"


@pytest.fixture(scope="module")
def stories() -> Iterator[LoadedModel]:
    with ggmodel.load(FILE) as model:
        yield model


def test_the_figures_are_of_this_file():
    assert hashlib.sha256(FILE.read_bytes()).hexdigest() == EXPECTED["model"]["sha256"]
    assert FILE.stat().st_size <= 4 << 20


@pytest.mark.parametrize("case", EXPECTED["tokenize"], ids=lambda c: c["text"][:20])
def test_tokens(stories: LoadedModel, case: dict):
    assert stories.tokenize(case["text"], add_special=False) == case["ids"]
    assert stories.detokenize(case["ids"]) == case["text"]


@pytest.mark.parametrize("case", EXPECTED["greedy"], ids=lambda c: c["prompt"][:20])
def test_greedy_continuation(stories: LoadedModel, case: dict):
    assert stories.tokenize(case["prompt"]) == case["prompt_ids"]
    done = stories.generate(case["prompt"], temperature=0, max_tokens=len(case["continuation_ids"]))
    assert done.tokens == case["continuation_ids"]
    assert str(done) == case["text"]
    assert str(stories.generate(case["prompt_ids"], temperature=0, max_tokens=20)) == str(
        stories.generate(case["prompt"], temperature=0, max_tokens=20)
    )


@pytest.mark.slow
def test_perplexity_on_held_out_stories(stories: LoadedModel, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(EXAMPLES / "training")
    story = importlib.import_module("story_grammar").story
    expected = EXPECTED["perplexity"]
    assert stories.tokenizer is not None
    nll, count, end = 0.0, 0, stories.tokenizer.eos
    assert end is not None
    for seed in expected["story_seeds"]:
        ids = [*stories.tokenize(story(seed)), end]
        rows = stories.logits(ids)[:-1].astype(np.float64)
        top = rows.max(axis=1, keepdims=True)
        logs = rows - top - np.log(np.exp(rows - top).sum(axis=1, keepdims=True))
        nll -= logs[np.arange(len(ids) - 1), ids[1:]].sum()
        count += len(ids) - 1
    assert count == expected["tokens"]
    # ggml rounds activations to Q8_0, which moves the mean over thousands of tokens by far less.
    assert np.exp(nll / count) == pytest.approx(expected["perplexity"], rel=2e-3)


@pytest.mark.parametrize(
    ("kv_type", "bound"),
    # Keys and values are rounded to 8 and 4 bits, relative to the largest of 32; measured 1.3e-4
    # and 3.6e-3, of which 0.9e-4 come with the fused attention.
    [("q8_0", 5e-4), ("q4_0", 2e-2)],
)
def test_a_quantised_cache(kv_type: str, bound: float):
    with ggmodel.load(FILE, context_length=256, kv_type="f32", threads=2) as model:
        prompt = model.tokenize("Once upon a time")
        text = [*prompt, *model.generate(prompt, max_tokens=150, temperature=0).tokens]
        want = model.logits(text)
    with ggmodel.load(FILE, context_length=256, kv_type=kv_type, threads=2) as model:
        got = model.logits(text)
        assert len(model.generate(prompt, max_tokens=150, temperature=0).tokens) > 20
    assert 1e-6 < ((got - want) ** 2).sum() / (want**2).sum() < bound
    assert (got.argmax(axis=1) == want.argmax(axis=1)).mean() > 0.97
