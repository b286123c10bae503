"""/api/pull through Ollama's client, from a registry on loopback."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import ollama
import pytest

from ggmodel import names
from ggmodel.serve.models import ModelPool
from ggmodel.serve.server import Server, Settings
from tests.names.hub_server import Answer
from tests.names.registry_server import Registry, serving_registry
from tests.names.stores import digest
from tests.serve.conftest import ASSETS, connected, serving

STORIES = (ASSETS / "stories.gguf").read_bytes()
ASK: Any = [{"role": "user", "content": "Hello"}]
LAYERS = (
    ("model", STORIES),
    ("template", b"{{ .System }} {{ .Prompt }}"),
    ("params", b'{"temperature": 0, "num_predict": 3}'),
    ("system", b"Tell stories."),
)


@pytest.fixture
def registry(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Registry]:
    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("ggmodel.names.remote._WAITS", (0.0, 0.0, 0.0))
    with serving_registry(Registry()) as served:
        monkeypatch.setenv("GGMODEL_OLLAMA_REGISTRY", served.url)
        served.put("library/bard:1b", *LAYERS)
        yield served


@pytest.fixture
def client(home: Path) -> Iterator[ollama.Client]:
    """A client of a server without models, whose runners are processes."""
    pool = ModelPool(options={"gpu_layers": 0})
    with serving(Server(pool, Settings(manage=True))) as url, connected(url) as found:
        yield found


def test_a_pull_is_told_in_ollamas_lines(client: ollama.Client, registry: Registry):
    steps = list(client.pull("bard:1b", stream=True))

    words = [*dict.fromkeys(step.status or "" for step in steps)]
    assert words[0] == "pulling manifest" and len(words) == 9
    assert all(word.startswith("pulling ") for word in words[:6])
    assert words[-3:] == ["verifying sha256 digest", "writing manifest", "success"]
    weights = [step for step in steps if step.digest == f"sha256:{digest(STORIES)}"]
    assert {step.status for step in weights} == {f"pulling {digest(STORIES)[:12]}"}
    assert {step.total for step in weights} == {len(STORIES)}
    assert weights[-1].completed == len(STORIES)
    assert len(weights) < 300  # steps of half a percent


def test_a_pulled_model_is_used_at_once(client: ollama.Client, registry: Registry):
    with pytest.raises(ollama.ResponseError, match="bard:1b"):
        client.chat("bard:1b", ASK)
    assert client.pull("bard:1b").status == "success"

    (listed,) = client.list().models
    assert listed.model == "bard:1b"
    assert client.chat("bard:1b", ASK).eval_count == 3  # as its parameters say
    assert "SYSTEM Tell stories." in (client.show("bard:1b").modelfile or "")
    (running,) = client.ps().models
    assert running.model == "bard:1b"

    registry.put("library/bard:1b", *LAYERS[:2], ("params", b'{"num_predict": 5}'))
    client.pull("bard:1b")
    assert client.chat("bard:1b", ASK).eval_count == 5  # loaded anew
    client.delete("bard:1b")
    assert not client.list().models and not names.stored()


@pytest.mark.parametrize("stream", [False, True])
def test_a_failure_is_told(client: ollama.Client, registry: Registry, stream: bool):
    with pytest.raises(ollama.ResponseError, match="pull model manifest: file does not exist") as e:
        [*client.pull("none", stream=stream)]  # type: ignore[call-overload]
    if not stream:
        assert e.value.status_code == 404
    registry.damaged = ("model",)
    with pytest.raises(ollama.ResponseError, match="digest mismatch"):
        [*client.pull("bard:1b", stream=stream)]  # type: ignore[call-overload]
    assert not client.list().models


@pytest.mark.parametrize("name", ["ollama://localhost:1/a/b", "10.0.0.1/library/bard:1b"])
def test_requests_name_no_other_hosts(client: ollama.Client, registry: Registry, name: str):
    with pytest.raises(ollama.ResponseError, match="is not pulled") as error:
        client.pull(name)
    assert error.value.status_code == 400
    with pytest.raises(ollama.ResponseError, match="is not pulled"):
        client.pull("bard:1b", insecure=True)
    answer = client._client.post("/api/pull", json={"model": "bard:1b", "insecure": False})
    assert answer.status_code == 200 and "x-ggmodel-warnings" not in answer.headers
    assert client.pull("registry.ollama.ai/library/bard:1b").status == "success"


def test_others_are_answered_meanwhile(client: ollama.Client, registry: Registry):
    client.pull("bard:1b")
    held = threading.Event()

    def slow() -> Iterator[bytes]:
        yield STORIES[: len(STORIES) // 2]
        held.wait(20)
        yield STORIES[len(STORIES) // 2 :] + b"!"

    registry.put("library/other:latest", ("model", STORIES + b"!"))

    def alter(answer: Answer) -> None:
        if answer.kind == "content" and len(answer.body) > 1000:
            answer.body = slow()

    registry.alter = alter
    steps = client.pull("other", stream=True)
    assert next(step for step in steps if step.completed and (step.total or 0) > 1000)
    assert client.chat("bard:1b", ASK).message.content
    held.set()
    assert [*steps][-1].status == "success"


def test_a_pull_goes_on_where_its_client_leaves(client: ollama.Client, registry: Registry):
    client.pull("bard:1b")
    client.chat("bard:1b", ASK)
    begun, held = threading.Event(), threading.Event()

    def slow() -> Iterator[bytes]:
        begun.set()
        held.wait(20)
        yield b'{"temperature": 0, "num_predict": 5}'

    registry.put(
        "library/bard:1b", *LAYERS[:2], ("params", b'{"temperature": 0, "num_predict": 5}')
    )

    def alter(answer: Answer) -> None:
        if answer.kind == "content":
            answer.body = slow()

    registry.alter = alter
    with pytest.raises(httpx.ReadTimeout):
        client._client.post("/api/pull", json={"model": "bard:1b", "stream": False}, timeout=0.5)
    assert begun.wait(20)
    time.sleep(0.2)  # until the server has noticed
    held.set()
    end = time.monotonic() + 20
    while client.chat("bard:1b", ASK).eval_count != 5:  # loaded anew
        assert time.monotonic() < end


def test_a_model_is_made_of_one_that_is_not_here(client: ollama.Client, registry: Registry):
    steps = [*client.create("poet", from_="bard:1b", system="Rhyme.", stream=True)]

    words = [step.status or "" for step in steps]
    assert words[0] == "pulling manifest" and "verifying sha256 digest" in words
    assert f"using existing layer sha256:{digest(STORIES)}" in words
    assert words[-2:] == ["writing manifest", "success"]
    weights = [step for step in steps if step.digest == f"sha256:{digest(STORIES)}"]
    assert weights[-1].completed == weights[-1].total == len(STORIES)
    assert {one.model for one in client.list().models} == {"poet:latest", "bard:1b"}
    assert "SYSTEM Rhyme." in (client.show("poet").modelfile or "")
    assert client.chat("poet", ASK).eval_count == 3  # as the base's parameters say

    asked = len(registry.asked)
    client.create("another", from_="bard:1b")
    assert len(registry.asked) == asked
    with pytest.raises(ollama.ResponseError, match="not found"):
        client.copy("other", "twin")  # copies only what is here
    assert len(registry.asked) == asked


@pytest.mark.parametrize("stream", [False, True])
def test_a_base_that_does_not_come(client: ollama.Client, registry: Registry, stream: bool):
    def failure(base: str, **options: Any) -> str:
        with pytest.raises(ollama.ResponseError) as caught:
            [*client.create("poet", from_=base, stream=stream, **options)]  # type: ignore[call-overload]
        assert not client.list().models and not names.stored()
        return f"{caught.value.status_code} {caught.value.error}"

    assert "pull model manifest: file does not exist" in failure("none")
    asked = len(registry.asked)
    assert failure("two words").startswith("404 model 'two words' not found")
    assert failure("./none.gguf").startswith("404 ")
    assert "is not pulled" in failure("10.0.0.1/library/bard:1b")
    assert failure("bard:1b", quantize="q9").startswith("400 ")
    assert failure("bard:1b", parameters={"mirostat": 2}).startswith("400 ")
    assert len(registry.asked) == asked  # told before anything comes
    registry.cuts = 1000
    assert "goes on where it stopped" in failure("bard:1b")
    registry.cuts, registry.damaged = 0, ("model",)
    assert "digest mismatch" in failure("bard:1b")
    registry.damaged = ()
    assert [*client.create("poet", from_="bard:1b", stream=True)][-1].status == "success"
