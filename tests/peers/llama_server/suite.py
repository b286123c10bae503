"""llama.cpp's tests of its server, run against `ggmodel serve` in a copy of their folder."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from tests.children import import_path

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
PASSES: dict[str, list[str]] = json.loads((HERE / "passes.json").read_text(encoding="utf-8"))
"""File → the tests in it that are expected to pass."""
FAILURES: dict[str, list[str]] = json.loads((HERE / "failures.json").read_text(encoding="utf-8"))
"""Reason → patterns of the tests that fail for it, FILE::TEST."""


def reason(test: str) -> str | None:
    """Why a test is not expected to pass."""
    name = test.removeprefix("unit/").replace(".py::", "::")
    for why, patterns in FAILURES.items():
        if any(name == one or fnmatchcase(name.partition("[")[0], one) for one in patterns):
            return why
    return None


def copied(llama_cpp: Path, into: Path) -> Path:
    """A copy of the tests beside what they read, and the program that they start."""
    tests = into / "tools" / "server" / "tests"
    shutil.copytree(llama_cpp / "tools" / "server" / "tests", tests)
    (into / "models").symlink_to(llama_cpp / "models")
    (into / "tools" / "mtmd").mkdir()  # links out of a folder are not followed
    shutil.copy(llama_cpp / "tools" / "mtmd" / "test-1.jpeg", into / "tools" / "mtmd")
    (tests / "tmp").mkdir()
    program = into / "llama-server"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{HERE / "program.py"}" "$@"\n')
    program.chmod(0o755)
    return tests


def outcomes(
    tests: Path, file: str, chosen: Sequence[str] | None = None
) -> tuple[dict[str, str], str]:
    """The outcome of each test of a file, and what pytest said.

    Args:
        chosen: the tests to run; None for all.
    """
    found = tests.parents[2] / f"{file}.json"
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("GGMODEL_", "PYTEST"))}
    environment |= {
        "PYTHONPATH": os.pathsep.join([import_path(), str(ROOT)]),
        "LLAMA_SERVER_BIN_PATH": str(tests.parents[2] / "llama-server"),
        "PORT": str(_free_port()),
        "GGMODEL_STAND_INS": str(tests.parents[2]),
        "GGMODEL_OUTCOMES": str(found),
        "GGMODEL_CHOSEN": json.dumps(chosen),
    }
    command = [sys.executable, "-m", "pytest", "-q", "--timeout=60", "--tb=short", "-m", "not slow"]
    command += ["-p", "tests.peers.llama_server.plugin", f"unit/{file}.py"]
    done = subprocess.run(
        command, cwd=tests, env=environment, text=True, capture_output=True, timeout=1800
    )
    told = json.loads(found.read_text(encoding="utf-8")) if found.exists() else {}
    return told, done.stdout + done.stderr


def _free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]
