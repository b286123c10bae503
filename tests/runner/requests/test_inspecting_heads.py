"""Modules captured and patched while texts are ranked and tokens labelled, by transformers' hooks.

`tests.runner.requests.make_hooks` writes what these give.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ggmodel
from ggmodel.errors import ComputeError
from ggmodel.runner import LoadedModel
from ggmodel.runner.requests.pooling import probabilities
from tests.convert import sentences
from tests.runner.requests.hooks import HERE, LABELS, PAIR, PAIR_MODULES, direction
from tests.runner.requests.test_classify import DOCUMENTS, QUERY, load
from tests.runner.requests.test_inspecting import nmse, patches_of

BOUND = 1e-9


def fails(rows: np.ndarray) -> np.ndarray:
    raise ValueError("no such direction")


def hooks_of(name: str) -> dict[str, np.ndarray]:
    with np.load(HERE / f"{name}.npz") as file:
        return dict(file)


def test_documents_are_ranked_by_a_model_that_is_looked_into():
    """Each pair is a request; the second text of each has a type of its own."""
    hooks, at = hooks_of("pair"), 2
    with load("reranker") as model:
        assert model.prompts.vocabulary().encode_pair(QUERY, DOCUMENTS[at]) == PAIR
        plain = model.rerank(QUERY, DOCUMENTS)
        assert nmse(plain[at], hooks["result"][0]) < BOUND
        for name in PAIR_MODULES:
            with model.capture(name) as seen:
                np.testing.assert_array_equal(model.rerank(QUERY, DOCUMENTS), plain)
            assert len(seen.requests) == len(DOCUMENTS)
            (rows,) = seen.requests[at].values()
            assert nmse(rows, hooks[name]) < BOUND, name
        name = PAIR_MODULES[0]
        for patch in patches_of(direction(hooks[name].shape[1])):
            with model.patch({name: patch}):
                scores = model.rerank(QUERY, DOCUMENTS)
            assert nmse(scores[at], hooks["patched"][0]) < BOUND
        with model.patch({name: fails}), pytest.raises(ComputeError, match="raised ValueError"):
            model.rerank(QUERY, DOCUMENTS)
        np.testing.assert_array_equal(model.rerank(QUERY, DOCUMENTS), plain)


def best_of(model: LoadedModel, texts: list[str]) -> list[list[float]]:
    """The score of the likeliest label of each token of each text."""
    each = model.classify_tokens(texts, aggregation="none", ignore=())
    return [[one["score"] for one in text] for text in each]


@pytest.mark.parametrize("family", LABELS)
def test_tokens_are_labelled_by_a_model_that_is_looked_into(family: str, tmp_path: Path):
    """Each text is a request, and the head has a row for each of its tokens."""
    hooks, texts = hooks_of(f"labels_{family}"), sentences.TEXTS
    path = sentences.labels_tokens(tmp_path / "folder", family)
    options: Any = {"kv_type": "f32", "flash_attention": "off", "threads": 1}
    with ggmodel.load(path, **options) as model:
        plain = best_of(model, texts)
        for name in LABELS[family]:
            with model.capture(name) as seen:
                assert best_of(model, texts) == plain
            assert len(seen.requests) == len(texts)
            (rows,) = seen.requests[0].values()
            assert nmse(rows, hooks[name]) < BOUND, name
        patched, head = LABELS[family][0], LABELS[family][-1]
        for patch in patches_of(direction(hooks[patched].shape[1])):
            with model.patch({patched: patch}), model.capture(head) as seen:
                best, *_ = best_of(model, texts)
            (rows,) = seen.requests[0].values()
            assert nmse(rows, hooks["patched"][0]) < BOUND
            first = probabilities(hooks["patched"][0])[1:-1].max(axis=1)
            assert np.array(best) == pytest.approx(first, abs=1e-5)
        with model.patch({head: fails}), pytest.raises(ComputeError, match="raised ValueError"):
            best_of(model, texts)
        assert best_of(model, texts) == plain
