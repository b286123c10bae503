"""Documents ranked by a runner's own model."""

from __future__ import annotations

import pytest

from ggmodel.errors import PromptError, Unsupported
from ggmodel.serve.requests import Rank
from ggmodel.serve.runners.state import state_of
from ggmodel.serve.runners.work import Work
from tests.runner.requests.test_classify import DOCUMENTS, QUERY, load


def test_documents_are_ranked():
    with load("reranker") as model:
        ranks = Work(model).rank(Rank(QUERY, DOCUMENTS), lambda: None)
        assert ranks.scores == model.rerank(QUERY, DOCUMENTS).tolist()
        assert ranks.tokens == [8, 6, 10, 6]
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
