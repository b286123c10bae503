"""Rerankers in llama.cpp's server, on our files: the same scores."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path

import numpy as np
import pytest

import ggmodel
from ggmodel.convert import convert
from tests.convert import sentences
from tests.convert.sentences import PAIRS
from tests.peers.servers import peer


@pytest.mark.parametrize("tied", [True, False])
def test_the_probability_of_yes(tmp_path: Path, tied: bool):
    folder = sentences.qwen3(tmp_path / "Qwen3-Reranker-tiny", closing=False, tied=tied)
    convert(folder, tmp_path / "model.gguf", "f32")
    query, documents = PAIRS[0][0], [document for _, document in PAIRS]
    body = json.dumps({"query": query, "documents": documents}).encode()
    with peer(tmp_path / "model.gguf", "reranking") as address:
        answer = urllib.request.urlopen(urllib.request.Request(f"{address}/rerank", body))
        results = json.load(answer)["results"]
    theirs = {one["index"]: one["relevance_score"] for one in results}
    options = {"kv_type": "f32", "flash_attention": "off", "threads": 1}
    with ggmodel.load(tmp_path / "model.gguf", **options) as model:
        scores = model.rerank(query, documents)
    assert np.abs(scores - [theirs[i] for i in range(len(documents))]).max() < 1e-5
    assert len({round(float(score), 5) for score in scores}) == len(documents)
