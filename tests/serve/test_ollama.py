"""/api/… through Ollama's client."""

from __future__ import annotations

import gc
import hashlib
import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import ollama
import pytest

from ggmodel import names
from ggmodel.errors import ModelNotFound
from ggmodel.names import blobs
from ggmodel.names.blobs import Step
from ggmodel.serve.api.ollama import manage
from tests.serve.conftest import ASSETS, connected
from tests.serve.standin import InProcessModels

ASK: Any = [{"role": "user", "content": "Tell me a story about a dog."}]
GREEDY: Any = {"model": "stories", "options": {"temperature": 0, "num_predict": 12}}
STORIES = (ASSETS / "stories.gguf").read_bytes()
DIGEST = f"sha256:{hashlib.sha256(STORIES).hexdigest()}"


@pytest.fixture
def client(url: str) -> Iterator[ollama.Client]:
    with connected(url) as found:
        yield found


def test_chat_and_its_stream(client: ollama.Client):
    whole = client.chat(messages=ASK, **GREEDY)

    pieces = list(client.chat(messages=ASK, stream=True, **GREEDY))

    assert whole.message.content
    assert whole.done and whole.done_reason == "length" and whole.eval_count == 12
    assert whole.total_duration and whole.total_duration >= (whole.eval_duration or 0)
    assert "".join(p.message.content or "" for p in pieces) == whole.message.content
    assert [p.done for p in pieces] == [False] * (len(pieces) - 1) + [True]
    assert pieces[-1].prompt_eval_count == whole.prompt_eval_count


def test_generate_and_its_stream(client: ollama.Client):
    whole = client.generate(prompt="Once upon a time", **GREEDY)

    pieces = list(client.generate(prompt="Once upon a time", stream=True, **GREEDY))

    assert whole.response
    assert "".join(p.response or "" for p in pieces) == whole.response
    assert pieces[-1].done and pieces[-1].eval_count == 12


def test_a_raw_prompt_has_no_template(client: ollama.Client):
    raw = client.generate(prompt="Once upon a time", raw=True, **GREEDY)
    told = client.generate(prompt="Once upon a time", template="{{ .Prompt }}", **GREEDY)

    assert raw.response == told.response
    assert raw.prompt_eval_count == told.prompt_eval_count


def test_a_conversation_goes_on_from_its_context(client: ollama.Client):
    first = client.generate(prompt="Once upon a time", raw=True, **GREEDY)
    assert first.context is not None
    assert len(first.context) == (first.prompt_eval_count or 0) + 12

    second = client.generate(prompt=" and", raw=True, context=first.context, **GREEDY)

    assert (second.prompt_eval_count or 0) > len(first.context)
    assert second.context is not None
    assert second.context[: len(first.context)] == list(first.context)


def test_answers_obey_a_schema(client: ollama.Client):
    schema = {"type": "object", "properties": {"age": {"type": "integer", "maximum": 99}}}
    schema |= {"required": ["age"], "additionalProperties": False}
    options = {"temperature": 0, "num_predict": 60}

    found = client.chat("stories", ASK, format=schema, options=options)

    assert json.loads(found.message.content or "")["age"] <= 99


def test_logprobs(client: ollama.Client):
    found = client.generate(prompt="Once", logprobs=True, top_logprobs=2, raw=True, **GREEDY)

    assert found.logprobs is not None and len(found.logprobs) == 12
    assert len(found.logprobs[0].top_logprobs or ()) == 2


def test_without_a_prompt_the_model_is_loaded(http: httpx.Client):
    for path, empty in (("/api/chat", {"messages": []}), ("/api/generate", {"prompt": ""})):
        for stays, reason in (("5m", "load"), (0, "unload")):
            body = {"model": "stories", "keep_alive": stays, **empty}
            found = http.post(path, json=body).json()
            assert (found["done"], found["done_reason"]) == (True, reason)


