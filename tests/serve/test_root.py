"""Health, numbers, the description of all endpoints, the page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from ggmodel.serve.models import ModelPool
from ggmodel.serve.models.catalogue import Catalogue
from ggmodel.serve.pool import ListedModel
from ggmodel.serve.server import Server
from tests.serve.conftest import ASSETS, serving
from tests.serve.standin import InProcessModels


def test_health(http: httpx.Client):
    assert http.get("/health").json() == {"status": "ok", "models": {"stories": "ready"}}
    assert http.head("/health").content == b""


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("PUT", "/v1/chat/completions", "POST"),
        ("POST", "/v1/models", "GET, HEAD"),
        ("PATCH", "/v1/responses/x", "DELETE, GET, HEAD"),
        ("OPTIONS", "/v1/responses/input_tokens", "POST"),
    ],
)
def test_a_method_that_does_not_exist(http: httpx.Client, method: str, path: str, allowed: str):
    answer = http.request(method, path)
    assert (answer.status_code, answer.headers["allow"]) == (405, allowed)
    assert method in answer.json()["error"]["message"]


def test_all_endpoints_are_described(http: httpx.Client):
    found = http.get("/openapi.json").json()

    operations = [one for path in found["paths"].values() for one in path.values()]
    assert all(one["summary"] for one in operations)
    body = found["paths"]["/v1/chat/completions"]["post"]["requestBody"]
    name = body["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
    assert "messages" in found["components"]["schemas"][name]["properties"]
    assert found["paths"]["/v1/responses/{id}"]["get"]["parameters"][0]["name"] == "id"


def test_the_model_is_described(http: httpx.Client):
    found = http.get("/props").json()
    assert found["default_generation_settings"]["n_ctx"] == 512
    assert found["modalities"] == {"vision": False, "audio": False}


def test_of_names_that_differ_in_capitals_the_exact_one_is_described(
    http: httpx.Client, models: InProcessModels, monkeypatch: pytest.MonkeyPatch
):
    names = {"Stories": "stories.gguf", "stories": "shapes.gguf"}

    async def listed() -> list[ListedModel]:
        return [ListedModel(name, str(ASSETS / file), 0.0, 1) for name, file in names.items()]

    monkeypatch.setattr(models, "listed", listed)
    for name in names:
        for tag in ("", ":latest"):
            assert http.get(f"/v1/models/{name}{tag}").json()["id"] == name
            shown = http.post("/api/show", json={"model": name + tag}).json()
            assert f"\nFROM {ASSETS / names[name]}\n" in shown["modelfile"]


def test_models_that_are_not_loaded_are_described_by_their_headers(
    http: httpx.Client, models: InProcessModels, monkeypatch: pytest.MonkeyPatch
):
    names = ("stories", "shapes", "tones")
    catalogue = Catalogue({name: str(ASSETS / f"{name}.gguf") for name in names}, stores=False)

    async def listed() -> list[ListedModel]:
        return catalogue.listed()

    monkeypatch.setattr(models, "listed", listed)
    shown = {one["id"]: one for one in http.get("/v1/models").json()["data"]}

    assert {name: one["kinds"] for name, one in shown.items()} == {
        "stories": [],
        "shapes": ["image"],
        "tones": ["audio"],
    }
    assert "chat" in shown["stories"]["abilities"] and "chat" in shown["shapes"]["abilities"]
    assert shown["tones"]["abilities"] == ["transcription"]
    assert shown["stories"]["context_length"] == 512
    assert shown["stories"]["size"] == (ASSETS / "stories.gguf").stat().st_size
    assert not shown["stories"]["removable"]


def test_the_page_and_its_files(http: httpx.Client):
    page = http.get("/", headers={"accept": "text/html,*/*;q=0.8"})
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert "javascript" in http.get("/page/app.js").headers["content-type"]
    for name in ("..%2fapp.py", "absent.js", "index.py"):
        assert http.get(f"/page/{name}").status_code == 404


def test_a_file_that_breaks_later_is_the_servers_fault(tmp_path: Path):
    path = tmp_path / "broken.gguf"
    path.write_bytes(b"GGUF")
    chat: Any = {"messages": [{"role": "user", "content": "a"}]}
    ask: Any = {"model": "broken", "max_tokens": 1, **chat}
    with (
        serving(Server(ModelPool({"broken": str(path)}, stores=False))) as url,
        httpx.Client(base_url=url, timeout=60) as http,
    ):
        paths = ("/v1/chat/completions", "/v1/messages", "/api/chat")
        answers = [http.post(path, json=ask) for path in paths]
    assert [one.status_code for one in answers] == [500, 500, 500]
    openai, anthropic, ollama = (one.json()["error"] for one in answers)
    assert (openai["type"], openai["code"]) == ("server_error", "load_failed")
    assert anthropic["type"] == "api_error"
    assert "broken cannot be loaded: " in ollama
