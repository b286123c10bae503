"""Runs clients that others wrote, unmodified, against `ggmodel serve`, and writes what they did
into the table of docs/serving.md.

    python -m tests.nightly.table

NIGHTLY is the folder that `make nightly` installs them into, .cache/nightly by default.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import ggmodel
from ggmodel.serve.server import Server, Settings
from tests.agents.scripted import Script, Scripted
from tests.children import ROOT
from tests.serve.conftest import serving
from tests.serve.standin import InProcessModels
from tests.serving import running

HERE = Path(__file__).parent / "clients"
ASSETS = ROOT / "examples" / "assets"
TARGET = ROOT / "docs" / "serving.md"
SECONDS = 240
PYTHON = ("litellm_calls", "langchain_calls", "llama_index_calls")
NODE = ("openai", "anthropic", "ollama", "ai")
# Nobody is asked but the server.
_NOBODY = "http://127.0.0.1:9"
LOOPBACK: dict[str, str] = {
    "HTTP_PROXY": _NOBODY,
    "HTTPS_PROXY": _NOBODY,
    "NO_PROXY": "127.0.0.1",
    "LANGSMITH_TRACING": "false",
    "DO_NOT_TRACK": "1",
}
COLUMNS = (
    "chat",
    "stream",
    "tools",
    "tool choice",
    "structured answers",
    "pictures",
    "embeddings",
    "errors",
)
_OK = re.compile(r"^ok (.+): (.+)$", re.MULTILINE)
_TABLE = re.compile(r"^\| client \| " + r" \| ".join(COLUMNS) + r" \|\n.*?\n\n", re.M | re.S)

Cells = dict[str, set[str]]
"""Client → columns of the table."""


def folder() -> Path:
    """The environments of the clients: `bin/python`, and `node` with `node_modules`."""
    found = Path(os.environ.get("NIGHTLY") or ROOT / ".cache" / "nightly")
    assert (found / "node").is_dir(), f"there is no {found}: use `make nightly`, or set NIGHTLY"
    return found


@contextmanager
def servers() -> Iterator[list[str]]:
    """The arguments of the scripts, see common.py. One user at a time and F32 keep greedy texts
    equal, however they are asked for."""
    stories, shapes = str(ASSETS / "stories.gguf"), str(ASSETS / "shapes.gguf")
    with (
        running(stories, shapes, "--threads", "1", "--kv-type", "f32") as server,
        ggmodel.load(stories, threads=1) as model,
    ):
        runner = Scripted(model)
        runner.script = Script("It is done: {}.", [("paint", {"colour": "blue"})])
        with serving(Server(InProcessModels(runner), Settings())) as scripted:
            yield [server.url, str(ASSETS), scripted]


def ran(name: str, arguments: list[str]) -> Cells:
    """Runs a script; the cells that it has printed.

    Raises:
        AssertionError: it failed; with what it said.
    """
    with tempfile.TemporaryDirectory() as place:
        if name in PYTHON:
            command, where = [str(folder() / "bin" / "python"), str(HERE / f"{name}.py")], place
        else:
            node, where = os.environ.get("NODE") or shutil.which("node"), str(folder() / "node")
            assert node, "there is no node: use `make nightly`, or set NODE"
            for one in ("common", name):  # modules are found beside the script
                shutil.copy(HERE / f"{one}.mjs", where)
            command = [node, f"{name}.mjs"]
        done = subprocess.run(
            [*command, *arguments],
            cwd=where,
            env={**os.environ, **LOOPBACK},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=SECONDS,
        )
    assert done.returncode == 0, done.stdout
    found: Cells = {}
    for client, column in _OK.findall(done.stdout):
        assert column in COLUMNS, column
        found.setdefault(client, set()).add(column)
    assert found, done.stdout
    return found


def documented() -> Cells:
    """The table as docs/serving.md has it."""
    table = _TABLE.search(TARGET.read_text("utf-8"))
    assert table, f"{TARGET} has no table of clients"
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in table[0].strip().splitlines()[2:]
    ]
    return {
        row[0]: {name for name, cell in zip(COLUMNS, row[1:], strict=True) if cell} for row in rows
    }


def written(text: str, cells: Mapping[str, set[str]]) -> str:
    """A page with another table of clients."""
    lines = [f"| client | {' | '.join(COLUMNS)} |", "|---" * (len(COLUMNS) + 1) + "|"]
    for client, columns in cells.items():
        marks = ("✓" if name in columns else "" for name in COLUMNS)
        lines.append(f"| {client} | {' | '.join(marks)} |")
    table = "\n".join(lines).replace("|  |", "| |").replace("|  |", "| |") + "\n\n"
    found, count = _TABLE.subn(lambda _: table, text)
    assert count == 1, "the page has no table of clients"
    return found


def main() -> None:
    cells: Cells = {}
    with servers() as arguments:
        for name in (*NODE, *PYTHON):
            print(name, flush=True)
            cells |= ran(name, arguments)
    TARGET.write_text(written(TARGET.read_text("utf-8"), cells), "utf-8")


if __name__ == "__main__":
    main()
