"""A server on a socket of this machine, with a model in the process of the tests."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import ollama
import openai
import pytest
import uvicorn

import ggmodel
from ggmodel.serve.api import make_app
from ggmodel.serve.server import Server, Settings
from tests.serve.standin import InProcess, InProcessModels

ASSETS = Path(__file__).parents[2] / "examples" / "assets"


@contextmanager
def serving(server: Server, http: Any = "auto") -> Iterator[str]:
    """The URL of a server that runs while the block does."""
    app = make_app(server)
    config = uvicorn.Config(app, host="127.0.0.1", port=0, log_level="error", http=http)
    running = uvicorn.Server(config)
    thread = threading.Thread(target=lambda: asyncio.run(running.serve()), daemon=True)
    thread.start()
    try:
        while not running.started:
            assert thread.is_alive()
            thread.join(0.005)
        port = running.servers[0].sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}"
    finally:
        running.should_exit = True
        thread.join(30)
        assert not thread.is_alive()


@pytest.fixture(scope="session")
def stories() -> Iterator[ggmodel.LoadedModel]:
    # Keys and values in F32 keep answers equal, whatever is computed beside them.
    with ggmodel.load(ASSETS / "stories.gguf", parallel=4, threads=1, kv_type="f32") as model:
        yield model


@pytest.fixture(scope="session")
def runner(stories: ggmodel.LoadedModel) -> InProcess:
    return InProcess(stories)


@pytest.fixture
def tools_in_template(runner: InProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    """The template names tools, and takes no place for them."""
    monkeypatch.setattr(runner, "template", "{# tools #}" + runner.state.template)


@pytest.fixture(scope="session")
def models(runner: InProcess) -> InProcessModels:
    return InProcessModels(runner)


@pytest.fixture(scope="session")
def url(models: InProcessModels) -> Iterator[str]:
    """The URL of a server with the default settings."""
    with serving(Server(models)) as found:
        yield found


@pytest.fixture
def serve(models: InProcessModels) -> Iterator[Callable[..., str]]:
    """`serve(**settings)` starts another server, and gives its URL."""
    with ExitStack() as stack:
        yield lambda **settings: stack.enter_context(serving(Server(models, Settings(**settings))))


@pytest.fixture
def http(url: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=url, timeout=30) as client:
        yield client


@pytest.fixture
def client(url: str) -> Iterator[openai.OpenAI]:
    """OpenAI's own client."""
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", timeout=30, max_retries=0) as found:
        yield found


@contextmanager
def connected(url: str) -> Iterator[ollama.Client]:
    """Ollama's own client."""
    client = ollama.Client(host=url, timeout=30)
    try:
        yield client
    finally:
        client._client.close()


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home without any models."""
    for name, folder in (("XDG_DATA_HOME", "data"), ("OLLAMA_MODELS", "ollama"), ("HF_HOME", "hf")):
        monkeypatch.setenv(name, str(tmp_path / folder))
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "LLAMA_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def manager(serve: Callable[..., str], home: Path) -> Iterator[ollama.Client]:
    """A client of a server that lets it change models."""
    with connected(serve(manage=True)) as found:
        yield found
