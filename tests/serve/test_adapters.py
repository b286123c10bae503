"""Adapters in the server: as a model's name, by llama-server's field and its endpoint."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

import ggmodel
from ggmodel.gguf_file import MemorySource, open_gguf
from ggmodel.serve.models import ModelPool
from ggmodel.serve.server import Server
from tests.serve.conftest import ASSETS, serving

ASKED: Any = {"prompt": "Once upon", "max_tokens": 12, "temperature": 0}


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    options = {"adapters": {str(ASSETS / "shout"): 0.0}, "parallel": 2, "kv_type": "f32"}
    pool = ModelPool({"stories": str(ASSETS / "stories.gguf")}, options=options, stores=False)
    with serving(Server(pool)) as url, httpx.Client(base_url=url, timeout=60) as client:
        yield client


def text(client: httpx.Client, **fields: Any) -> str:
    answer = client.post("/v1/completions", json={**ASKED, **fields})
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]["text"]


def test_a_model_and_its_adapter_are_one_name(client: httpx.Client):
    assert "!" not in text(client)
    assert "." in text(client, model="stories")
    loud = client.post("/v1/completions", json={**ASKED, "model": "stories+shout"}).json()
    assert loud["model"] == "stories+shout"
    assert "!" in loud["choices"][0]["text"]
    assert "." in text(client, model="stories+shout", lora=[{"id": 0, "scale": 0.0}])
    listed = [one["id"] for one in client.get("/v1/models").json()["data"]]
    assert listed == ["stories", "stories+shout"]


@pytest.mark.parametrize("name", ["stories+whisper", "tales+shout", "stories+"])
def test_unknown_adapters_are_unknown_models(client: httpx.Client, name: str):
    answer = client.post("/v1/completions", json={**ASKED, "model": name})
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "model_not_found"


def test_llama_servers_field_and_endpoint(client: httpx.Client):
    scale: Any = [{"id": 0, "scale": 1.0}]
    asked = {"prompt": "Once upon", "n_predict": 12, "temperature": 0}
    plain = client.post("/completion", json=asked).json()["content"]
    loud = client.post("/completion", json={**asked, "lora": scale}).json()["content"]
    assert "!" in loud
    assert "!" not in plain
    listed = {"id": 0, "path": "shout", "scale": 0.0, "task_name": "", "prompt_prefix": ""}
    assert client.get("/lora-adapters").json() == [listed]
    assert client.post("/lora-adapters", json=scale).json() == {"success": True}
    try:
        assert client.get("/lora-adapters").json() == [{**listed, "scale": 1.0}]
        assert client.post("/completion", json=asked).json()["content"] == loud
        assert client.post("/completion", json={**asked, "lora": []}).json()["content"] == plain
    finally:
        assert client.post("/lora-adapters", json=[]).json() == {"success": True}
    assert client.post("/completion", json=asked).json()["content"] == plain


def test_wrong_numbers_are_refused(client: httpx.Client):
    for path, body in (
        ("/completion", {**ASKED, "lora": [{"id": 1}]}),
        ("/lora-adapters", [{"id": -1}]),
    ):
        answer = client.post(path, json=body)
        assert answer.status_code == 400
        assert "there is no adapter" in answer.json()["error"]["message"]
    assert client.post("/lora-adapters", json={"id": 0}).status_code == 400


def test_embeddings_have_the_adapter_of_the_name(write_gguf: Any, tmp_path: Path):
    name = "blk.0.ffn_down.weight"
    with open_gguf(ASSETS / "stories.gguf") as source:
        width, out = source.tensors[name].shape
        keys = {"general.architecture": source.metadata["general.architecture"]}
    random = np.random.default_rng(7)
    arrays: Any = {
        f"{name}.lora_a": random.normal(size=(2, width)).astype(np.float32),
        f"{name}.lora_b": random.normal(size=(out, 2)).astype(np.float32),
    }
    keys |= {"general.type": "adapter", "adapter.type": "lora"}
    write_gguf(tmp_path / "deep.gguf", MemorySource(keys, arrays))
    stories, path = str(ASSETS / "stories.gguf"), str(tmp_path / "deep.gguf")
    pool = ModelPool({"stories": stories}, options={"adapters": {path: 0.0}}, stores=False)
    with serving(Server(pool)) as url, httpx.Client(base_url=url, timeout=60) as client:
        rows = {}
        for model in ("stories", "stories+deep"):
            body = {"model": model, "input": "Once upon"}
            answer = client.post("/v1/embeddings", json=body).json()
            assert answer["model"] == model
            rows[model] = np.array(answer["data"][0]["embedding"])
    with ggmodel.load(stories, adapters={path: 0.0}) as model:
        for name, adapters in (("stories", None), ("stories+deep", "deep")):
            expected = model.embed(["Once upon"], normalize=True, adapters=adapters)[0]
            assert np.allclose(rows[name], expected, atol=1e-5)
    assert not np.allclose(*rows.values(), atol=1e-2)


def test_documents_are_ranked_without_adapters_of_a_name(client: httpx.Client):
    body = {"model": "stories+shout", "query": "a", "documents": ["b"]}
    answer = client.post("/rerank", json=body)
    assert answer.status_code == 400
    assert "for answers and embeddings alone" in answer.json()["error"]["message"]


def test_adapters_are_not_those_of_other_models(tmp_path: Path):
    """Only models that were named at start are loaded with them."""
    options = {"adapters": {"a": 1.0}, "parallel": 3}
    pool = ModelPool({"stories": str(ASSETS / "stories.gguf")}, options=options)
    named = pool._catalogue.look("stories")
    other = type(named)("other", "other", None, stored=True)
    assert pool._options_of(named) == options
    assert pool._options_of(other) == {"parallel": 3}
