"""Commands on Linux that lacks what Windows or macOS lack; see other/sitecustomize.py.

Nothing here takes the place of these systems: docs/platforms.md says what is not tested.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from tests.children import import_path

ASSETS = Path(__file__).parents[2] / "examples" / "assets"
OTHER = Path(__file__).parent / "other"
MODEL = ASSETS / "stories.gguf"
SECONDS = 60

Ran = subprocess.CompletedProcess[str]
Program = Callable[..., Ran]


def environment(system: str) -> dict[str, str]:
    return {
        **os.environ,
        "SIMULATED": system,
        "PYTHONPATH": os.pathsep.join((str(OTHER), import_path())),
        "PYTHONIOENCODING": "utf-8",
    }


@pytest.fixture
def on() -> Program:
    """`on("win32", "run", …)` runs a command to its end."""

    def start(system: str, *words: object) -> Ran:
        return subprocess.run(
            [sys.executable, "-m", "ggmodel", *map(str, words)],
            env=environment(system),
            capture_output=True,
            encoding="utf-8",
            timeout=SECONDS,
        )

    return start


@pytest.mark.parametrize("system", ["win32", "darwin"])
def test_answers(on: Program, system: str):
    ran = on(system, "run", MODEL, "Once upon", "--raw", "--temperature", 0, "--max-tokens", 5)
    assert ran.stdout.startswith("Once upon a time"), ran.stderr
    assert ran.returncode == 0


def test_a_grammar_is_tried_within_a_job(on: Program):
    schema = json.dumps({"type": "object", "properties": {"a": {"type": "boolean"}}})
    words = ("--json-schema", schema, "--temperature", 0, "--max-tokens", 8)
    ran = on("win32", "run", MODEL, "hi", "--raw", *words)
    assert ran.stdout.startswith("hi{"), ran.stderr


@pytest.mark.slow
def test_writing(on: Program, tmp_path: Path):
    """A new file, the same again, and one that is open, which Windows does not replace."""
    model, made = tmp_path / "a.gguf", tmp_path / "b.gguf"
    model.write_bytes(MODEL.read_bytes())
    assert on("win32", "quantize", model, made, "q8_0").returncode == 0
    first = made.read_bytes()
    made.write_bytes(b"other")
    assert on("win32", "quantize", model, made, "q8_0", "--force").returncode == 0
    assert made.read_bytes() == first
    ran = on("win32", "quantize", model, model, "q8_0", "--force")
    assert (ran.returncode, "a program has it open" in ran.stderr) == (1, True)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.gguf", "b.gguf"]


def test_a_folder_is_made_whole(on: Program, tmp_path: Path):
    ran = on("win32", "new", "mine", "--from", "llama", "--into", tmp_path / "new")
    assert ran.returncode == 0, ran.stderr
    assert sorted(p.name for p in (tmp_path / "new").iterdir()) == [
        "README.md", "goldens", "mine.py",
    ]  # fmt: skip


@pytest.mark.slow
def test_requests_in_a_file(on: Program, tmp_path: Path):
    body = {"model": "stories", "prompt": "Once", "max_tokens": 3, "temperature": 0}
    line = {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": body}
    (tmp_path / "asked.jsonl").write_text(json.dumps(line) + "\n")
    ran = on("win32", "batch", tmp_path / "asked.jsonl", tmp_path / "done.jsonl", "--model", MODEL)
    assert ran.returncode == 0, ran.stderr
    assert json.loads((tmp_path / "done.jsonl").read_text())["response"]["status_code"] == 200
    assert not list(tmp_path.glob("*.part*"))


@pytest.mark.slow
@pytest.mark.parametrize("system", ["win32", "darwin"])
def test_a_server_and_its_runner(system: str):
    server = subprocess.Popen(
        [sys.executable, "-m", "ggmodel", "serve", MODEL, "--only", "--port", "0"],
        env=environment(system),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        start_new_session=True,
    )
    try:
        assert server.stdout is not None
        url = server.stdout.readline().split()[2]
        asked = {"prompt": "Once upon", "max_tokens": 3, "temperature": 0}
        found = httpx.post(f"{url}/v1/completions", json=asked, timeout=SECONDS).json()
        assert found["choices"][0]["text"].startswith(" a time"), found
        server.send_signal(signal.SIGINT)
        assert server.wait(SECONDS) in (0, 130)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGKILL)
        server.communicate(timeout=SECONDS)
