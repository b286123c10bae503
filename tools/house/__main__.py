"""Prints the numbers, or checks them; see `python -m tools.house --help`."""

from __future__ import annotations

import argparse
import gc
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from . import __doc__ as usage
from .counts import Ceilings, Counts, count, size

ROOT = Path(__file__).resolve().parents[2]
CEILINGS = Path("tools/house/ceilings.json")
LINES, FILES, PUBLIC, PAIRS = 38_500, 330, 1_200, 16  # of the goal
TOKEN_FILES, TOKEN_FUNCTIONS, REQUEST_CLASSES = 18, 50, 5
# Model files and the most lines of code of each.
MODELS = {
    "llama": ("models/llama/", 30),
    "mistral": ("models/mistral/", 30),
    "qwen2": ("models/qwen/qwen2.py", 30),
    "command-r": ("models/cohere/command_r.py", 30),
    "olmo2": ("models/olmo/olmo2.py", 40),
    "phi3": ("models/phi/phi3.py", 40),
    "qwen3, dense and experts": ("models/qwen/qwen3.py", 50),
    "gemma3n": ("models/gemma3n/", 650),
    "gemma4": ("models/gemma4/", 600),
}


@dataclass
class Row:
    """A number, the goal for it, its ceiling, and what it counts."""

    name: str
    number: int | str
    goal: int | None = None
    ceiling: int | None = None
    members: tuple[str, ...] = ()


def rows_of(counts: Counts, ceilings: Ceilings, with_pairs: bool) -> list[tuple[str, list[Row]]]:
    """The numbers that are counted, by title.

    Args:
        with_pairs: name the pairs of models.
    """
    packages = [
        Row(f"{name} ({size.files} files)", size.lines, None, ceilings.lines.get(name))
        for name, size in counts.packages().items()
    ]
    total = size(counts.sdk)
    files, functions, long_files, pairs, circles, in_circles, public = (
        Row(name, number, 0, ceilings.others.get(name)) for name, number in counts.held().items()
    )
    files.goal, pairs.goal, public.goal = FILES, PAIRS, PUBLIC
    functions.members = tuple(map(str, counts.long_functions))
    long_files.members = tuple(map(str, counts.long_files))
    circles.members = tuple(" ↔ ".join(circle) for circle in counts.circles)
    if with_pairs:
        pairs.members = tuple(f"{a} = {b}" for a, b in counts.pairs)
    models = []
    for name, (path, goal) in MODELS.items():
        sources = [source for source in counts.models if source.name.startswith(path)]
        models.append(Row(name, size(sources).lines if sources else "gone", goal))
    words = [Row(word, number) for word, number in counts.words().items()]
    return [
        ("lines of code by package", packages),
        (
            "the SDK without native and models",
            [Row("lines of code", total.lines, LINES), files, public],
        ),
        ("with native and models", [functions, long_files, pairs, circles, in_circles]),
        ("lines of code of models", models),
        ("names that tell nothing of the value", words),
    ]


def measured() -> tuple[str, list[Row]]:
    """The numbers that are measured with a model."""
    token, request = _run("token_path.py"), _run("request_classes.py")
    if isinstance(token, str):
        token = {"files": token, "functions": token}
    rows = [
        Row("files that a token runs through", token["files"], TOKEN_FILES),
        Row("functions that a token runs through", token["functions"], TOKEN_FUNCTIONS),
        Row("classes constructed from handler to batch", "not measured", REQUEST_CLASSES),
    ]
    rows[2].number = request if isinstance(request, str) else len(request)
    rows[2].members = () if isinstance(request, str) else tuple(request)
    return "measured on stories.gguf", rows


def _run(script: str) -> Any:
    """The JSON that a benchmark prints, or its last words."""
    path = os.pathsep.join((str(ROOT / "sdk"), os.environ.get("PYTHONPATH", "")))
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / script), "--json"],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    if done.returncode:
        return (done.stderr.strip().splitlines() or ["it failed"])[-1]
    return json.loads(done.stdout)


def show(console: Console, groups: list[tuple[str, list[Row]]]) -> None:
    """Prints the table, then what some numbers count."""
    table = Table(box=None, pad_edge=False)
    for name in ("", "now", "goal", "ceiling"):
        table.add_column(name, justify="right" if name else "left")
    for title, rows in groups:
        table.add_row()
        table.add_row(f"[bold]{title}[/]")
        for row in rows:
            values = (row.number, row.goal, row.ceiling)
            cells = (f"{v:,}" if isinstance(v, int) else v or "" for v in values)
            table.add_row(f"  {row.name}", *cells)
    console.print(table)
    for row in (row for _, rows in groups for row in rows if row.members):
        console.print(f"\n[bold]{row.name}[/]")
        for member in row.members:
            console.print(f"  {member}", soft_wrap=True, highlight=False, markup=False)


def main(arguments: list[str] | None = None, root: Path = ROOT) -> int:
    """Runs the command; the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.house",
        description=usage,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    for option in ("--static", "--pairs", "--check", "--lower"):
        parser.add_argument(option, action="store_true")
    options = parser.parse_args(arguments)
    gc.disable()  # syntax trees are millions of objects that stay
    counts, ceilings = count(root), Ceilings.read(root / CEILINGS)
    if options.lower:
        ceilings.lowered(counts).write(root / CEILINGS)
        return 0
    if options.check:
        faults = ceilings.faults(counts, str(CEILINGS))
        print(*faults, sep="\n", end="\n" * bool(faults), file=sys.stderr)
        return int(bool(faults))
    groups = rows_of(counts, ceilings, options.pairs)
    if not options.static:
        groups.append(measured())
    show(Console(highlight=False), groups)
    return 0


if __name__ == "__main__":
    sys.exit(main())
