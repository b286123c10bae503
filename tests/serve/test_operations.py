"""Slots, properties, loading, versions, and rows, as llama-server, vLLM and LM Studio have them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import httpx
import numpy as np
import pytest

from ggmodel.serve.answers import Answer
from ggmodel.serve.pool import Condition, ListedModel
from ggmodel.serve.requests import Request
from ggmodel.serve.server import Server
from ggmodel.serve.under_way import UnderWay
from tests.serve.conftest import serving
from tests.serve.standin import InProcess, InProcessModels


def test_slots_are_told(http: httpx.Client, runner: InProcess, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(runner, "running", 3)
    found = http.get("/slots").json()
    assert [one["is_processing"] for one in found] == [True, True, True, False]
    assert [one["id"] for one in found] == [0, 1, 2, 3]
    assert found[0]["n_ctx"] == 512
    assert http.get("/slots?fail_on_no_slot=1").json() == found
    monkeypatch.setattr(runner, "running", 4)
    assert http.get("/slots").status_code == 200
    assert http.get("/slots?fail_on_no_slot=1").status_code == 503
    assert http.get("/slots?model=absent").status_code == 404


def test_slots_tell_how_far_answers_are(models: InProcessModels, runner: InProcess):
    server = Server(models)
    options = {
        "stop": ["secret"],
        "max_tokens": 5,
        "temperature": 0.0,
        "logit_bias": {1: -100.0, 4: -100.0},
    }

    async def seen(http: httpx.AsyncClient) -> list[Any]:
        answer = Answer(runner, Request("Once upon a time", dict(options)), server.metrics)
        states = list[Any]()
        async with answer:
            states.append((await http.get("/slots")).json())
            async for _ in answer:
                states.append((await http.get("/slots")).json())
        return [*states, (await http.get("/slots")).json()]

    with serving(server) as url:

        async def ask() -> list[Any]:
            async with httpx.AsyncClient(base_url=url) as http:
                return await seen(http)

        states = asyncio.run(ask())
    first, *later, after = states
    assert not any(one["is_processing"] for one in after)
    assert [one["is_processing"] for one in first] == [True, False, False, False]
    slot = first[0]
    assert slot["params"]["n_predict"] == 5 and slot["params"]["temperature"] == 0.0
    assert slot["params"]["top_k"] == 40  # the model's
    assert (slot["n_prompt_tokens_processed"], slot["next_token"]["n_decoded"]) == (0, 0)
    decoded = [one[0]["next_token"]["n_decoded"] for one in later]
    assert decoded == sorted(decoded) and decoded[-1] == 5
    last = later[-1][0]
    assert last["next_token"]["n_remain"] == 0
    assert last["n_prompt_tokens"] == last["n_prompt_tokens_processed"] > 3
    assert last["id_task"] == slot["id_task"]
    assert "Once" not in str(states) and "secret" not in str(states)


def test_the_prefill_is_told_as_far_as_it_is(runner: InProcess, models: InProcessModels):
    server = Server(models)
    answer = server.metrics.under_way.begin("stories", 100, {})
    answer.prefilled = 40
    with serving(server) as url:
        slot = httpx.get(f"{url}/slots").json()[0]
        assert (slot["n_prompt_tokens"], slot["n_prompt_tokens_processed"]) == (100, 40)
        answer.decoded = 1
        assert httpx.get(f"{url}/slots").json()[0]["n_prompt_tokens_processed"] == 100


def test_nothing_is_loaded_to_be_shown_but_properties(
    http: httpx.Client, models: InProcessModels, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(models, "is_loaded", False)
    assert http.get("/slots?fail_on_no_slot=1").json() == []
    answer = http.get("/props?model=stories&autoload=false")
    assert answer.status_code == 503 and "/models/load" in answer.text
    assert http.get("/props?model=stories").json()["total_slots"] > 0
    assert http.get("/props?model=absent").status_code == 404


def test_answers_keep_their_slots():
    board = UnderWay()
    a, b, c = (board.begin("m", 10, {}) for _ in range(3))
    assert board.slots("m", 2) == [a, b]
    b.decoded = 5
    assert board.positions("m", 2) == 25
    board.end("m", a)
    assert board.slots("m", 2) == [c, b]
    board.end("m", b)
    board.end("m", c)
    assert board.slots("m", 2) == [None, None] == board.slots("other", 2)
    assert board.begin("m", 1, {}).number == 3


def test_properties_are_read_only(http: httpx.Client):
    found = http.get("/props").json()
    assert found["default_generation_settings"]["params"]["top_k"] == 40
    assert found["build_info"].startswith("ggmodel-")
    answer = http.post("/props", json={"a": 1})
    assert answer.status_code == 403
    assert "do not change" in answer.json()["error"]["message"]


def test_requests_without_a_seed_have_the_server_s(serve: Callable[..., str]):
    with httpx.Client(base_url=serve(seed=7), timeout=30) as http:

        def text(path: str, **more: Any) -> Any:
            asked = {"model": "stories", "max_tokens": 12, "temperature": 1.5, "prompt": "Once"}
            answer = http.post(path, json=asked | more).raise_for_status().json()
            return answer["choices"][0]["text"] if "choices" in answer else answer["content"]

        assert http.get("/props").json()["default_generation_settings"]["params"]["seed"] == 7
        own, completions = text("/completion"), "/v1/completions"
        assert own == text("/completion") == text("/completion", seed=7)
        assert text(completions) == text(completions, seed=7)
        assert len({own, text("/completion", seed=8), text("/completion", seed=-1)}) == 3
        several = http.post(completions, json={"prompt": "Once", "n": 3, "temperature": 1.5})
        assert len({one["text"] for one in several.json()["choices"]}) == 3


def test_models_are_loaded_and_unloaded(
    http: httpx.Client, models: InProcessModels, monkeypatch: pytest.MonkeyPatch
):
    unloaded = list[str]()

    async def unload(name: str) -> None:
        unloaded.append(name)

    monkeypatch.setattr(models, "unload", unload)
    for word in ("load", "unload"):
        assert http.post(f"/models/{word}", json={"model": "stories"}).json() == {"success": True}
        assert http.post(f"/models/{word}", json={}).status_code == 400
    assert http.post("/models/load", json={"model": "absent"}).status_code == 404
    assert unloaded == ["stories"]


@pytest.mark.parametrize(
    ("condition", "status"),
    [
        ("unloaded", {"value": "unloaded"}),
        ("loading", {"value": "loading"}),
        ("failed", {"value": "unloaded", "failed": True}),
    ],
)
def test_the_status_of_models_is_llama_servers(
    http: httpx.Client,
    models: InProcessModels,
    monkeypatch: pytest.MonkeyPatch,
    condition: Condition,
    status: Any,
):
    assert http.get("/models").json()["data"][0]["status"] == {"value": "loaded"}

    async def listed() -> list[ListedModel]:
        return [ListedModel("a/b", "/b.gguf", 0.0, 1, details={"architecture": "llama"})]

    monkeypatch.setattr(models, "listed", listed)
    monkeypatch.setattr(models, "conditions", lambda: {"a/b": condition})
    assert http.get("/models").json()["data"][0]["status"] == status
    (shown,) = http.get("/api/v0/models").json()["data"]
    assert (shown["state"], shown["publisher"], shown["arch"]) == ("not-loaded", "a", "llama")


def test_versions_and_load(http: httpx.Client):
    import ggmodel

    assert http.get("/version").json() == {"version": ggmodel.__version__}
    assert http.get("/load").json() == {"server_load": 0}
    for method in ("GET", "POST"):
        answer = http.request(method, "/ping")
        assert (answer.status_code, answer.text) == (200, "")


def test_models_in_lm_studios_format(http: httpx.Client):
    (shown,) = http.get("/api/v0/models").json()["data"]
    assert (shown["id"], shown["object"], shown["type"]) == ("stories", "model", "llm")
    assert (shown["state"], shown["loaded_context_length"]) == ("loaded", 512)


def test_paths_without_a_version(http: httpx.Client):
    asked = {"input": "Hello"}
    long, short = (http.post(f"{v}/responses/input_tokens", json=asked) for v in ("/v1", ""))
    assert long.json() == short.json()
    assert http.post("/audio/transcriptions").status_code == 415


def test_rows_in_llama_servers_format(http: httpx.Client):
    usual = http.post("/v1/embeddings", json={"input": ["A dog", "A cat"]}).json()["data"]
    for path, name in (("/embedding", "content"), ("/embeddings", "input")):
        found = http.post(path, json={name: ["A dog", "A cat"]}).json()
        assert [one["index"] for one in found] == [0, 1]
        assert [one["embedding"] for one in found] == [[one["embedding"]] for one in usual]
    assert len(http.post("/embedding", json={"content": "A dog"}).json()) == 1


@pytest.mark.parametrize("norm", [-1, 0, 1, 2, 3])
def test_rows_are_scaled_by_any_norm(http: httpx.Client, norm: int):
    asked = {"content": "A dog", "embd_normalize": norm}
    row = np.array(http.post("/embedding", json=asked).json()[0]["embedding"][0])
    plain = np.array(
        http.post("/embedding", json={**asked, "embd_normalize": -1}).json()[0]["embedding"][0]
    )
    size = {-1: 1.0, 0: np.abs(plain).max() / 32760}.get(norm) or np.linalg.norm(plain, norm)
    np.testing.assert_allclose(row, plain / size, rtol=1e-5)


@pytest.mark.parametrize(
    ("body", "param"),
    [({}, "content"), ({"content": [""]}, "input"), ({"content": 7}, "content")],
)
def test_wrong_texts_are_named(http: httpx.Client, body: Any, param: str):
    answer = http.post("/embedding", json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param
