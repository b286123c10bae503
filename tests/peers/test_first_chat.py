"""The first chat with a real model, as the page has it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.documents import blocks, read


def test_the_first_chat_with_a_real_model(tmp_path: Path):
    (block,) = [one for one in blocks(read("docs/first-steps.md"), "sh") if "weights" in one]
    for line in block.splitlines():
        command = f"{sys.executable} -m {line}"
        done = subprocess.run(
            command, shell=True, cwd=tmp_path, capture_output=True, text=True, timeout=200
        )
        assert done.returncode == 0, done.stderr
    # Which words of light it finds differs with the processor's order of sums.
    assert "light" in done.stdout and "answer: " in done.stderr
