"""Adapters in the server: as a model's name, by llama-server's field and its endpoint."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

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


def test_rows_have_no_adapters_of_their_own(client: httpx.Client):
    answer = client.post("/v1/embeddings", json={"model": "stories+shout", "input": "a"})
    assert answer.status_code == 400
    assert "for answers alone" in answer.json()["error"]["message"]


def test_adapters_are_not_those_of_other_models(tmp_path: Path):
    """Only models that were named at start are loaded with them."""
    options = {"adapters": {"a": 1.0}, "parallel": 3}
    pool = ModelPool({"stories": str(ASSETS / "stories.gguf")}, options=options)
    named = pool._catalogue.look("stories")
    other = type(named)("other", "other", None, stored=True)
    assert pool._options_of(named) == options
    assert pool._options_of(other) == {"parallel": 3}
