"""Programs that let models work: each asks with its tools, calls one, and tells its result."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import ggmodel
from ggmodel.serve.server import Server, Settings
from tests.agents.programs import Ended, documented, run
from tests.agents.scripted import AnyName, Script, Scripted
from tests.children import ROOT
from tests.serve.conftest import ASSETS, serving

PROGRAMS = documented()
# The model's words hold the sum only if the shell has run, and its output came back.
SHELL = "echo secret-$((6*7)) >note.txt; cat note.txt"
CALLS = {
    "codex": ("exec_command", {"cmd": SHELL}),
    "claude": ("Bash", {"command": SHELL, "description": "Write a note"}),
    "qwen": (
        "run_shell_command",
        {"command": SHELL, "description": "Write a note", "is_background": False},
    ),
    "opencode": ("bash", {"command": SHELL, "description": "Write a note"}),
}
WARNINGS = {
    # Claude Code lets Anthropic's servers shorten the conversation.
    "'/v1/messages': fields without effect: 'thinking.display', 'context_management'",
    # Codex to models of OpenAI's names.
    "'/v1/responses': tools[8]: 'tool_search' runs on OpenAI's servers only, and is left out",
}
# Nobody is there to be asked for leave.
UNASKED = {
    "codex": ["--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"],
    "claude": ["--allowedTools", "Bash"],
    "qwen": ["--yolo"],
    "opencode": [],
}


@dataclass(frozen=True)
class Place:
    """A home with a folder `work`, and a server of a scripted model."""

    home: Path
    url: str
    runner: Scripted


@pytest.fixture(scope="module")
def runner() -> Iterator[Scripted]:
    with ggmodel.load(ASSETS / "stories.gguf", threads=1) as model:
        yield Scripted(model)


@pytest.fixture
def place(
    runner: Scripted,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> Iterator[Place]:
    """Afterwards no request was refused, and no warning is another than `WARNINGS`."""
    runner.seen.clear()
    with (
        caplog.at_level(logging.WARNING),
        serving(Server(AnyName(runner), Settings(log_requests=True))) as url,
    ):
        yield Place(tmp_path, url, runner)
    lines = capsys.readouterr().err.splitlines()
    asked = [line for line in lines if " POST /v1/" in line]
    assert asked and all(" 200 " in line for line in asked), "\n".join(lines)
    told = {one.getMessage() for one in caplog.get_records("call")}
    assert told <= WARNINGS


@pytest.fixture(scope="module")
def folder() -> Path:
    """The environments of the programs: `node`, `aider` and `llm`."""
    found = Path(os.environ.get("AGENTS") or ROOT / ".cache" / "agents")
    assert found.is_dir(), f"there is no {found}: use `make test-agents`, or set AGENTS"
    return found


def check(ended: Ended, *words: str) -> None:
    assert ended.status == 0, f"{ended.out}\n{ended.err}"
    assert all(word in ended.out for word in words), f"{ended.out}\n{ended.err}"


def test_the_versions_are_those_of_the_table():
    listed = json.loads((ROOT / "tests" / "agents" / "package.json").read_text("utf-8"))
    pinned = dict(listed["dependencies"])
    for name in ("aider", "llm"):
        text = (ROOT / "tests" / "agents" / f"{name}.txt").read_text("utf-8")
        package, version = text.split("==")
        pinned[package] = version.strip()
    told = {one.package: one.version for one in PROGRAMS.values()}
    assert told == pinned


@pytest.mark.parametrize("name", list(CALLS))
def test_a_program_runs_a_call_and_tells_its_result(folder: Path, place: Place, name: str):
    place.runner.script = Script("The note says {}.", [CALLS[name]])
    start = [str(folder / "node" / "node_modules" / ".bin" / name)]
    ended = run(PROGRAMS[name], start, place.home, place.url, *UNASKED[name])
    check(ended, "The note says secret-42.")
    assert (place.home / "work" / "note.txt").read_text("utf-8") == "secret-42\n"
    first, second = place.runner.with_tools()
    assert second.startswith(first)  # whose keys and values are kept


def test_codex_applies_a_patch(folder: Path, place: Place):
    patch = "*** Begin Patch\n*** Add File: note.txt\n+secret-42\n*** End Patch"
    calls = [("apply_patch", {"input": patch}), ("exec_command", {"cmd": "cat note.txt"})]
    place.runner.script = Script("The note says {}.", calls)
    start = [str(folder / "node" / "node_modules" / ".bin" / "codex")]
    # It offers that tool, whose call is one text, to models of OpenAI's names only.
    ended = run(PROGRAMS["codex"], start, place.home, place.url, *UNASKED["codex"], name="gpt-5.5")
    check(ended, "The note says secret-42.")
    assert place.runner.seen[0].prompt.custom == ["apply_patch"]
    assert (place.home / "work" / "note.txt").read_text("utf-8") == "secret-42\n"


def test_llm_runs_a_function_and_tells_its_result(folder: Path, place: Place):
    work = place.home / "work"
    work.mkdir()
    (work / "note.py").write_text(
        "from pathlib import Path\n"
        "def write_note(text: str) -> str:\n"
        '    """Write a note."""\n'
        "    return f'secret-{Path(\"note.txt\").write_text(text)}'\n",
        "utf-8",
    )
    place.runner.script = Script("It has {} letters.", [("write_note", {"text": "a" * 42})])
    start = [str(folder / "llm" / "bin" / "llm")]
    files = ["--functions", "note.py"]
    ended = run(PROGRAMS["llm"], start, place.home, place.url, *files)
    check(ended, "It has secret-42 letters.")
    assert (work / "note.txt").read_text("utf-8") == "a" * 42


def test_aider_writes_what_the_answer_holds(folder: Path, place: Place):
    place.runner.script = Script("I write it.\n\nnote.txt\n```\nsecret-42\n```\n")
    start = [str(folder / "aider" / "bin" / "aider"), "--yes-always", "--no-git"]
    start += ["--analytics-disable", "--no-check-update", "--no-show-model-warnings"]
    ended = run(PROGRAMS["aider"], start, place.home, place.url, "note.txt")
    check(ended, "I write it.", "Applied edit to note.txt")
    assert (place.home / "work" / "note.txt").read_text("utf-8") == "secret-42\n"
