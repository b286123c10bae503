"""The code, the command and the figures of docs/chat.md."""

from __future__ import annotations

import re
import subprocess
import sys

from ggmodel import limits as bounds
from ggmodel.chat import limits, sandbox
from tests.documents import ROOT, blocks, printed, read

GUIDE = read("docs/chat.md")


def test_its_python_runs():
    (code,) = blocks(GUIDE, "python")
    assert len(printed(code, "docs/chat.md").split()) > 60


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
    assert f"after {bounds.template_seconds:g} seconds and {each:g} ms for each message" in text
    assert f"{bounds.template_value // 10**6} million characters in one value" in text
    assert f"{bounds.template_total // 10**6} million in all" in text
    for name in (*sandbox.NO_FILTERS, "lipsum"):
        assert f"`{name}`" in text
