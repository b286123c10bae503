"""A download on a terminal: its size before it begins, then a bar. A pipe sees nothing."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from .found import Progress as Callback


@contextmanager
def announced(
    name: str, files: int, nbytes: int, progress: Callback | None
) -> Iterator[Callable[[int], None]]:
    """A function to call with bytes as they come.

    Args:
        name: of the model.
        files: how many there are.
        nbytes: to come.
        progress: called with the share instead.
    """
    done = 0

    def share(n: int) -> float:
        nonlocal done
        done += n
        return min(done / max(nbytes, 1), 1.0)

    stream = sys.stderr
    if progress is not None:
        yield lambda n: progress(share(n))
        return
    if stream is None or not stream.isatty() or os.environ.get("TERM") == "dumb":
        yield lambda n: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    console = Console(stderr=True, markup=False, highlight=False)
    console.print(f"downloading {name}: {files} file{'s'[: files != 1]}, {nbytes / 1e9:,.2f} GB")
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(name, total=nbytes)
        yield lambda n: bar.update(task, advance=n)
