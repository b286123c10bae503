"""Programs of others, started as docs/serving.md says, in a home of their own."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tests.children import ROOT

SECONDS = 60  # three to sixteen on two cores
URL, NAME, TASK = "http://127.0.0.1:8080", "NAME", "TASK"
# Nobody is asked but the server.
_NOBODY = "http://127.0.0.1:9"
_QUIET = {
    "HTTP_PROXY": _NOBODY,
    "HTTPS_PROXY": _NOBODY,
    "NO_PROXY": "127.0.0.1",
    "DO_NOT_TRACK": "1",
    "CI": "1",
    "LANG": "C.UTF-8",
    "TERM": "dumb",
    "DISABLE_AUTOUPDATER": "1",
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "IS_SANDBOX": "1",  # Claude Code: root may use tools unasked
    "OPENCODE_DISABLE_AUTOUPDATE": "1",
    "OPENCODE_DISABLE_DEFAULT_PLUGINS": "1",
    "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
    "OPENCODE_DISABLE_MODELS_FETCH": "1",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "QWEN_CODE_SUPPRESS_YOLO_WARNING": "1",
}


@dataclass(frozen=True)
class Program:
    """A row of the table in docs/serving.md.

    Attributes:
        package: of npm or PyPI.
        line: variables of the environment and a command.
        files: path below the home → text, of the blocks that follow the table.
    """

    package: str
    version: str
    line: str
    files: dict[str, str]

    @property
    def command(self) -> list[str]:
        return [word for word in shlex.split(self.line) if not _VARIABLE.match(word)]

    @property
    def variables(self) -> dict[str, str]:
        found = (word.partition("=") for word in shlex.split(self.line) if _VARIABLE.match(word))
        return {name: value for name, _, value in found}


_VARIABLE = re.compile(r"[A-Z_]+=")
_ROW = re.compile(r"^\| [^|`]+ \| `([^`]+)` (\S+) \| `([^`]+)` \| `([^`]+)` \|$", re.MULTILINE)
_FILE = re.compile(r"^`~/([^`]+)`[^\n]*:\n\n```\w+\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def documented() -> dict[str, Program]:
    """The programs of docs/serving.md by the names of their commands."""
    text = (ROOT / "docs" / "serving.md").read_text("utf-8")
    section = re.search(r"^## Agents$(.*?)^## ", text, re.MULTILINE | re.DOTALL)
    assert section is not None
    files = dict(_FILE.findall(section[1]))
    found: dict[str, Program] = {}
    for package, version, _, line in _ROW.findall(section[1]):
        program = Program(package, version, line, {})
        name = program.command[0]
        own = {path: text for path, text in files.items() if name in path}
        found[name] = Program(package, version, line, own)
    return found


@dataclass(frozen=True)
class Ended:
    """A program that ended by itself."""

    status: int
    out: str
    err: str


def run(
    program: Program,
    start: Sequence[str],
    home: Path,
    url: str,
    *more: str,
    name: str = "stories",
) -> Ended:
    """Runs a program in the folder `work` of a home.

    Args:
        start: in place of the program's name. more: arguments. name: of the model.

    Raises:
        AssertionError: it took longer than `SECONDS`. It and its children are killed.
    """

    def filled(text: str) -> str:
        text = text.replace(URL, url).replace(TASK, "Write a note.")
        return re.sub(rf"\b{NAME}\b", name, text)

    for path, text in program.files.items():
        (home / path).parent.mkdir(parents=True, exist_ok=True)
        (home / path).write_text(filled(text), "utf-8")
    work = home / "work"
    work.mkdir(exist_ok=True)
    node = str(Path(os.environ.get("NODE", "")).parent)
    folders = {f"XDG_{name}_HOME": str(home / name) for name in ("CACHE", "DATA", "STATE")}
    variables = {name: filled(value) for name, value in program.variables.items()}
    process = subprocess.Popen(
        [*start, *map(filled, program.command[1:]), *more],
        cwd=work,
        env={
            "PATH": f"{node}:/usr/bin:/bin",
            "HOME": str(home),
            "TMPDIR": str(home),
            **folders,
            **_QUIET,
            **variables,
        },
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, err = process.communicate(timeout=SECONDS)
    except subprocess.TimeoutExpired:
        _kill(process)
        out, err = process.communicate()
        raise AssertionError(f"{start[0]} took more than {SECONDS} s:\n{out}\n{err}") from None
    finally:
        _kill(process)
    return Ended(process.returncode, out, err)


def _kill(process: subprocess.Popen[str]) -> None:
    """Ends what is left of a process group."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
