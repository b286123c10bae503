"""The commands of docs/profile.md run, and leave what they say they do."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.documents import ROOT, commands, read

COMMANDS = commands(read("docs/profile.md"))


@pytest.mark.parametrize("line", COMMANDS)
def test_a_command_runs(line: str, tmp_path: Path):
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    command = [sys.executable, "-m", *shlex.split(line, comments=True)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    written = [path for path in tmp_path.iterdir() if path.name != "examples"]
    assert len(written) == len([w for w in command if w in ("-o", "--chrome-trace")])
    for path in written:
        if path.suffix == ".svg":
            ElementTree.parse(path)
        elif path.suffix == ".json":
            assert json.loads(path.read_text())["traceEvents"]
        else:
            assert path.read_text().startswith("digraph")
    assert "-o" in command or len(done.stdout.split()) > 10


def test_both_commands_are_shown():
    assert {line.split()[1] for line in COMMANDS} == {"graph", "profile"}


def test_the_picture_is_one():
    ElementTree.parse(ROOT / "docs" / "graph.svg")
