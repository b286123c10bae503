"""`ggmodel embed` and `ggmodel rerank`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ggmodel
from ggmodel.convert.write import write_gguf
from ggmodel.gguf_file import MemorySource
from tests.runner.requests.test_classify import DOCUMENTS, QUERY, described


@pytest.fixture(scope="module")
def reranker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("reranker") / "reranker.gguf"
    source = MemorySource(*described("reranker"))
    tensors = list(source.tensors.values())
    write_gguf(path, source.metadata, tensors, lambda t: source.data(t.name), lambda name: None)
    return path


def test_texts_become_lines_of_numbers(program: Any, reranker: Path):
    ran = program("embed", reranker, "who baked", "-", "--pooling", "mean", stdin="bread\n\nfox\n")
    assert ran.returncode == 0, ran.stderr
    rows = np.array([json.loads(line) for line in ran.stdout.splitlines()])
    with ggmodel.load(reranker) as model:
        want = model.embed(["who baked", "bread", "fox"], pooling="mean", normalize=True)
    assert rows.shape == (3, 64)
    assert np.abs(rows - want).max() < 1e-6


def test_documents_come_by_their_scores(program: Any, reranker: Path):
    ran = program("rerank", reranker, QUERY, *DOCUMENTS, "--top", "3", "--json")
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout)
    with ggmodel.load(reranker) as model:
        scores = model.rerank(QUERY, DOCUMENTS)
    order = np.argsort(-scores)[:3].tolist()
    assert [one["index"] for one in found] == order
    assert [one["document"] for one in found] == [DOCUMENTS[i] for i in order]
    plain = program("rerank", reranker, QUERY, *DOCUMENTS, "--normalize").stdout.splitlines()
    assert [line.split(maxsplit=1)[1] for line in plain][:3] == [DOCUMENTS[i] for i in order]
    assert all(0 < float(line.split()[0]) < 1 for line in plain)


def test_a_model_that_ranks_nothing_says_so(program: Any, model_path: Path):
    ran = program("rerank", model_path, "a", "b")
    assert ran.returncode == 1
    assert "error:" in ran.stderr