def test_embeddings(client: ollama.Client):
    found = client.embed("stories", ["one", "two words"])
    one = client.embeddings("stories", "one")

    assert len(found.embeddings) == 2
    assert found.prompt_eval_count and found.prompt_eval_count >= 3
    assert sum(x * x for x in found.embeddings[0]) == pytest.approx(1, abs=1e-5)
    length = sum(x * x for x in one.embedding) ** 0.5
    assert [x / length for x in one.embedding] == pytest.approx(found.embeddings[0], abs=1e-5)


def test_the_models(client: ollama.Client, http: httpx.Client):
    (listed,) = client.list().models
    (loaded,) = client.ps().models
    shown = client.show("stories")

    assert listed.model == loaded.model == "stories:latest"
    assert client.chat("stories:latest", ASK, options={"num_predict": 1}).message.content
    assert re.fullmatch("[0-9a-f]{64}", listed.digest or "")
    assert listed.digest == loaded.digest
    assert loaded.context_length and loaded.context_length > 0
    assert "completion" in (shown.capabilities or ())
    assert shown.modelinfo
    assert http.get("/api/version").json()["version"].count(".") == 2


def test_values_that_ollama_takes(client: ollama.Client):
    """A context of none is the server's own."""
    asked: Any = {**GREEDY, "options": {**GREEDY["options"], "num_ctx": 0}}
    assert client.chat(messages=ASK, think=False, **asked).eval_count == 12


@pytest.mark.parametrize(
    ("path", "change", "what"),
    [
        ("/api/chat", {"messages": "x"}, "messages"),
        ("/api/chat", {"messages": ASK, "keep_alive": "soon"}, "'soon' is no duration"),
        ("/api/chat", {"messages": ASK, "format": "xml"}, "'xml' is neither"),
        ("/api/chat", {"messages": ASK, "think": "hard"}, "'hard' is none of"),
        ("/api/chat", {"messages": ASK, "options": {"top_k": "all"}}, "options.top_k"),
        ("/api/chat", {"messages": ASK, "options": {"num_ctx": "x"}}, "options.num_ctx"),
        ("/api/chat", {"messages": ASK, "tools": [{"type": "function"}]}, "tools[0].function"),
        ("/api/generate", {"prompt": "x", "suffix": "y"}, "suffix"),
        ("/api/generate", {"prompt": "x", "images": ["?"]}, "images[0] is no base64"),
        ("/api/generate", {"prompt": "x", "template": "{{ .Nothing"}, "template"),
        ("/api/embed", {"input": 1}, "input"),
        ("/api/show", {"model": None}, "model: is missing"),
    ],
)
def test_wrong_requests_name_the_field(
    http: httpx.Client, path: str, change: dict[str, Any], what: str
):
    answer = http.post(path, json={"model": "stories", **change})

    assert answer.status_code == 400
    assert what in answer.json()["error"]


# models that requests make


def test_models_are_made_copied_and_removed(
    manager: ollama.Client, models: InProcessModels, home: Path
):
    models.changes.clear()
    assert manager.create_blob(ASSETS / "stories.gguf") == DIGEST
    made = manager.create(
        "bard",
        files={"stories.gguf": DIGEST},
        system="You tell stories.",
        template="{{ .System }} {{ .Prompt }}",
        parameters={"temperature": 0.1, "num_ctx": 64},
    )
    assert made.status == "success"
    found = names.find("bard")
    assert found.path.read_bytes() == STORIES and found.store == "ggmodel's own store"
    assert found.defaults.system == "You tell stories."
    assert found.defaults.options["temperature"] == 0.1 and found.defaults.context_length == 64
    assert "system" in found.template

    manager.copy("bard", "poet")
    steps = list(manager.create("critic", from_="poet", system="You are unkind.", stream=True))

    assert steps[-1].status == "success"
    critic = names.find("critic")
    assert critic.defaults.system == "You are unkind."
    assert critic.template == found.template
    blobs = home / "data" / "ggmodel" / "models" / "blobs"
    assert sum(blob.stat().st_size >= len(STORIES) for blob in blobs.iterdir()) == 1
    for name in ("bard", "poet", "critic"):
        manager.delete(name)
    assert not list(blobs.iterdir()) and not names.stored()
    changed = [name.removesuffix(":latest") for name in models.changes]
    assert changed == ["bard", "poet", "critic", "bard", "poet", "critic"]


