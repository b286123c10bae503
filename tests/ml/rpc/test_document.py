"""The commands and the code of docs/distributed.md that use a worker."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.documents import ROOT, blocks, commands, read

PAGE = read("docs/distributed.md")


@pytest.mark.slow
def test_models_run_on_the_workers_of_the_page(
    pair: Any, rpc_environment: dict[str, str], tmp_path: Path
):
    (tmp_path / "model.gguf").symlink_to(ROOT / "examples" / "assets" / "stories.gguf")
    first, second = (worker.endpoint for worker in pair)
    # `ggmodel serve --rpc` has a test of its own, test_serving.py.
    shown = [line for line in commands(PAGE) if line.startswith("ggmodel run") and "--rpc" in line]
    (code,) = blocks(PAGE, "python")
    assert len(shown) == 2 and "127.0.0.1:50052" in code

    def ran(*words: str) -> str:
        done = subprocess.run(
            [sys.executable, *words],
            cwd=tmp_path,
            env=rpc_environment,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    for line in shown:
        _, _, addresses = line.partition("--rpc ")
        given = ",".join([first, second][: addresses.count(":")])
        command = shlex.split(line.replace(addresses, given))
        assert ran("-m", *command, "-n", "4").startswith("Once upon a time")
    changed = code.replace("127.0.0.1:50052", first).replace('time")', 'time", max_tokens=4)')
    assert ran("-c", f"import ggmodel\n{changed}").strip()
