"""Documents ranked by a runner's own model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import ggmodel
from ggmodel.errors import PromptError, Unsupported
from ggmodel.serve.requests import Embed, Rank
from ggmodel.serve.runners.state import state_of
from ggmodel.serve.runners.work import Work
from tests.convert import sentences
from tests.convert.sentences import TEXTS
from tests.runner.requests.test_classify import DOCUMENTS, QUERY, load


def test_documents_are_ranked():
    with load("reranker") as model:
        ranks = Work(model).rank(Rank(QUERY, DOCUMENTS), lambda: None)
        assert ranks.scores == model.rerank(QUERY, DOCUMENTS).tolist()
        assert ranks.tokens == [8, 6, 10, 6]
        unit = Work(model).rank(Rank(QUERY, DOCUMENTS, True), lambda: None)
        assert unit.scores == model.rerank(QUERY, DOCUMENTS, normalize=True).tolist()
        assert state_of(model).abilities == ["embedding", "rerank"]


def test_a_document_that_is_far_too_long_is_refused_before_it_is_read():
    with load("reranker") as model, pytest.raises(PromptError, match="characters"):
        Work(model).rank(Rank(QUERY, ["a" * 1_000_000]), lambda: None)


@pytest.mark.parametrize("case", ["released", "electra"])
def test_a_model_that_ranks_nothing_says_so(case: str):
    with load(case) as model:
        assert state_of(model).abilities == ["embedding"]
        with pytest.raises(Unsupported):
            Work(model).rank(Rank(QUERY, DOCUMENTS), lambda: None)


def test_rows_have_the_prompts_of_the_file(tmp_path: Path):
    with ggmodel.load(sentences.plain(tmp_path), threads=1) as model:
        for name in (None, "passage"):
            request = Embed(list(TEXTS), normalize=False, truncate=True, prompt_name=name)
            rows = Work(model).embed(request, lambda: None)
            want = model.embed(TEXTS, prompt_name=name, truncate=True)
            got = np.frombuffer(rows.data, np.float32).reshape(rows.count, rows.width)
            assert np.abs(got - want).max() < 1e-6
            assert max(rows.tokens) == 16
        with pytest.raises(PromptError, match="no prompt 'other'"):
            Work(model).embed(Embed(["a"], prompt_name="other"), lambda: None)
        with pytest.raises(PromptError, match=r"text 1: .* is empty"):
            Work(model).embed(Embed([[1], []]), lambda: None)
