"""Clients that others wrote, unmodified, against `ggmodel serve` with the embedded models."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.serve.test_process import ASSETS
from tests.serving import running

HERE = Path(__file__).parent / "clients"
SECONDS = 240
# Nobody is asked but the server.
_NOBODY = "http://127.0.0.1:9"
LOOPBACK: dict[str, str] = {
    "HTTP_PROXY": _NOBODY,
    "HTTPS_PROXY": _NOBODY,
    "NO_PROXY": "127.0.0.1",
    "LANGSMITH_TRACING": "false",
    "DO_NOT_TRACK": "1",
}


@pytest.fixture(scope="module")
def folder() -> Path:
    """The environments of the clients: `bin/python`, and `node` with `node_modules`."""
    found = Path(os.environ.get("NIGHTLY") or Path(__file__).parents[2] / ".cache" / "nightly")
    assert (found / "node").is_dir(), f"there is no {found}: use `make nightly`, or set NIGHTLY"
    return found


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    # One user at a time and F32 keep greedy texts equal, however they are asked for.
    models = (str(ASSETS / "stories.gguf"), str(ASSETS / "shapes.gguf"))
    with running(*models, "--threads", "1", "--kv-type", "f32") as server:
        yield server.url


def check(command: list[str], where: Path, url: str) -> None:
    done = subprocess.run(
        [*command, url, str(ASSETS)],
        cwd=where,
        env={**os.environ, **LOOPBACK},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=SECONDS,
    )
    assert done.returncode == 0, done.stdout
    assert "ok" in done.stdout


@pytest.mark.parametrize("name", ["litellm_calls", "langchain_calls"])
def test_python(folder: Path, tmp_path: Path, url: str, name: str):
    check([str(folder / "bin" / "python"), str(HERE / f"{name}.py")], tmp_path, url)


@pytest.mark.parametrize("name", ["openai", "anthropic", "ollama", "ai"])
def test_node(folder: Path, url: str, name: str):
    where = folder / "node"
    for one in ("common", name):  # modules are found beside the script
        shutil.copy(HERE / f"{one}.mjs", where)
    node = os.environ.get("NODE") or shutil.which("node")
    assert node, "there is no node: use `make nightly`, or set NODE"
    check([node, f"{name}.mjs"], where, url)
