"""Every example runs on the embedded model without arguments."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

# tests/ml/rpc runs this one, with the ggml that it needs.
ELSEWHERE = {"two_machines.py"}
FOLDER = Path(__file__).parents[2] / "examples"
EXAMPLES = sorted(path for path in FOLDER.glob("*.py") if path.name not in ELSEWHERE)


def test_there_are_examples():
    assert {p.name for p in EXAMPLES} >= {
        f"{name}.py"
        for name in "generate logits chat batch structured embed describe_image hear watch".split()
    }


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.stem)
def test_example(path: Path, tmp_path: Path):
    done = subprocess.run(
        [sys.executable, str(path)], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert len(done.stdout.split()) > 20
