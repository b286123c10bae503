"""Downloads from a server on loopback that speaks as Ollama's registry does."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ggmodel import names
from ggmodel.errors import ConfigError, DownloadError, Error, ModelNotFound, Unsupported, WriteError
from ggmodel.names import derived
from ggmodel.names.blobs import Step
from ggmodel.names.layers import DerivedModel

from .conftest import Homes
from .hub_server import Answer
from .registry_server import Registry
from .stores import digest, put_ollama

WEIGHTS, VISION = b"GGUF" + bytes(range(256)) * 400, b"GGUF that sees"
TEMPLATE, PARAMS = b"{{ .System }} {{ .Prompt }}", b'{"temperature": 0.5, "stop": ["<x>"]}'
LAYERS = (
    ("model", WEIGHTS),
    ("projector", VISION),
    ("template", TEMPLATE),
    ("system", b"Be kind."),
    ("params", PARAMS),
    ("license", b"MIT"),
)


@pytest.fixture
def registry(registry: Registry) -> Registry:
    registry.put("library/tale:1b", *LAYERS)
    return registry


@pytest.fixture
def store(homes: Homes) -> Path:
    return homes.home / ".local" / "share" / "ggmodel" / "models"


def blob(store: Path, data: bytes) -> Path:
    return store / "blobs" / f"sha256-{digest(data)}"


def manifests(store: Path) -> list[Path]:
    return [path for path in (store / "manifests").rglob("*") if path.is_file()]


def test_a_model_is_downloaded_once(registry: Registry, store: Path):
    shares: list[float] = []
    found = names.pull("tale:1b", progress=shares.append)

    assert found == names.find("tale:1b") and found.name == "tale:1b"
    assert found.path.read_bytes() == WEIGHTS and found.mmproj is not None
    assert found.mmproj.read_bytes() == VISION
    assert found.defaults.system == "Be kind." and found.defaults.options["temperature"] == 0.5
    assert "system" in found.template
    assert shares[-1] == 1.0 and shares == sorted(shares)
    (path,) = manifests(store)
    assert path.relative_to(store).as_posix() == "manifests/registry.ollama.ai/library/tale/1b"
    assert json.loads(path.read_bytes()) == registry.manifests["library/tale:1b"]
    assert len(registry.downloads()) == len(LAYERS) + 1
    names.pull("tale:1b")
    assert len(registry.downloads()) == len(LAYERS) + 1  # the manifest alone was asked for


def test_the_steps_are_those_of_ollama(registry: Registry):
    steps: list[Step] = []
    names.pull("tale:1b", report=steps.append)

    words = [*dict.fromkeys(step.status for step in steps)]
    assert words[0] == "pulling manifest"
    assert words[-2:] == ["verifying sha256 digest", "writing manifest"]
    assert set(words[1:-2]) == {f"pulling {digest(d)[:12]}" for _, d in LAYERS} | {
        f"pulling {registry.manifests['library/tale:1b']['config']['digest'][7:19]}"
    }
    of_weights = [s for s in steps if s.digest == f"sha256:{digest(WEIGHTS)}"]
    done = [s.completed for s in of_weights]
    assert done == sorted(done) and done[-1] == of_weights[0].total == len(WEIGHTS)
    again: list[Step] = []
    names.pull("tale:1b", report=again.append)
    assert all(s.completed == s.total for s in again)


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ("ollama://me/own:7b", "me/own:7b"),
        ("ollama://me/own", "me/own:latest"),
        ("ollama://library/other", "library/other:latest"),
        ("registry.ollama.ai/library/third:q4", "library/third:q4"),
        ("fourth", "library/fourth:latest"),
    ],
)
def test_names(registry: Registry, name: str, kept: str):
    registry.put(kept, ("model", WEIGHTS))
    found = names.pull(name)
    assert names.find(name).path == found.path
    assert f"/v2/{kept.replace(':', '/manifests/')}" in registry.asked[0][1]


def test_a_changed_model_is_pulled_anew(registry: Registry, store: Path):
    names.pull("tale:1b")
    registry.put("library/tale:1b", ("model", b"GGUF new"), ("template", TEMPLATE))
    asked = len(registry.downloads())

    assert names.pull("tale:1b").path.read_bytes() == b"GGUF new"
    assert len(registry.downloads()) == asked + 1  # the template is here
    assert not blob(store, WEIGHTS).exists() and blob(store, TEMPLATE).exists()


def test_a_pulled_model_is_our_own(registry: Registry, store: Path):
    names.pull("tale:1b")
    derived.copy("tale:1b", "twin")
    derived.create("tale:1b", DerivedModel("tale:1b", system="Be short."))
    assert len(manifests(store)) == 2  # the name of the registry is the same one
    assert names.find("tale:1b").defaults.system == "Be short."

    assert names.remove(names.removable("tale:1b")) < len(WEIGHTS)
    assert names.remove(names.removable("twin")) > len(WEIGHTS)
    assert not names.stored() and not list((store / "blobs").iterdir())


def test_a_cut_connection_goes_on_where_it_ended(registry: Registry):
    registry.cuts = 2
    assert names.pull("tale:1b").path.read_bytes() == WEIGHTS
    ranges = [r for _, path, r in registry.asked if "/content/" in path and r]
    assert len(ranges) == 2 and not any(r.startswith("bytes=0-") for r in ranges)


@pytest.mark.parametrize("ranges", [True, False])
def test_the_same_command_goes_on(registry: Registry, store: Path, ranges: bool):
    registry.cuts, registry.ranges = 1000, ranges
    with pytest.raises(DownloadError, match="the same command goes on where it stopped"):
        names.pull("tale:1b")
    part = blob(store, WEIGHTS).with_name(f"sha256-{digest(WEIGHTS)}.incomplete")
    assert 0 < part.stat().st_size < len(WEIGHTS)
    assert not names.stored() and not blob(store, WEIGHTS).exists()
    with pytest.raises(ModelNotFound):
        names.find("tale:1b")
    registry.cuts = 0
    shares: list[float] = []
    assert names.pull("tale:1b", progress=shares.append).path.read_bytes() == WEIGHTS
    assert not part.exists() and shares[-1] == 1.0


def test_ctrl_c_leaves_no_model(registry: Registry, store: Path):
    def interrupt(share: float) -> None:
        if share > 0.5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        names.pull("tale:1b", progress=interrupt)
    assert not names.stored() and not manifests(store)
    assert names.pull("tale:1b").path.read_bytes() == WEIGHTS


@pytest.mark.parametrize("kind", ["model", "template", "config"])
def test_damage_is_found_and_removed(registry: Registry, store: Path, kind: str):
    registry.damaged = (kind,)
    with pytest.raises(DownloadError, match="digest mismatch, file must be downloaded again"):
        names.pull("tale:1b")
    assert not names.stored() and not manifests(store)
    registry.damaged = ()
    assert names.pull("tale:1b").path.read_bytes() == WEIGHTS


def test_the_former_model_outlives_a_failure(registry: Registry):
    old = names.pull("tale:1b")
    registry.put("library/tale:1b", ("model", b"GGUF new"))
    registry.damaged = ("model",)
    with pytest.raises(DownloadError):
        names.pull("tale:1b")
    assert names.find("tale:1b") == old and old.path.read_bytes() == WEIGHTS


@pytest.mark.parametrize(
    ("name", "status", "error", "message"),
    [
        ("none", 0, ModelNotFound, "file does not exist: registry.ollama.ai has no model none"),
        ("tale:9b", 0, ModelNotFound, "check the name and the tag"),
        ("tale:1b", 401, ModelNotFound, "unauthorized: .* or it is private"),
        ("tale:1b", 429, DownloadError, "Ollama's registry answers 429; try again later"),
        ("tale:1b", 500, DownloadError, "answers 500"),
        ("./tale", 0, ConfigError, "none of Ollama"),
        ("ollama://a/b/c/d", 0, ConfigError, "no name of Ollama"),
    ],
)
def test_refusals(
    registry: Registry, name: str, status: int, error: type[Error], message: str, store: Path
):
    def alter(answer: Answer) -> None:
        answer.status = status or answer.status

    registry.alter = alter
    with pytest.raises(error, match=message):
        names.pull(name)
    assert not manifests(store)


def test_a_registry_that_is_not_there(homes: Homes, registry: Registry, monkeypatch):
    monkeypatch.setenv("GGMODEL_OLLAMA_REGISTRY", "http://127.0.0.1:9")
    with pytest.raises(DownloadError, match="cannot be downloaded"):
        names.pull("tale:1b")


def test_offline_asks_nobody(registry: Registry, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(ModelNotFound, match="HF_HUB_OFFLINE"):
        names.pull("tale:1b")
    assert not registry.asked


@pytest.mark.parametrize(
    ("layers", "config", "message"),
    [
        ([("model", WEIGHTS)], {"remote_host": "x"}, "runs in Ollama's cloud"),
        ([("model", WEIGHTS)], {"renderer": "r"}, "names the renderer 'r'.*ORG/REPO of the hub"),
        ([("tensor", WEIGHTS)], {}, "has safetensors only"),
        ([("model", WEIGHTS), ("novel", b"x")], {}, "layers of an unknown kind"),
        ([("model", WEIGHTS), ("template", b"{{ call .X }}")], {}, "template"),
        ([("model", WEIGHTS), ("params", b'{"mirostat": 2}')], {}, "mirostat"),
    ],
)
def test_what_cannot_be_run_is_refused_before_its_weights(
    registry: Registry, store: Path, layers: Any, config: dict[str, str], message: str
):
    registry.put("library/odd:latest", *layers, config=config)
    with pytest.raises(Unsupported, match=message):
        names.pull("odd")
    assert digest(WEIGHTS) not in registry.downloads()
    assert not names.stored() and not list((store / "blobs").iterdir())


def test_a_full_disk_is_said_before_weights_come(registry: Registry, monkeypatch):
    usage = SimpleNamespace(free=(64 << 20) + len(WEIGHTS) - 1)
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage)
    with pytest.raises(WriteError, match="bytes left for"):
        names.pull("tale:1b")
    assert not registry.downloads()


def test_a_layer_is_fetched_by_one_at_a_time(registry: Registry):
    with ThreadPoolExecutor(3) as pool:
        found = [*pool.map(lambda _: names.pull("tale:1b"), range(3))]
    assert len({model.path for model in found}) == 1
    assert len(registry.downloads()) == len(LAYERS) + 1


def test_files_that_go_meanwhile_come_again(registry: Registry, store: Path):
    registry.put("library/twin:latest", *LAYERS[:3])
    names.pull("twin")
    gone = threading.Event()

    def report(step: Step) -> None:
        if step.status.startswith("verifying") and not gone.is_set():
            gone.set()
            derived.delete("twin")

    assert names.pull("tale:1b", report=report).path.read_bytes() == WEIGHTS
    assert gone.is_set() and len(manifests(store)) == 1


def test_a_model_of_ollamas_own_store_stays_apart(registry: Registry, homes: Homes, store: Path):
    put_ollama(homes.ollama, "library/tale:1b", ("model", b"GGUF old"), host="registry.ollama.ai")
    assert names.pull("tale:1b").path.is_relative_to(store)
    assert names.find("tale:1b").path.read_bytes() == WEIGHTS  # our own comes first
    names.remove(names.removable("tale:1b"))
    assert names.find("tale:1b").path.read_bytes() == b"GGUF old"


# a registry that means harm


def endless() -> Iterator[bytes]:
    while True:
        yield b"[" * 65_536


@pytest.mark.parametrize(
    "change",
    [
        {"body": b""},
        {"body": b"[]"},
        {"body": b"\xff"},
        {"body": b"[" * 100_000},
        {"body": {"layers": {}}},
        {"body": {"layers": [], "config": None}},
        {"layer": {"digest": "sha256:../../../../victim"}},
        {"layer": {"digest": "../victim"}},
        {"layer": {"size": -1}},
        {"layer": {"size": 2**70}},
        {"layer": {"size": "9"}},
        {"layer": {"mediaType": None}},
        {"headers": {"Content-Encoding": "gzip"}},
        {"endless": True},
    ],
)
def test_a_manifest_is_not_believed(registry: Registry, homes: Homes, store: Path, change: Any):
    victim = homes.home / "victim"
    victim.write_bytes(b"precious")

    def alter(answer: Answer) -> None:
        if answer.kind != "manifest":
            return
        answer.body = json.loads(json.dumps(answer.body))
        answer.body["layers"][0].update(change.get("layer", {}))
        answer.headers.update(change.get("headers", {}))
        answer.body = change.get("body", answer.body)
        if change.get("endless"):
            answer.body = endless()

    registry.alter = alter
    with pytest.raises((DownloadError, Unsupported)):
        names.pull("tale:1b")
    assert victim.read_bytes() == b"precious" and not manifests(store)
    assert not list(homes.home.rglob("*victim*"))[1:]


@pytest.mark.parametrize("change", ["longer", "shorter", "elsewhere", "circle"])
def test_a_blob_is_not_believed(registry: Registry, store: Path, change: str):
    def alter(answer: Answer) -> None:
        if answer.kind == "content" and change in ("longer", "shorter"):
            answer.headers.pop("Content-Length")
            answer.body = iter([answer.body + b"x" if change == "longer" else answer.body[:-1]])
        elif answer.kind == "blob" and change == "elsewhere":
            answer.headers["Location"] = "file:///etc/passwd"
        elif answer.kind == "blob" and change == "circle":
            answer.headers["Location"] = (
                f"{registry.url}/v2/library/tale/blobs/sha256:{digest(WEIGHTS)}"
            )

    registry.alter = alter
    with pytest.raises(DownloadError):
        names.pull("tale:1b")
    assert not names.stored() and not manifests(store)


def test_a_slow_registry_ends_in_time(registry: Registry, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("ggmodel.names.remote._PATIENCE", 0.5)
    stop = threading.Event()

    def drip() -> Iterator[bytes]:
        for byte in WEIGHTS:
            if stop.wait(0.05):
                return
            yield bytes([byte])

    def alter(answer: Answer) -> None:
        if answer.kind == "content" and len(answer.body) == len(WEIGHTS):
            monkeypatch.setattr("ggmodel.names.remote._SLOWEST", 1 << 30)
            answer.body = drip()

    registry.alter = alter
    monkeypatch.setattr("ggmodel.names.remote._SLOWEST", 1 << 30)
    with pytest.raises(DownloadError, match="too slow"):
        names.pull("tale:1b")
    stop.set()
