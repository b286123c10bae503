"""Stores of their own for each test: nothing of this machine is read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from .hub_server import Hub, serving
from .registry_server import Registry, serving_registry


@dataclass
class Homes:
    """Where stores lie."""

    home: Path
    hub: Path
    ollama: Path
    lm_studio: Path


_UNSET = (
    "HUGGINGFACE_HUB_CACHE HF_HUB_CACHE LLAMA_CACHE XDG_CACHE_HOME XDG_DATA_HOME HF_TOKEN "
    "HF_ENDPOINT TRANSFORMERS_OFFLINE HF_HUB_OFFLINE"
).split()


@pytest.fixture
def homes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Homes:
    for name in _UNSET:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "ollama"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")  # tests of downloads take it away
    return Homes(
        tmp_path, tmp_path / "hf" / "hub", tmp_path / "ollama", tmp_path / ".lmstudio" / "models"
    )


@pytest.fixture
def hub(homes: Homes, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A hub without repositories, which downloads come from. huggingface_hub asks it, too."""
    monkeypatch.delenv("HF_HUB_OFFLINE")
    # A download waits seconds before it goes on.
    monkeypatch.setattr("ggmodel.names.remote.time.sleep", lambda seconds: None)
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(homes.home / "no-token"))
    with serving(Hub()) as served:
        monkeypatch.setenv("HF_ENDPOINT", served.url)
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", served.url)
        monkeypatch.setattr("huggingface_hub.constants.AGENT_HARNESSES_PATH", str(homes.home / "x"))
        monkeypatch.setattr("huggingface_hub.utils._detect_agent._registry", None)
        yield served
        assert not served.strange


@pytest.fixture
def registry(homes: Homes, monkeypatch: pytest.MonkeyPatch) -> Iterator[Registry]:
    """A registry of Ollama without models, which downloads come from."""
    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("ggmodel.names.remote.time.sleep", lambda seconds: None)
    with serving_registry(Registry()) as served:
        monkeypatch.setenv("GGMODEL_OLLAMA_REGISTRY", served.url)
        yield served
        assert not served.strange
