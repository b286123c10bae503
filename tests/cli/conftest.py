"""The program as users start it, and a tiny model to give it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ggmodel.convert import from_hf
from ggmodel.gguf_file import MemorySource
from ggmodel.model import find
from tests.golden.files import load_golden

Ran = subprocess.CompletedProcess[str]
Program = Callable[..., Ran]

_UNWANTED = ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TERM", "COLUMNS", "GGMODEL_DEBUG")


@pytest.fixture(scope="session")
def environment() -> dict[str, str]:
    """Without what would change how the output looks."""
    return {k: v for k, v in os.environ.items() if k not in _UNWANTED} | {
        "TERM": "xterm",
        "GGMODEL_NO_HISTORY": "1",
    }


@pytest.fixture(scope="session")
def program(environment: dict[str, str]) -> Program:
    """`program("run", path, …, stdin=…, env={…})` runs `python -m ggmodel` to its end."""

    def start(*args: object, stdin: str | bytes = b"", env: dict[str, str] | None = None) -> Ran:
        done = subprocess.run(
            [sys.executable, "-m", "ggmodel", *map(str, args)],
            input=stdin.encode() if isinstance(stdin, str) else stdin,
            capture_output=True,
            env=environment | (env or {}),
            timeout=120,
            check=False,
        )
        return subprocess.CompletedProcess(
            done.args, done.returncode, done.stdout.decode(), done.stderr.decode()
        )

    return start


@pytest.fixture(scope="session")
def source(vary: Any, vocabulary: dict[str, Any]) -> MemorySource:
    """A llama of two layers and 64 tokens."""
    golden = load_golden("llama", "plain_gqa")
    return vary(from_hf(find("llama"), golden.config, golden.weights()), metadata=vocabulary)


@pytest.fixture(scope="session")
def model_path(source: MemorySource, write_gguf: Any, tmp_path_factory: Any) -> Path:
    return write_gguf(tmp_path_factory.mktemp("model") / "tiny.gguf", source)


@pytest.fixture
def file(write_gguf: Any, vary: Any, source: MemorySource, tmp_path: Path) -> Callable[..., Path]:
    """`file(drop=…, rename=…, tensors=…, metadata=…)` writes a variation of the tiny model."""
    return lambda **changes: write_gguf(tmp_path / "varied.gguf", vary(source, **changes))