def test_capitals_make_no_other_name(manager: ollama.Client, home: Path):
    manager.create_blob(ASSETS / "stories.gguf")
    manager.create("Bard", files={"m.gguf": DIGEST})
    manager.create("bard", files={"m.gguf": DIGEST}, system="Be brief.")

    assert [one.name for one in names.stored()] == ["Bard:latest"]
    assert names.find("BARD").defaults.system == "Be brief."
    manager.delete("bARD")
    assert not names.stored()


@pytest.mark.parametrize(
    ("body", "status", "what"),
    [
        ({"model": "x"}, 400, "neither 'from' or 'files' was specified"),
        ({"model": "x", "from": "y", "files": {"a": DIGEST}}, 400, "both 'from' and 'files'"),
        ({"model": "x", "from": "nothing"}, 404, "model 'nothing' not found"),
        ({"model": "x", "from": "/etc/passwd"}, 404, "model '/etc/passwd' not found"),
        ({"model": "../x", "files": {"a": DIGEST}}, 400, "invalid model name"),
        ({"model": "x", "files": {"a": DIGEST}}, 404, "send it first"),
        ({"model": "x", "files": {"a": "sha256:../../etc"}}, 400, "invalid digest format"),
        ({"model": "x", "files": {"../a": DIGEST}}, 400, "file path must be relative"),
        ({"model": "x", "files": {"/a": DIGEST}}, 400, "file path must be relative"),
        ({"model": "x", "from": "stories", "quantize": "q9"}, 400, "no type 'q9'"),
        ({"model": "x", "from": "stories", "template": "{{ .X"}, 400, "the template"),
        ({"model": "x", "from": "stories", "license": 1}, 400, "license"),
    ],
)
def test_what_cannot_be_made(
    manager: ollama.Client, home: Path, body: dict[str, Any], status: int, what: str
):
    for stream in (False, True):  # no stream has begun
        answer = manager._client.post("/api/create", json={**body, "stream": stream})
        assert (answer.status_code, what in answer.json()["error"]) == (status, True)
    assert not names.stored()


def test_a_blob_of_another_digest_is_not_kept(manager: ollama.Client, home: Path):
    answer = manager._client.post(f"/api/blobs/{DIGEST}", content=b"something else")

    assert answer.status_code == 400
    assert "send it again" in answer.json()["error"]
    assert not list((home / "data" / "ggmodel" / "models" / "blobs").iterdir())


def test_uploads_of_unknown_length_stop_before_the_disk_is_full(
    manager: ollama.Client, home: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(blobs, "_EVERY", 1 << 20)
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=65 << 20))
    data = b"x" * (5 << 20)
    url = f"/api/blobs/sha256:{hashlib.sha256(data).hexdigest()}"
    answer = manager._client.post(url, content=(data[:65536] for _ in range(80)))

    assert (answer.status_code, "bytes left" in answer.json()["error"]) == (400, True)
    assert not list((home / "data" / "ggmodel" / "models" / "blobs").iterdir())


def test_an_unknown_option_leaves_no_model(manager: ollama.Client, home: Path):
    manager.create_blob(ASSETS / "stories.gguf")
    with pytest.raises(ollama.ResponseError, match="unsupported"):
        manager.create("x", files={"m.gguf": DIGEST}, parameters={"mirostat": 2})
    assert not names.stored()


