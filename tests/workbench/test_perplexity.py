"""Perplexity against numpy on `LoadedModel.logits`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import ggmodel
from ggmodel.errors import ComputeError, ConfigError, PromptError, TokenizerError
from ggmodel.gguf_file import MemorySource
from ggmodel.runner import LoadedModel
from ggmodel.workbench.text_statistics import Perplexity, perplexity
from tests.workbench.models import STORIES

TEXT = (
    "Once upon a time, there was a little fox who lived near the river. One day, the fox found a "
    "shiny stone. It asked the owl what to do. The owl smiled and said that stones like to be seen."
)
# Logits of the same tokens in other batches differ in the last bits of float32.
CLOSE = 1e-5


@pytest.fixture(scope="module")
def stories() -> Iterator[LoadedModel]:
    with ggmodel.load(STORIES, kv_type="f32", context_length=128) as loaded:
        yield loaded


def last(model: LoadedModel, text: str, context: int | None = None) -> Perplexity:
    *_, result = perplexity(model, text, context)
    return result


def losses(model: LoadedModel, chunk: list[int], first: int) -> np.ndarray:
    """The losses of tokens first + 1 to the end, float64."""
    rows = model.logits(chunk).astype(np.float64)
    logp = rows - np.log(np.exp(rows).sum(axis=1, keepdims=True))
    return -logp[np.arange(first, len(chunk) - 1), chunk[first + 1 :]]


def of(found: np.ndarray) -> tuple[float, float]:
    value = np.exp(found.mean())
    return value, value * found.std() / np.sqrt(len(found) - 1)


@pytest.mark.parametrize("context", [8, 9, 17])
@pytest.mark.parametrize("batch_size", [512, 5])
def test_the_second_half_of_each_chunk(context: int, batch_size: int):
    with ggmodel.load(STORIES, kv_type="f32", context_length=64, batch_size=batch_size) as model:
        assert model.tokenizer is not None and model.tokenizer.add_bos
        ids = model.tokenize(TEXT)
        want = [
            losses(model, [model.tokenizer.bos, *ids[at + 1 : at + context]], context // 2)  # type: ignore[list-item]
            for at in range(0, len(ids) - context + 1, context)
        ]
        results = list(perplexity(model, TEXT, context))
    assert len(results) == len(want) == len(ids) // context > 1
    for n, result in enumerate(results, 1):
        found = np.concatenate(want[:n])
        assert (result.value, result.error) == pytest.approx(of(found), rel=CLOSE)
        assert (result.tokens, result.chunks) == (len(found), n)
        assert (result.context, result.of_chunks, result.whole) == (context, len(want), False)


def test_less_than_two_contexts(stories: LoadedModel):
    ids = stories.tokenize(TEXT)
    context, half = len(ids) - 3, len(ids) // 2
    begin = stories.tokenizer.bos  # type: ignore[union-attr]
    chunks = [[begin, *ids[1:half]], [begin, *ids[half + 1 : 2 * half]]]
    found = np.concatenate([losses(stories, chunk, half // 2) for chunk in chunks])  # type: ignore[arg-type]
    result = last(stories, TEXT, context)
    assert (result.value, result.error) == pytest.approx(of(found), rel=CLOSE)
    assert (result.chunks, result.context, result.of_tokens) == (2, half, len(ids))


def test_less_than_one_context(stories: LoadedModel):
    result = last(stories, TEXT)
    found = losses(stories, stories.tokenize(TEXT), 0)
    assert (result.value, result.error) == pytest.approx(of(found), rel=CLOSE)
    assert result.value == pytest.approx(np.exp(-stories.score(TEXT).mean()), rel=CLOSE)
    assert result.whole and result.chunks == 1


def test_no_token_to_begin_with(source: MemorySource, vary: Any, vocabulary: dict[str, Any]):
    quiet = vary(source, metadata={**vocabulary, "tokenizer.ggml.add_bos_token": False})
    with ggmodel.load(quiet, kv_type="f32") as model:
        ids = model.tokenize("abcdefghijklmnopqrst")
        assert len(ids) == 20
        found = np.concatenate([losses(model, ids[:10], 5), losses(model, ids[10:], 5)])
        assert last(model, "abcdefghijklmnopqrst", 10).value == pytest.approx(
            of(found)[0], rel=CLOSE
        )


def test_special_tokens_in_the_text_are_text(stories: LoadedModel):
    spelt = stories.tokenizer.token(0)  # type: ignore[union-attr]
    assert last(stories, f"a{spelt}b").of_tokens > len(stories.tokenize(f"a{spelt}b"))


def test_requests_go_on_afterwards(stories: LoadedModel):
    want = stories.generate("A fox", temperature=0, max_tokens=10).tokens
    last(stories, TEXT, 16)
    assert stories.generate("A fox", temperature=0, max_tokens=10).tokens == want


@pytest.mark.parametrize("context", [7, 129])
def test_a_context_that_cannot_be(stories: LoadedModel, context: int):
    with pytest.raises(ConfigError, match=f"chunks of {context} tokens, .* context of 128"):
        last(stories, TEXT, context)


def test_no_text(stories: LoadedModel):
    with pytest.raises(PromptError, match="has 1 tokens; give at least two"):
        last(stories, "")


def test_no_vocabulary(source: MemorySource, vary: Any):
    silent = vary(source, metadata={"tokenizer.ggml.model": "no_vocab"})
    with ggmodel.load(silent) as model, pytest.raises(TokenizerError, match="no vocabulary"):
        last(model, TEXT)


def test_logits_that_are_no_numbers(source: MemorySource, vary: Any, vocabulary: dict[str, Any]):
    norm = np.full(64, np.nan, np.float32)
    broken = vary(source, metadata=vocabulary, tensors={"output_norm.weight": norm})
    with ggmodel.load(broken) as model, pytest.raises(ComputeError, match="NaN"):
        last(model, "abc")
