"""schemathesis asks a server what OpenAPI documents allow, and what they do not."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.schemas.conftest import ROOT
from tests.serving import running

SECONDS = 280  # a machine may be busy; it takes a quarter of that
STORIES = str(ROOT / "examples" / "assets" / "stories.gguf")
OPTIONS = ("--threads", "1", "--parallel", "4", "--context-length", "128", "--max-tokens", "2")
# Status 400 is for things that a model cannot do, such as a conversation that its template refuses.
LEFT_OUT = ["positive_data_acceptance"]
# Endpoints that have the same handler under another path.
ALIASES = (
    *("/chat/completions", "/chat/completions/input_tokens", "/completions", "/models"),
    *("/responses", "/v1/health", "/rerank", "/reranking", "/v1/reranking", "/v1/score"),
)
OWN = "/openapi.json"
# docs/openapi.yaml of Ollama's repository, where one says where it lies.
DOCUMENTS = [OWN, *filter(None, [os.environ.get("OLLAMA_OPENAPI")])]
# Ollama's document has no errors, and Ollama takes null in place of most values.
LEFT_OUT_OF_OLLAMA = [*LEFT_OUT, "status_code_conformance", "negative_data_rejection"]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server that may change the models of an empty home, and asks no hub."""
    home = str(tmp_path_factory.mktemp("home"))
    where: Any = {"HOME": home, "XDG_DATA_HOME": f"{home}/data", "XDG_CACHE_HOME": f"{home}/cache"}
    where |= {"HF_HOME": f"{home}/hf", "OLLAMA_MODELS": f"{home}/ollama", "HF_HUB_OFFLINE": "1"}
    with running(STORIES, *OPTIONS, "--any-name", "--manage", **where) as server:
        yield server.url


def run(
    program: Path, folder: Path, document: str, url: str, without: list[str], *more: str
) -> None:
    """Fails with what schemathesis found."""
    arguments = [
        *("--no-color", "run", document, "--url", url, "--phases", "examples,coverage,fuzzing"),
        *("--max-examples", "6", "--seed", "1", "--workers", "2", "--continue-on-failure"),
        *("--request-timeout", "30", "--exclude-checks", ",".join(without), *more),
    ]
    done = subprocess.run(
        [str(program), *arguments],
        cwd=folder,
        env={**os.environ, "HOME": str(folder), "NO_PROXY": "127.0.0.1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=SECONDS,
    )
    assert done.returncode == 0, done.stdout
    assert "Tested:" in done.stdout


@pytest.mark.parametrize("document", DOCUMENTS)
def test_document(schemathesis: Path, tmp_path: Path, url: str, document: str):
    if document == OWN:
        left_out = [part for path in ALIASES for part in ("--exclude-path", path)]
        run(schemathesis, tmp_path, f"{url}{OWN}", url, LEFT_OUT, *left_out)
    else:
        more = ("--exclude-path", "/api/push")
        run(schemathesis, tmp_path, document, url, LEFT_OUT_OF_OLLAMA, *more)
