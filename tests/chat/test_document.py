"""What docs/chat.md says works."""

from __future__ import annotations

import contextlib
import io
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ggmodel.chat import limits, sandbox

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs" / "chat.md").read_text("utf-8")


def test_its_python_runs(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(ROOT)
    (code,) = re.findall(r"^```python\n(.*?)^```$", GUIDE, re.MULTILINE | re.DOTALL)
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        exec(compile(code, "docs/chat.md", "exec"), {})
    assert len(said.getvalue().split()) > 60


def test_its_command_runs():
    found = re.search(r'^echo "(.*)" \| ggmodel (chat .*)$', GUIDE, re.MULTILINE)
    assert found is not None
    done = subprocess.run(
        [sys.executable, "-m", "ggmodel", *found[2].split()],
        input=found[1].encode(),
        cwd=ROOT,
        capture_output=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.split()) > 20


def test_its_figures_are_true():
    text = " ".join(GUIDE.split())
    each = limits.SECONDS_A_MESSAGE * 1000
    assert f"after {limits.SECONDS:g} seconds and {each:g} ms for each message" in text
    assert f"{limits.VALUE // 10**6} million characters in one value" in text
    assert f"{limits.TOTAL // 10**6} million in all" in text
    for name in (*sandbox.NO_FILTERS, "lipsum"):
        assert f"`{name}`" in text
