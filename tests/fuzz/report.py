"""Progress of fuzzing on a terminal, and a table at the end."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from tests.fuzz.fuzzer import Fuzzer
from tests.fuzz.parent import Result

_LINES = 12  # of the end of a finding's text


@contextmanager
def progress(fuzzer: type[Fuzzer], seconds: float) -> Iterator[Callable[[Result], None]]:
    """A bar while a fuzzer runs, on a terminal only; the block calls what it gets for each news."""
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description:12}"),
        BarColumn(),
        TextColumn("{task.fields[news]}"),
        TimeRemainingColumn(),
    )
    begin = time.monotonic()
    with Progress(
        *columns, console=console, disable=not console.is_terminal, transient=True
    ) as bar:
        task = bar.add_task(fuzzer.name, total=seconds, news="starts")

        def show(result: Result) -> None:
            found = len(result.findings)
            news = f"{result.cases:,} cases" + (f", [red]{found} findings[/]" if found else "")
            bar.update(task, completed=min(time.monotonic() - begin, seconds), news=news)

        yield show


def table(results: list[Result]) -> Table:
    """A row for each fuzzer."""
    made = Table(box=None, pad_edge=False, header_style="bold")
    made.add_column("fuzzer", no_wrap=True)
    for column in ("cases", "a second", "refused", "slowest", "growth", "findings"):
        made.add_column(column, justify="right", no_wrap=True)
    made.add_column("counted")
    for r in results:
        unit = r.fuzzer.unit
        made.add_row(
            r.fuzzer.name,
            f"{r.cases:,}",
            f"{r.cases / max(r.seconds, 1e-9):,.0f}",
            f"{r.refused:,}",
            f"{r.slowest:.2f} s",
            f"{max(r.growth, 0) / 2**20:.1f} MiB",
            f"{len(r.findings):,}",
            f"{r.counts[unit]:,} {unit}" if unit else "",
        )
    return made


def show_findings(console: Console, result: Result, files: list[Path]) -> None:
    """Each finding, the end of what it said, and the file that runs it again."""
    for found, file in zip(result.findings.values(), files, strict=True):
        times = f", {found.count:,} times" if found.count > 1 else ""
        head = f"{result.fuzzer.name}: {found.title} (case {found.number}{times})"
        console.print(f"[bold red]{escape(head)}[/]", soft_wrap=True)
        for line in found.text.rstrip().splitlines()[-_LINES:]:
            console.print(f"    {line[:300]}", markup=False, highlight=False, soft_wrap=True)
        console.print(
            f"  again: python -m tests.fuzz --replay {file}", markup=False, soft_wrap=True
        )
