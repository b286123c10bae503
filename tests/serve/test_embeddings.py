"""/v1/embeddings, /rerank, /score."""

from __future__ import annotations

import asyncio
import base64
import math
from collections.abc import Callable

import httpx
import numpy as np
import openai
import pytest

import ggmodel
from ggmodel import limits
from ggmodel.serve.api.openai import embeddings

TEXTS = ["a dog", "two cats and a bird"]


def test_rows_are_those_of_the_model(client: openai.OpenAI, stories: ggmodel.LoadedModel):
    found = client.embeddings.create(model="stories", input=TEXTS)

    rows = np.array([one.embedding for one in found.data])
    np.testing.assert_array_equal(rows, stories.embed(TEXTS, normalize=True))
    assert found.usage.prompt_tokens == sum(map(stories.length, TEXTS))


def test_base64_and_floats_are_the_same(http: httpx.Client):
    asked = {"input": TEXTS, "dimensions": 8}
    floats = http.post("/v1/embeddings", json=asked).json()["data"]
    coded = http.post("/v1/embeddings", json={**asked, "encoding_format": "base64"}).json()["data"]

    for one, other in zip(floats, coded, strict=True):
        row = np.frombuffer(base64.b64decode(other["embedding"]), "<f4")
        np.testing.assert_array_equal(row, np.array(one["embedding"], "<f4"))
        assert len(row) == 8


def test_token_ids_are_one_text(http: httpx.Client, stories: ggmodel.LoadedModel):
    ids = stories.tokenize(TEXTS[0])
    asked = [{"input": TEXTS[0]}, {"input": ids}, {"input": [ids]}]
    rows = [http.post("/v1/embeddings", json=one).json()["data"] for one in asked]
    assert rows[0] == rows[1] == rows[2]


def test_texts_among_token_ids(http: httpx.Client, stories: ggmodel.LoadedModel):
    ids = [*stories.tokenize("a dog"), *stories.tokenize(" and", add_special=False), 5]
    asked = [{"input": ids}, {"input": ["a dog", " and", 5]}, {"input": [["a dog", " and", 5]]}]
    rows = [http.post("/v1/embeddings", json=one).json()["data"] for one in asked]
    assert rows[0] == rows[1] == rows[2]


@pytest.mark.parametrize(
    ("change", "param"),
    [({"input": ""}, "input"), ({"input": []}, "input"), ({"dimensions": 0}, "dimensions")],
)
def test_wrong_fields_are_named(http: httpx.Client, change: dict, param: str):
    answer = http.post("/v1/embeddings", json={"input": "x", **change})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param


def test_documents_are_ordered_by_their_scores(http: httpx.Client):
    asked = {"query": "dog", "documents": ["a", "abc", {"text": "ab"}], "return_documents": True}

    found = http.post("/v1/rerank", json={**asked, "top_n": 2}).json()

    assert [one["index"] for one in found["results"]] == [1, 2]
    assert found["results"][0]["document"] == {"text": "abc"}


def test_teis_scores_go_from_0_to_1_unless_raw(http: httpx.Client):
    asked = {"query": "dog", "texts": ["a", "abc"], "return_text": True}
    found = http.post("/rerank", json=asked).json()
    assert [(one["index"], one["text"]) for one in found] == [(1, "abc"), (0, "a")]
    scores = [one["score"] for one in found]
    assert scores == pytest.approx([1 / (1 + math.exp(-3)), 1 / (1 + math.exp(-1))])
    raw = http.post("/rerank", json={**asked, "raw_scores": True}).json()
    assert [one["score"] for one in raw] == [3.0, 1.0]


def test_rows_in_teis_format(http: httpx.Client):
    texts = ["a dog", "a cat"]
    answer = http.post("/v1/embeddings", json={"input": texts}).json()
    rows = [one["embedding"] for one in answer["data"]]
    assert http.post("/embed", json={"inputs": texts}).json() == rows
    assert http.post("/embed", json={"inputs": texts[0]}).json() == rows[:1]
    plain = http.post("/embed", json={"inputs": texts, "normalize": False}).json()
    assert plain != rows
    answer = http.post("/embed", json={"inputs": ["a", ""]})
    assert answer.status_code == 400
    assert "inputs" in answer.text


