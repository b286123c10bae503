"""/api/show through Ollama's client: a model by its files and its store, which is not loaded."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import ollama
import pytest

from ggmodel.serve.models import ModelPool
from ggmodel.serve.server import Server
from tests.convert.folders import write_golden
from tests.names.stores import put_hub, put_ollama
from tests.serve.conftest import ASSETS, connected, serving

STORIES = (ASSETS / "stories.gguf").read_bytes()
TEMPLATE = "{{ if .System }}<s>{{ .System }}{{ end }}\n<u>{{ .Prompt }}{{ .Response }}"
PARAMS = {"temperature": 0.5, "num_ctx": 64, "stop": ["<u>", " \n", '"'], "top_k": 1_000_000}
MESSAGES = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": 'Say "x"\nand'}]


@pytest.fixture
def bard(home: Path) -> Path:
    """A model of Ollama's store that has a layer of each kind; its manifest."""
    return put_ollama(
        home / "ollama",
        "library/bard:latest",
        ("model", STORIES),
        ("template", TEMPLATE.encode()),
        ("system", b'"Tell" stories.'),
        ("params", json.dumps(PARAMS).encode()),
        ("messages", json.dumps(MESSAGES).encode()),
        ("license", b"MIT License\n\nFree."),
        ("license", b"second"),
        host="registry.ollama.ai",
    )


class Unloaded(ModelPool):
    """A pool that loads nothing."""

    def use(self, name: str | None, **_: Any) -> Any:
        raise AssertionError(f"{name} is loaded")


@pytest.fixture
def stores(home: Path) -> Iterator[ollama.Client]:
    with (
        serving(Server(Unloaded({"shapes": str(ASSETS / "shapes.gguf")}))) as url,
        connected(url) as client,
    ):
        yield client


def test_all_that_a_store_has_is_shown(stores: ollama.Client, bard: Path):
    found = stores._client.post("/api/show", json={"model": "bard"}).json()

    assert found["template"] == TEMPLATE
    assert found["system"] == '"Tell" stories.'
    assert found["license"] == "MIT License\n\nFree.\nsecond"
    assert found["messages"] == MESSAGES
    words = [line.split(maxsplit=1) for line in found["parameters"].splitlines()]
    assert words == [
        ["temperature", "0.5"],
        ["num_ctx", "64"],
        ["stop", '"<u>"'],
        ["stop", '" \\n"'],
        ["stop", '"\\""'],
        ["top_k", "1000000"],
    ]
    assert found["details"] == {
        "parent_model": "",
        "format": "gguf",
        "family": "llama",
        "families": ["llama"],
        "parameter_size": "2.3M",
        "quantization_level": "Q8_0",
    }
    assert found["capabilities"] == ["completion"]
    assert found["modified_at"] > "2020-01-01"
    assert found["model_info"]["llama.context_length"] == 512
    assert found["model_info"]["general.parameter_count"] > 2_000_000


def test_a_modelfile_has_the_commands_of_ollama(stores: ollama.Client, bard: Path):
    text = stores.show("bard").modelfile or ""
    comment, _, lines = text.partition("\n\n")

    assert comment.startswith("# FROM bard:latest ")
    base, _, rest = lines.partition("\n")
    assert Path(base.removeprefix("FROM ")).read_bytes() == STORIES
    assert rest == (
        f'TEMPLATE "{TEMPLATE}"\n'
        'SYSTEM """"Tell" stories."""\n'
        "PARAMETER temperature 0.5\n"
        "PARAMETER num_ctx 64\n"
        "PARAMETER stop <u>\n"
        'PARAMETER stop " \n"\n'
        'PARAMETER stop """""""\n'
        "PARAMETER top_k 1000000\n"
        'LICENSE "MIT License\n\nFree."\n'
        "LICENSE second\n"
        "MESSAGE user Hello\n"
        'MESSAGE assistant """Say "x"\nand"""\n'
    )


def test_long_lists_and_tensors_come_where_they_are_wanted(stores: ollama.Client, bard: Path):
    def shown(**fields: Any) -> dict[str, Any]:
        return stores._client.post("/api/show", json={"model": "bard", **fields}).json()

    short, long = shown(), shown(verbose=True)

    assert short["model_info"]["tokenizer.ggml.tokens"] == [] and "tensors" not in short
    assert len(long["model_info"]["tokenizer.ggml.tokens"]) == 1536
    assert {"name": "token_embd.weight", "type": "Q8_0", "shape": [192, 1536]} in long["tensors"]
    for found in (short, long):
        assert not any("template" in key for key in found["model_info"])


def test_a_file_has_its_own_template_and_encoders(stores: ollama.Client):
    found = stores.show("shapes")

    assert found.capabilities == ["completion", "vision"]
    listed = stores._client.get("/api/tags").json()["models"]
    assert {one["name"]: one["capabilities"] for one in listed}["shapes:latest"] == (
        found.capabilities
    )
    assert "{%" in (found.template or "") and found.parameters == ""
    assert (found.modelfile or "").endswith(f"\n\nFROM {ASSETS / 'shapes.gguf'}\n")


def test_a_checkpoint_is_described_as_the_file_it_would_be(home: Path):
    folder, _ = write_golden(home / "folder", "llama", "plain_gqa")
    pool = Unloaded({"plain": str(folder)})
    with serving(Server(pool)) as url, connected(url) as client:
        found = client._client.post("/api/show", json={"model": "plain"}).json()
    assert found["modelfile"].endswith(f"\n\nFROM {folder}\n")
    assert found["details"]["format"] == "safetensors"
    assert found["details"]["families"] == ["llama"]
    assert found["model_info"]["general.parameter_count"] > 0
    assert found["details"]["quantization_level"] and found["details"]["parameter_size"] != "0"


def test_spellings_of_a_store(stores: ollama.Client, bard: Path, home: Path):
    put_hub(home / "hf" / "hub", "org/tales", {"tales-Q8_0.gguf": STORIES})

    for name in ("bard:latest", "BARD", "ollama://library/bard"):
        assert stores.show(name).template == TEMPLATE
    for name in ("org/tales:Q8_0", "org/tales", "hf.co/org/tales:latest"):
        found = stores.show(name)
        assert "tales-Q8_0.gguf" in (found.modelfile or "")


@pytest.mark.parametrize("name", ["nothing", "/etc/passwd", "../x", "org/none", "bard:7b"])
def test_what_is_not_here_is_not_shown(stores: ollama.Client, bard: Path, name: str):
    with pytest.raises(ollama.ResponseError, match="not found") as error:
        stores.show(name)
    assert error.value.status_code == 404


def test_a_damaged_layer_is_named(stores: ollama.Client, bard: Path):
    manifest = json.loads(bard.read_text())
    layer = next(one for one in manifest["layers"] if one["mediaType"].endswith("license"))
    blob = bard.parents[4] / "blobs" / layer["digest"].replace(":", "-")
    blob.write_bytes(b"X" * layer["size"])

    answer = stores._client.post("/api/show", json={"model": "bard"})

    assert answer.status_code == 400 and blob.name in answer.json()["error"]


def test_nothing_is_loaded_by_it(home: Path, bard: Path):
    async def work() -> None:
        pool = ModelPool({"stories": str(ASSETS / "stories.gguf")})
        with serving(Server(pool)) as url:

            def ask() -> list[Any]:
                with httpx.Client(base_url=url, timeout=30) as http:
                    for name in ("stories", "bard"):
                        assert http.post("/api/show", json={"model": name}).status_code == 200
                    return http.get("/api/ps").json()["models"]

            assert await asyncio.to_thread(ask) == []

    asyncio.run(work())
