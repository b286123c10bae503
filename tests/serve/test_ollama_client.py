"""All that Ollama's Python client does, with a server whose models are processes."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterator
from datetime import datetime, timezone
from typing import Any

import ollama
import pytest

from ggmodel.serve.models import ModelPool
from ggmodel.serve.server import Server, Settings
from tests.serve.conftest import ASSETS, connected, serving

STORIES = ASSETS / "stories.gguf"
ASK: Any = [{"role": "user", "content": "Tell me a story about a dog."}]
GREEDY: Any = {"temperature": 0, "num_predict": 8}
TEMPLATE = """{{ range .Messages }}<|{{ .Role }}|>
{{ if .Thinking }}<think>{{ .Thinking }}</think>{{ end }}{{ .Content }}
{{ end }}{{ if .ThinkLevel }}Think with {{ .ThinkLevel }} effort, please.{{ end }}<|assistant|>
{{ if .Think }}<think>
{{ end }}"""
PLAIN = "{{ range .Messages }}<|{{ .Role }}|>\n{{ .Content }}\n{{ end }}<|assistant|>\n"


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server with one model at start, and a home of its own."""
    home = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        for name in ("HOME", "HF_HOME", "XDG_DATA_HOME", "OLLAMA_MODELS"):
            patch.setenv(name, str(home / name))
        patch.setenv("HF_HUB_OFFLINE", "1")
        pool = ModelPool({"stories": str(STORIES)}, options={"gpu_layers": 0, "threads": 1})
        with serving(Server(pool, Settings(manage=True))) as found:
            yield found


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[ollama.Client]:
    with connected(url) as found:
        yield found


@pytest.fixture(scope="module")
def thinker(client: ollama.Client) -> str:
    """A model whose template begins with a thought where one is wanted."""
    client.create("thinker", from_="stories", template=TEMPLATE)
    return "thinker"


def test_a_model_from_its_making_to_its_end(client: ollama.Client):
    digest = client.create_blob(STORIES)
    assert digest == f"sha256:{hashlib.sha256(STORIES.read_bytes()).hexdigest()}"
    made = client.create(
        "bard:v1",
        files={"stories.gguf": digest},
        system="Tell stories.",
        parameters={"temperature": 0, "num_predict": 5},
        license=["MIT"],
        messages=[{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}],
    )
    assert made.status == "success"
    assert client.copy("bard:v1", "twin").status == "success"

    names = {model.model for model in client.list().models}
    assert {"stories:latest", "bard:v1", "twin:latest"} <= names
    for model in client.list().models:
        assert model.size and len(model.digest or "") == 64
        assert model.modified_at and model.modified_at.year >= 2026
        assert model.details and model.details.family == "llama"
    shown = client.show("twin")
    assert shown.license == "MIT" and shown.capabilities == ["completion"]
    assert shown.modelinfo and shown.modelinfo["general.architecture"] == "llama"
    assert shown.details and shown.details.parent_model == "bard:v1"
    assert "temperature" in (shown.parameters or "") and "SYSTEM Tell" in (shown.modelfile or "")

    assert client.chat("twin", ASK).eval_count == 5
    running = {model.model: model for model in client.ps().models}
    expires = running["twin:latest"].expires_at
    assert expires and expires > datetime.now(timezone.utc)
    client.generate("twin", keep_alive=0)  # unloads it
    assert "twin:latest" not in {model.model for model in client.ps().models}

    for name in ("bard:v1", "twin"):
        assert client.delete(name).status == "success"
        with pytest.raises(ollama.ResponseError) as error:
            client.show(name)
        assert error.value.status_code == 404
        with pytest.raises(ollama.ResponseError) as error:
            client.delete(name)
        assert error.value.status_code == 404


def test_texts_and_vectors(client: ollama.Client):
    whole = client.generate("stories", "Once upon a time", options=GREEDY)
    parts = list(client.generate("stories", "Once upon a time", options=GREEDY, stream=True))
    assert "".join(part.response or "" for part in parts) == whole.response
    assert whole.eval_count == 8 and whole.context

    two = client.embed("stories", ["one", "two"], dimensions=16)
    assert [len(vector) for vector in two.embeddings] == [16, 16]
    assert len(client.embeddings("stories", "one").embedding) == 192


def test_a_model_thinks_only_where_it_is_wanted(client: ollama.Client, thinker: str):
    found = client.chat(thinker, ASK, think=True, options=GREEDY)
    assert found.message.thinking and not found.message.content
    parts = list(client.chat(thinker, ASK, think=True, stream=True, options=GREEDY))
    assert "".join(p.message.thinking or "" for p in parts) == found.message.thinking

    plain = client.chat(thinker, ASK, think=False, options=GREEDY)
    assert plain.message.content and plain.message.thinking is None
    default = client.chat(thinker, ASK, options=GREEDY)
    assert default.message.thinking == found.message.thinking  # as Ollama's own default is

    text = client.generate(thinker, "A story.", think=True, options=GREEDY)
    assert text.thinking and not text.response
    assert client.show(thinker).capabilities == ["completion", "thinking"]


@pytest.mark.parametrize("level", ["low", "medium", "high", "max"])
def test_a_template_knows_how_hard_to_think(client: ollama.Client, thinker: str, level: str):
    def tokens(**fields: Any) -> int:
        found = client.chat(thinker, ASK, options=GREEDY, **fields)
        assert found.message.thinking
        return found.prompt_eval_count or 0

    assert tokens(think=level) > tokens(think=True)


def test_thoughts_of_earlier_answers_are_told(client: ollama.Client, thinker: str):
    def tokens(**fields: str) -> int:
        answer: Any = {"role": "assistant", "content": "A dog ran.", **fields}
        found = client.chat(thinker, [*ASK, answer, *ASK], think=False, options=GREEDY)
        return found.prompt_eval_count or 0

    assert tokens(thinking="The dog could run or sleep.") > tokens() + 5


def test_what_a_model_cannot_do_is_refused(client: ollama.Client):
    client.create("plain", from_="stories", template=PLAIN)
    for ask in (
        lambda: client.chat("plain", ASK, think=True),
        lambda: client.generate("plain", "Hi", think="low"),
    ):
        with pytest.raises(ollama.ResponseError, match='"plain" does not support thinking') as e:
            ask()
        assert e.value.status_code == 400
    assert client.chat("plain", ASK, think=False, options=GREEDY).message.content
    assert client.show("plain").capabilities == ["completion"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_push_is_refused_with_the_reason(client: ollama.Client, stream: bool):
    with pytest.raises(ollama.ResponseError, match="'me/mine' is not pushed") as error:
        [*client.push("me/mine", stream=stream)]  # type: ignore[call-overload]
    assert error.value.status_code == 400


def test_the_asynchronous_client(url: str, thinker: str):
    async def work() -> None:
        client = ollama.AsyncClient(host=url, timeout=30)
        try:
            listed = await client.list()
            assert "stories:latest" in {model.model for model in listed.models}
            stream = await client.chat(thinker, ASK, think="high", stream=True, options=GREEDY)
            parts = [part async for part in stream]
            assert parts[-1].done and any(part.message.thinking for part in parts)
            assert (await client.show("stories")).capabilities
        finally:
            await client._client.aclose()

    asyncio.run(work())
