"""The options of `ggmodel serve`, without a socket."""

from __future__ import annotations

import socket
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from ggmodel.cli import app
from ggmodel.errors import ArchitectureError, ConfigError
from ggmodel.gguf_file import MemorySource
from ggmodel.serve.listening import Listening, reserved
from ggmodel.serve.models.catalogue import Target
from ggmodel.serve.replicas.cluster import joined
from ggmodel.serve.runners import engines
from ggmodel.serve.server import Settings
from tests.serve.conftest import ASSETS


def loaded_with(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> dict[str, Any]:
    """The options of loading that a server with these arguments has."""
    seen: list[Any] = []
    monkeypatch.setattr("ggmodel.serve.listening.listen", lambda server, *_: seen.append(server))
    given = ["serve", "--only", str(ASSETS / "stories.gguf"), *arguments]
    assert CliRunner().invoke(app, given).exit_code == 0
    return seen[0].models._options


def test_sequences_are_as_many_as_wanted(monkeypatch: pytest.MonkeyPatch):
    assert loaded_with(monkeypatch)["parallel"] == 4
    assert loaded_with(monkeypatch, "--parallel", "1")["parallel"] == 1
    assert loaded_with(monkeypatch, "--parallel", "2")["parallel"] == 2


@pytest.mark.parametrize(
    ("option", "said"),
    [
        (("--pooling", "rank"), "pooling is 'rank'; give one of none, mean"),
        (("--seed", "-2"), "seed"),
    ],
)
def test_wrong_options_are_refused_at_the_start(option: tuple[str, str], said: str):
    given = ["serve", "--only", str(ASSETS / "stories.gguf"), *option]
    told = CliRunner().invoke(app, given)
    assert told.exit_code == 1 and said in " ".join(told.stderr.split())


@pytest.mark.parametrize("command", ["serve", "batch"])
def test_help_tells_the_default_that_counts(command: str):
    told = CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "200"}).stdout
    about = told[told.index("--parallel") : told.index("--threads")]
    assert "default: 4" in " ".join(about.split())


def test_clients_are_told_an_address_that_they_can_connect_to(monkeypatch: pytest.MonkeyPatch):
    def listen(server: Any, how: Any, ready: Any) -> None:
        ready("http://0.0.0.0:8080")

    monkeypatch.setattr("ggmodel.serve.listening.listen", listen)
    told = CliRunner().invoke(app, ["serve", "--only", str(ASSETS / "stories.gguf")])
    assert "base_url=http://127.0.0.1:8080/v1" in told.output
    assert told.stdout.startswith("serving at http://0.0.0.0:8080")


def test_an_address_is_had_by_one():
    with socket.create_server(("127.0.0.1", 0)) as one:
        settings = Settings(port=one.getsockname()[1])
    taken = pytest.raises(ConfigError, match="in use")
    with reserved(settings, Listening()), taken, reserved(settings, Listening()):
        pass


def test_help_names_all_apis():
    told = CliRunner().invoke(app, ["serve", "--help"]).stdout
    assert all(name in told for name in ("OpenAI", "Anthropic", "Ollama"))


@pytest.mark.parametrize(
    "given",
    [
        ("--pin", "stories"),
        ("--keep-alive", "300"),
        ("--manage",),
        ("--rpc", "127.0.0.1:50052"),
    ],
)
def test_options_that_replicas_have_no_use_for_are_refused_by_name(given: tuple[str, ...]):
    told = CliRunner().invoke(app, ["serve", "--ray", "2", *given, str(ASSETS / "stories.gguf")])
    assert told.exit_code == 1
    assert given[0] in told.stderr
    assert "leave out" in told.stderr


def test_replicas_without_ray_name_the_extra(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "ray.serve", None)
    monkeypatch.setitem(sys.modules, "ray", None)
    told = CliRunner().invoke(app, ["serve", "--ray", "2", str(ASSETS / "stories.gguf")])
    assert told.exit_code == 1
    assert "pip install 'ray[data,serve]>=" in told.stderr


@pytest.mark.parametrize(
    ("address", "named"),
    [("ray://here:10001", "a client's address"), ("127.0.0.1:{port}", "no cluster answers")],
)
def test_a_cluster_that_cannot_be_joined_is_told(
    monkeypatch: pytest.MonkeyPatch, address: str, named: str
):
    with socket.socket() as taken:  # it is bound, and does not listen
        taken.bind(("127.0.0.1", 0))
        monkeypatch.setenv("RAY_ADDRESS", address.format(port=taken.getsockname()[1]))
        with pytest.raises(ConfigError, match=named), joined():
            pass


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["{folder}/short.gguf"], "it is truncated or damaged"),
        (["{folder}/none.gguf"], "is empty"),
        (
            ["fine={stories}", "{folder}/other.gguf", "--engine", "ggmodel"],
            "no architecture 'other'",
        ),
        (["{stories}", "--kv-type", "f12"], "kv-type"),
        (["nobody"], "no model of that name"),
    ],
    ids=lambda value: value[-1] if isinstance(value, list) else "",
)
def test_models_that_cannot_be_loaded_are_refused_at_the_start(
    options: list[str],
    message: str,
    tmp_path: Path,
    write_gguf: Any,
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr("ggmodel.serve.listening.listen", lambda *_: None)
    stories = ASSETS / "stories.gguf"
    (tmp_path / "short.gguf").write_bytes(stories.read_bytes()[:300_000])
    (tmp_path / "none.gguf").touch()
    write_gguf(tmp_path / "other.gguf", MemorySource({"general.architecture": "other"}, {}))
    told = CliRunner().invoke(
        app, ["serve", *(one.format(folder=tmp_path, stories=stories) for one in options)]
    )
    assert told.exit_code == 1, told.output
    assert message in told.stderr


def test_another_engine_may_have_the_architecture(
    tmp_path: Path, write_gguf: Any, monkeypatch: pytest.MonkeyPatch
):
    path = write_gguf(tmp_path / "other.gguf", MemorySource({"general.architecture": "other"}, {}))
    target = Target("other", str(path), path)
    monkeypatch.setattr(engines, "program", lambda: "llama-server")
    for engine in ("auto", "llama.cpp"):
        engines.Engines(engine).check(target, {})
    monkeypatch.setattr(engines, "program", lambda: None)
    with pytest.raises(ArchitectureError):
        engines.Engines("auto").check(target, {})