def test_the_server_may_choose_how_rows_are_pooled(
    serve: Callable[..., str], stories: ggmodel.LoadedModel
):
    with httpx.Client(base_url=serve(pooling="last"), timeout=30) as http:
        last = stories.embed(TEXTS, pooling="last", normalize=True)
        assert http.post("/embed", json={"inputs": TEXTS}).json() == last.tolist()
        asked = {"model": "stories", "input": TEXTS}
        found = http.post("/v1/embeddings", json=asked).json()["data"]
        assert [one["embedding"] for one in found] == last.tolist()
        found = http.post("/api/embed", json=asked).json()["embeddings"]
        assert found == last.tolist()


def test_rows_of_tokens_where_nothing_is_pooled(
    serve: Callable[..., str], stories: ggmodel.LoadedModel
):
    with httpx.Client(base_url=serve(pooling="none"), timeout=30) as http:
        found = http.post("/embedding", json={"content": TEXTS}).json()
        assert [len(one["embedding"]) for one in found] == [*map(stories.length, TEXTS)]
        for one, mean in zip(found, stories.embed(TEXTS), strict=True):
            np.testing.assert_allclose(np.mean(one["embedding"], axis=0), mean, atol=1e-5)
        asked = {"model": "stories", "input": TEXTS, "inputs": TEXTS}
        for path in ("/v1/embeddings", "/embed", "/api/embed"):
            answer = http.post(path, json=asked)
            assert answer.status_code == 400 and "/embedding" in answer.text


def test_rows_of_tokens_are_bounded_before_they_are_computed(
    serve: Callable[..., str], stories: ggmodel.LoadedModel, monkeypatch: pytest.MonkeyPatch
):
    numbers = sum(map(stories.length, TEXTS)) * stories.embed(TEXTS).shape[1]
    with httpx.Client(base_url=serve(pooling="none"), timeout=30) as http:
        monkeypatch.setattr(limits, "serve_embedding_numbers", numbers)
        assert http.post("/embedding", json={"content": TEXTS}).status_code == 200
        monkeypatch.setattr(limits, "serve_embedding_numbers", numbers - 1)
        before = stories.engine.computed
        answer = http.post("/embedding", json={"content": TEXTS})
    assert answer.status_code == 400
    assert f"limit serve_embedding_numbers is {numbers - 1:,}" in answer.json()["error"]["message"]
    assert stories.engine.computed == before


@pytest.mark.parametrize("path", ["/embedding", "/embed", "/v1/embeddings"])
def test_rows_become_json_beside_the_event_loop(
    path: str, http: httpx.Client, monkeypatch: pytest.MonkeyPatch
):
    loops, in_json = [], embeddings._in_json

    def seen(found: np.ndarray) -> list:
        loops.append(asyncio._get_running_loop())
        return in_json(found)

    monkeypatch.setattr(embeddings, "_in_json", seen)
    http.post(path, json={"input": TEXTS, "inputs": TEXTS}).raise_for_status()
    assert loops == [None]


def test_scores_of_pairs(http: httpx.Client):
    found = http.post("/score", json={"text_1": "dog", "text_2": ["a", "abc"]}).json()
    assert [one["score"] for one in found["data"]] == [1.0, 3.0]
    assert http.post("/score", json={"text_1": ["a", "b"], "text_2": "c"}).status_code == 400


def test_models_are_listed(client: openai.OpenAI):
    assert [one.id for one in client.models.list()] == ["stories"]
    assert client.models.retrieve("stories").owned_by == "ggmodel"
    with pytest.raises(openai.NotFoundError, match="'none'"):
        client.models.retrieve("none")
