"""`ggmodel embed`, `rerank` and `tokenize`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ggmodel
from ggmodel.convert.write import write_gguf
from ggmodel.gguf_file import MemorySource
from tests.convert import sentences
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


def test_prompts_and_dimensions_of_a_folder(program: Any, tmp_path: Path):
    folder = sentences.plain(tmp_path)
    asked = ("--prompt-name", "passage", "--dimensions", "3", "--truncate", "--no-normalize")
    ran = program("embed", folder, *sentences.TEXTS, *asked)
    assert ran.returncode == 0, ran.stderr
    rows = np.array([json.loads(line) for line in ran.stdout.splitlines()])
    with ggmodel.load(folder) as model:
        options: dict[str, Any] = {"prompt_name": "passage", "dimensions": 3, "truncate": True}
        want = model.embed(sentences.TEXTS, **options)
    assert np.abs(rows - want).max() < 1e-6
    ran = program("embed", folder, "a", "--kind", "colour")
    assert ran.returncode == 2
    assert "'colour' is none of dense, sparse, tokens" in ran.stderr


def test_weights_and_rows_of_tokens(program: Any, tmp_path: Path):
    folder = sentences.further_heads(tmp_path)
    with ggmodel.load(folder) as model:
        [weights], [rows] = model.embed_sparse(["bread"]), model.embed_tokens(["bread"])
    ran = program("embed", folder, "bread", "--kind", "sparse")
    assert json.loads(ran.stdout) == {str(k): pytest.approx(v, 1e-5) for k, v in weights.items()}
    ran = program("embed", folder, "bread", "--kind", "tokens")
    assert np.abs(np.array(json.loads(ran.stdout)) - rows).max() < 1e-6


def test_labels_of_texts_and_of_tokens(program: Any, reranker: Path, tmp_path: Path):
    ran = program("classify", reranker, "who baked", "bread")
    assert ran.returncode == 0, ran.stderr
    with ggmodel.load(reranker) as model:
        want = model.classify(["who baked", "bread"])[:, 0]
    got = [json.loads(line)["LABEL_0"] for line in ran.stdout.splitlines()]
    assert np.abs(np.array(got) - want).max() < 1e-6
    folder = sentences.labels_tokens(tmp_path, "bert")
    ran = program("classify", folder, "the fox", "--aggregation", "none")
    assert all({"entity", "score", "start", "end"} <= one.keys() for one in json.loads(ran.stdout))


def test_a_text_becomes_tokens(program: Any, model_path: Path):
    with ggmodel.load(model_path) as model:
        ids = model.tokenize("abc the")
        bare = model.tokenize("abc the", add_special=False)
    assert json.loads(program("tokenize", model_path, "abc the", "--ids").stdout) == ids
    given = program("tokenize", model_path, "-", "--no-special", "--json", stdin="abc the\n")
    assert [one["id"] for one in json.loads(given.stdout)] == bare
    lines = program("tokenize", model_path, "abc the").stdout.splitlines()
    assert [int(line.split()[0]) for line in lines] == ids
    shown = "".join(json.loads(line.split(maxsplit=1)[1]) for line in lines)
    assert shown.removeprefix("<|bos|>") == "abc the"
