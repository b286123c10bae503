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
