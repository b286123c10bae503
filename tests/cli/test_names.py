"""Commands that take names of models."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import ggmodel
from ggmodel.cli.options import complete_model
from ggmodel.names import Stored
from tests.documents import blocks, commands, read
from tests.names.hub_server import Hub, serving
from tests.names.registry_server import Registry, serving_registry
from tests.names.stores import digest, put_hub, put_ollama

TEMPLATE = b"{{ .System }}<u>{{ .Prompt }}<a>{{ .Response }}<e>"


@pytest.fixture
def stores(tmp_path: Path) -> dict[str, str]:
    """Stores of this machine in a folder, as environment variables."""
    return {
        "HOME": str(tmp_path),
        "HF_HOME": str(tmp_path / "hf"),
        "OLLAMA_MODELS": str(tmp_path / "ollama"),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "XDG_DATA_HOME": str(tmp_path / "data"),
        "HF_HUB_OFFLINE": "1",
    }


@pytest.fixture
def tiny(stores, model_path: Path, tmp_path: Path) -> bytes:
    """The content of a model that two stores have."""
    data = model_path.read_bytes()
    put_hub(tmp_path / "hf" / "hub", "org/repo", {"tiny-F32.gguf": data})
    params = json.dumps({"temperature": 0, "num_predict": 3, "num_ctx": 48}).encode()
    layers = ("model", data), ("template", TEMPLATE), ("system", b"abc"), ("params", params)
    put_ollama(tmp_path / "ollama", "library/tiny:latest", *layers)
    return data


@pytest.mark.slow
def test_one_string_runs_a_model(program, stores, tiny, model_path: Path):
    own = program("run", model_path, "abc", "-n3", "--temperature", "0")
    hub = program("run", "org/repo", "abc", "-n3", "--temperature", "0", "--where", env=stores)
    assert own.returncode == hub.returncode == 0 and hub.stdout == own.stdout
    assert "org/repo: Hugging Face's cache, " in hub.stderr
    ollama = program("run", "--where", "tiny", "abc", "--raw", env=stores)
    assert ollama.stdout == own.stdout and "tiny:latest: Ollama's store, " in ollama.stderr
    longer = program("run", "tiny", "abc", "-n", "5", env=stores)  # the user's option counts
    assert "answer: 5 tokens" in longer.stderr


def test_a_store_says_how_a_model_is_used(stores, tiny, monkeypatch: pytest.MonkeyPatch):
    for name, value in stores.items():
        monkeypatch.setenv(name, value)
    with ggmodel.load("tiny") as model:
        assert model.context_length == 48
        ids = model.chat_prompt([{"role": "user", "content": "b"}])
        assert model.detokenize(ids) == model.detokenize(model.tokenize("abc<u>b<a>"))
        answer = model.chat([{"role": "user", "content": "b"}])
        assert isinstance(answer, ggmodel.Completion) and answer.usage.completion_tokens <= 3
    with ggmodel.load("tiny", context_length=32) as model:
        assert model.context_length == 32


def test_the_list(program, stores, tiny, tmp_path: Path):
    put_hub(tmp_path / "hf" / "hub", "org/odd", {"odd-Q8_0.gguf": b"no model"})
    put_ollama(tmp_path / "ollama", "library/far:cloud", config={"remote_host": "x"})
    shown = program("list", env=stores)
    assert shown.returncode == 0
    rows = {r["name"]: r for r in json.loads(program("list", "--json", env=stores).stdout)}
    assert set(rows) == {"org/repo:F32", "org/odd:Q8_0", "tiny:latest", "far:cloud"}
    for name in ("org/repo:F32", "tiny:latest"):
        row = rows[name]
        assert (row["runs"], row["architecture"], row["type"]) == (True, "llama", "F32")
    assert rows["org/repo:F32"]["nbytes"] == len(tiny)
    assert "not a GGUF file" in rows["org/odd:Q8_0"]["reason"]
    assert "runs in Ollama's cloud" in rows["far:cloud"]["reason"]
    assert "no: far:cloud of Ollama" in shown.stdout


@pytest.mark.slow
def test_pull_and_rm(program, stores, tiny, tmp_path: Path):
    with serving(Hub({"org/new": {"m-Q8_0.gguf": tiny}})) as hub:
        online = stores | {"HF_ENDPOINT": hub.url, "HF_HUB_OFFLINE": "0"}
        pulled = program("pull", "org/new", env=online)
        assert pulled.returncode == 0, pulled.stderr
        assert "org/new: Hugging Face's cache, " in pulled.stdout and not pulled.stderr
    assert program("show", "org/new", env=stores).returncode == 0
    quantized = program("quantize", "org/new", tmp_path / "q.gguf", "q8_0", env=stores)
    assert quantized.returncode == 0 and (tmp_path / "q.gguf").exists()
    assert "freed" in program("rm", "org/new:Q8_0", env=stores).stdout
    asked = program("rm", "org/repo:F32", env=stores)
    assert asked.returncode == 1 and "--yes removes it" in asked.stderr
    assert program("rm", "org/repo:F32", "--yes", env=stores).returncode == 0
    refused = program("rm", "tiny", env=stores)
    assert refused.returncode == 1 and "`ollama rm tiny:latest`" in refused.stderr


@pytest.mark.slow
def test_pull_of_ollama(program, stores, tiny, tmp_path: Path):
    ollama = Registry()
    ollama.put("library/tale:1b", ("model", tiny), ("template", TEMPLATE))
    with serving_registry(ollama):
        online = stores | {"GGMODEL_OLLAMA_REGISTRY": ollama.url, "HF_HUB_OFFLINE": "0"}
        pulled = program("pull", "tale:1b", env=online)
        assert (pulled.returncode, pulled.stderr) == (0, "")
        assert "tale:1b: ggmodel's own store, " in pulled.stdout
        missing = program("pull", "tale:9b", env=online)
        assert missing.returncode == 1 and "check the name and the tag" in missing.stderr
    ran = program("run", "tale:1b", "abc", "-n2", env=stores)
    assert ran.returncode == 0, ran.stderr
    assert "freed" in program("rm", "tale:1b", env=stores).stdout
    assert "`ggmodel pull qwen:1b` asks" in program("run", "qwen:1b", "abc", env=stores).stderr


@pytest.mark.slow
def test_create_and_cp(program, stores, tiny, tmp_path: Path):
    folder = tmp_path / "made"
    folder.mkdir()
    (folder / "tiny.gguf").write_bytes(tiny)
    file = folder / "Modelfile"
    file.write_text(
        f'FROM ./tiny.gguf\nTEMPLATE "{TEMPLATE.decode()}"\nSYSTEM abc\n'
        "PARAMETER num_predict 3\nPARAMETER temperature 0\nPARSER none\n"
    )
    made = program("create", "tale", "-f", file, env=stores)
    assert made.returncode == 0 and made.stderr == "without effect here: PARSER\n"
    assert "tale:latest: ggmodel's own store, " in made.stdout
    own = program("run", "tiny", "abc", env=stores)
    assert program("run", "tale", "abc", env=stores).stdout == own.stdout

    assert program("cp", "tale", "twin", env=stores).returncode == 0
    assert program("run", "twin", "abc", env=stores).stdout == own.stdout
    assert program("cp", folder / "tiny.gguf", "plain:v1", env=stores).returncode == 0

    again = program("create", "small", "-f", "-", "-q", "q8_0", env=stores, stdin="FROM tale")
    assert again.returncode == 0, again.stderr
    rows = {r["name"]: r for r in json.loads(program("list", "--json", env=stores).stdout)}
    assert rows["small:latest"]["type"] == "Q8_0" and rows["small:latest"]["own"]
    assert {"tale:latest", "twin:latest", "plain:v1"} < set(rows)
    blobs = tmp_path / "data" / "ggmodel" / "models" / "blobs"
    assert (folder / "tiny.gguf").samefile(blobs / f"sha256-{digest(tiny)}")

    for text, what in (
        ("SYSTEM x", "no FROM line"),
        ("FROM nothing", "model 'nothing' not found"),
        ("FROM ./none.gguf", "none.gguf does not exist"),
        ("FROM tale\nADAPTER none.gguf", "none.gguf is no file"),
        ("FROM tale\nPARAMETER mirostat 2", "mirostat"),
    ):
        file.write_text(text)
        failed = program("create", "bad", "-f", file, env=stores)
        assert failed.returncode == 1 and what in failed.stderr
    assert program("cp", "nothing", "bad", env=stores).returncode == 1
    assert "bad:latest" not in program("list", env=stores).stdout


@pytest.mark.slow
def test_the_commands_of_the_document(program, stores, tiny, tmp_path: Path):
    put_ollama(tmp_path / "ollama", "library/llama3.2:1b", ("model", tiny), ("template", TEMPLATE))
    files = {"m-Q4_K_M.gguf": tiny, "m-Q8_0.gguf": tiny}
    shown = commands(read("docs/names.md"))
    assert len(shown) == 9
    ollama = Registry()
    ollama.put("library/llama3.2:1b", ("model", tiny), ("template", TEMPLATE))
    with serving(Hub({"org/repo": files})) as hub, serving_registry(ollama):
        online = stores | {"HF_ENDPOINT": hub.url, "HF_HUB_OFFLINE": "0"}
        online["GGMODEL_OLLAMA_REGISTRY"] = ollama.url
        for line in shown:
            _, *words = shlex.split(line, comments=True)
            ran = program(*words, *["-n2"] * (words[0] == "run"), env=online)
            assert ran.returncode == 0, (line, ran.stderr)
        (code,) = blocks(read("docs/names.md"), "python")
        command = [sys.executable, "-c", f"import ggmodel\n{code}\nprint(found.path)"]
        done = subprocess.run(
            command, env=os.environ | online, capture_output=True, text=True, timeout=120
        )
        assert done.stdout.strip().endswith("m-Q8_0.gguf"), done.stderr


def test_shells_complete_names(program, stores, tiny, tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tin").mkdir()

    def completed(*words: str) -> list[str]:
        asked = {"COMP_WORDS": " ".join(("ggmodel", *words)), "COMP_CWORD": str(len(words))}
        ran = program(env=stores | asked | {"_GGMODEL_COMPLETE": "complete_bash"})
        assert ran.stderr == ""
        return ran.stdout.split()

    for command in ("chat", "serve", "rm", "pull"):
        assert completed(command, "ti") == ["tiny:latest", "tin/"]
    assert completed("batch", "in", "out", "--model", "org") == ["org/repo:F32"]
    assert completed("run", "./ti") == []  # the shell completes files


def test_completion_waits_for_no_store(monkeypatch: pytest.MonkeyPatch):
    class Slow:
        def stored(self):
            yield Stored("quick", "a store", None)
            threading.Event().wait(60)

    monkeypatch.setattr("ggmodel.names.resolver.sources", lambda: [Slow()])
    began = time.monotonic()
    assert complete_model("q")[0] == "quick"
    assert time.monotonic() - began < 20


def test_a_name_that_nothing_has(program, stores, tiny):
    ran = program("run", "tinny", "abc", env=stores)
    assert ran.returncode == 1 and not ran.stdout
    assert ran.stderr == (
        "error: 'tinny' is no file, and no model of that name is in a store of this machine; near "
        "names here: tiny:latest\n"
    )