@pytest.mark.parametrize(
    "wrong", [{"temperature": "hot"}, {"stop": 3}, {"num_ctx": "long"}, {"mirostat": 2}]
)
def test_a_wrong_option_is_refused_before_the_stream(
    manager: ollama.Client, home: Path, wrong: dict[str, Any]
):
    manager.create_blob(ASSETS / "stories.gguf")
    made_of = {"model": "x", "files": {"m.gguf": DIGEST}, "parameters": wrong, "stream": True}
    answer = manager._client.post("/api/create", json=made_of)
    assert answer.status_code == 400
    assert next(iter(wrong)) in answer.json()["error"]


def test_models_are_changed_only_where_that_is_allowed(client: ollama.Client, home: Path):
    for change in (
        lambda: client.pull("org/repo"),
        lambda: client.create("x", from_="stories"),
        lambda: client.copy("stories", "x"),
        lambda: client.delete("stories"),
        lambda: client.create_blob(ASSETS / "scene.png"),
    ):
        with pytest.raises(ollama.ResponseError, match="--manage") as error:
            change()
        assert error.value.status_code == 403


def test_a_pull_that_fails_says_why(manager: ollama.Client):
    with pytest.raises(ollama.ResponseError, match="HF_HUB_OFFLINE"):
        manager.pull("org/repo")
    with pytest.raises(ollama.ResponseError, match="none of Ollama"):
        manager.pull("./llama3.2")


def test_a_pull_that_fails_after_its_client_has_left_is_no_bug(
    manager: ollama.Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    left, ended = threading.Event(), threading.Event()

    def pull(name: str, report: Callable[[Step], None]) -> None:
        report(Step(f"pulling {name}: 10.0%"))
        left.wait(10)
        ended.set()
        raise ModelNotFound(f"{name} has gone")

    monkeypatch.setattr(manage, "pull", pull)
    with manager._client.stream("POST", "/api/pull", json={"model": "org/repo"}) as answer:
        assert "10.0%" in next(answer.iter_lines())
    time.sleep(0.2)  # until the server has seen it
    left.set()
    assert ended.wait(10)
    manager._client.get("/api/version")
    time.sleep(0.2)
    gc.collect()
    assert "has gone" not in caplog.text


TURNS: Any = [
    {"role": role, "content": text}
    for i in range(60)
    for role, text in (("user", f"The dog barked {i} times."), ("assistant", "It did."))
]


def test_long_chats_lose_their_oldest_turns(client: ollama.Client, http: httpx.Client):
    messages = [{"role": "system", "content": "Be brief."}, *TURNS, *ASK]

    found = client.chat(messages=messages, **GREEDY)

    assert found.prompt_eval_count is not None
    assert 512 - 12 - 40 < found.prompt_eval_count <= 512 - 12
    asked = {**GREEDY, "messages": messages, "truncate": False, "stream": False}
    refused = http.post("/api/chat", json=asked)
    assert refused.status_code == 400
    assert refused.json()["error"].endswith(
        "the available context size of 512; shorten it, or have the server load the model with a "
        "larger --context-length"
    )
    long = [*messages, {"role": "user", "content": "dog " * 900}]
    with pytest.raises(ollama.ResponseError, match="context size of 512"):
        client.chat(messages=long, **GREEDY)


def test_long_texts_lose_their_middle(client: ollama.Client, http: httpx.Client):
    asked = {**GREEDY, "prompt": "dog " * 900, "raw": True}

    assert client.generate(**asked).prompt_eval_count == 512 - 12

    refused = http.post("/api/generate", json={**asked, "truncate": False, "stream": False})
    assert refused.status_code == 400


def test_an_answer_goes_on_when_the_context_is_full(http: httpx.Client):
    options = {"temperature": 0, "num_predict": 100}
    asked = {"model": "stories", "prompt": "One day a dog ran. " * 55, "options": options}
    asked |= {"raw": True, "stream": False, "truncate": False}

    ends = http.post("/api/generate", json=asked).json()
    goes_on = http.post("/api/generate", json={**asked, "shift": True}).json()

    assert ends["prompt_eval_count"] + ends["eval_count"] == 512 and ends["done_reason"] == "length"
    assert goes_on["eval_count"] == 100
    assert goes_on["response"].startswith(ends["response"])
