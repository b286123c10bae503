"""/api/create and /api/copy through Ollama's client: what a model is made from, and its steps."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ollama
import pytest
from gguf import GGUFWriter

from ggmodel import names
from ggmodel.errors import FormatError
from ggmodel.gguf_file import open_gguf
from ggmodel.names import blobs, layers, modelfile
from ggmodel.serve.models import ModelPool
from ggmodel.serve.server import Server, Settings
from tests.names.stores import put_ollama
from tests.serve.conftest import ASSETS, connected, serving

STORIES = (ASSETS / "stories.gguf").read_bytes()
SHAPES = ASSETS / "shapes.gguf"  # in F16
TEMPLATE = "{{ .System }}\n{{ .Prompt }}"
MESSAGES: Any = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi"}]


def digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


@pytest.fixture
def server(home: Path) -> Iterator[ollama.Client]:
    """A client of a server with models named at start, whose runners are processes."""
    named = {"tales": str(ASSETS / "stories.gguf"), "shapes": str(SHAPES)}
    pool = ModelPool(named, options={"gpu_layers": 0})
    with serving(Server(pool, Settings(manage=True))) as url, connected(url) as client:
        yield client


def shown(client: ollama.Client, name: str) -> dict[str, Any]:
    return client._client.post("/api/show", json={"model": name}).json()


def test_a_served_model_is_made_another_one(server: ollama.Client):
    steps = list(server.create("bard", from_="tales", system="Be brief.", stream=True))

    words = [step.status or "" for step in steps]
    assert words[0] == f"using existing layer {digest(STORIES)}"
    assert words[1].startswith("creating new layer sha256:")
    assert words[2:] == ["writing manifest", "success"]
    assert names.find("bard").path.read_bytes() == STORIES
    assert shown(server, "bard")["system"] == "Be brief."
    answer = server.chat("bard", MESSAGES[:1], options={"num_predict": 2, "temperature": 0})
    assert answer.message.content

    server.copy("tales", "twin")
    assert names.find("twin").path.read_bytes() == STORIES


def test_a_file_named_at_start_stays_loaded(server: ollama.Client):
    """A model of a store that is made with its name is another one."""
    server.generate("tales", "Once", options={"num_predict": 1})
    loaded = [one.model for one in server.ps().models]
    assert loaded
    server.create("tales", from_="tales", system="Be brief.")
    assert [one.model for one in server.ps().models] == loaded


@pytest.mark.parametrize(
    ("architecture", "type", "kind"),
    [
        ("llama", "", "model"),
        ("clip", "", "projector"),
        ("clip", "mmproj", "projector"),
        ("llama", "adapter", "adapter"),
    ],
)
def test_the_header_of_a_blob_tells_what_it_is_for(
    home: Path, architecture: str, type: str, kind: str
):
    writer = GGUFWriter(home / "any.bin", architecture)
    if type:
        writer.add_type(type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    blob = digest((home / "any.bin").read_bytes())
    with blobs.receive_blob(blob) as file:
        file.write((home / "any.bin").read_bytes())

    (layer,) = layers.uploads({"any.bin": blob})

    assert layer["mediaType"] == f"application/vnd.ollama.image.{kind}"
    if kind != "adapter":
        with pytest.raises(FormatError, match=f"'any.bin' is a {kind} by its header"):
            layers.uploads({"any.bin": blob}, "adapter")


def test_licences_are_added_and_parameters_merged(server: ollama.Client):
    server.create(
        "one", from_="tales", license="MIT", parameters={"temperature": 0.5, "num_ctx": 64}
    )
    server.create("two", from_="one", license=["Apache", "BSD"], parameters={"temperature": 0.1})

    found = shown(server, "two")
    assert found["license"] == "MIT\nApache\nBSD"
    values = dict(line.split() for line in found["parameters"].splitlines())
    assert values == {"temperature": "0.1", "num_ctx": "64"}
    assert found["details"]["parent_model"] == "one:latest"
    assert names.find("two").defaults.options == {"temperature": 0.1}


def test_a_printed_modelfile_makes_the_same_model(server: ollama.Client):
    server.create(
        "first",
        from_="tales",
        template=TEMPLATE,
        system='Say "yes".',
        parameters={"temperature": 0.5, "stop": ["a b", "\n"], "num_ctx": 64},
        messages=MESSAGES,
        license=["MIT License\n\nFree.", "other"],
    )
    made = modelfile.read(shown(server, "first")["modelfile"])
    assert server.create_blob(made.bases[0]) == digest(STORIES)
    server.create(
        "second",
        files={"m.gguf": digest(STORIES)},
        template=made.template,
        system=made.system,
        parameters=made.parameters,
        messages=made.messages,
        license=[*made.licenses],
    )

    first, second = (shown(server, name) for name in ("first", "second"))
    for found in (first, second):
        found.pop("modified_at")
        found["modelfile"] = found["modelfile"].partition("\n\n")[2]
        found["details"].pop("parent_model")
    assert second == first


def test_weights_are_quantised(server: ollama.Client):
    steps = list(server.create("small", from_="shapes", quantize="q8_0", stream=True))

    shares = [s for s in steps if (s.status or "").startswith("quantizing")]
    assert {s.status for s in shares} == {"quantizing F16 model to Q8_0"}
    done = [s.completed or 0 for s in shares]
    assert done == sorted(done) and done[-1] == shares[0].total == SHAPES.stat().st_size
    assert steps[-1].status == "success"
    assert shown(server, "small")["details"]["quantization_level"] == "Q8_0"
    with open_gguf(names.find("small")) as source, open_gguf(SHAPES) as before:
        assert source.tensors.keys() == before.tensors.keys()
        assert source.metadata["general.file_type"] == 7
    folder = names.find("small").path.parent
    assert not [one for one in folder.iterdir() if not one.name.startswith("sha256-")]


def test_what_is_not_quantised(server: ollama.Client, home: Path):
    asked = {"model": "x", "from": "tales", "quantize": "q4_K_M"}
    answer = server._client.post("/api/create", json={**asked, "stream": False})
    assert answer.status_code == 400
    assert "only supported for F16, BF16 and F32 models" in answer.json()["error"]
    assert server.create("y", from_="tales", quantize="Q8_0").status == "success"  # as it is
    assert names.find("y").path.read_bytes() == STORIES
    assert [one.name for one in names.stored()] == ["y:latest"]


def test_a_blob_that_is_no_model_is_refused(server: ollama.Client, home: Path):
    junk = home / "junk"
    junk.write_bytes(b"PK\3\4 no model")
    made_of = {"model": "x", "files": {"m.gguf": server.create_blob(junk)}}
    answer = server._client.post("/api/create", json=made_of)
    assert answer.status_code == 400
    assert "supplied file was not in GGUF format" in answer.json()["error"]


def test_a_model_that_is_replaced_leaves_nothing(server: ollama.Client, home: Path):
    server.create("x", from_="tales", system="one")
    folder = home / "data" / "ggmodel" / "models" / "blobs"
    count = len([*folder.iterdir()])
    server.create("x", from_="x", system="two", parameters={"temperature": 0.5})
    assert len([*folder.iterdir()]) == count + 1  # the parameters
    assert not (folder / digest(b"one").replace(":", "-")).exists()
    assert names.find("x").defaults.system == "two"


def test_a_base_in_ollamas_store_keeps_its_config(server: ollama.Client, home: Path):
    config = {"model_format": "gguf", "renderer": "its-own"}
    layers = ("model", STORIES), ("template", TEMPLATE.encode())
    put_ollama(home / "ollama", "library/odd:latest", *layers, config=config)
    server.create("mine", from_="odd", template=TEMPLATE)
    manifest = home / "data" / "ggmodel" / "models" / "manifests"
    (written,) = [path for path in manifest.rglob("*") if path.is_file()]
    blob = json.loads(written.read_text())["config"]["digest"].replace(":", "-")
    assert json.loads((manifest.parent / "blobs" / blob).read_text()) == config
