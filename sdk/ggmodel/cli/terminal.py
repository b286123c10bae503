"""Printing: styles, tables, numbers, notes, progress."""

from __future__ import annotations

import json
import math
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, TextIO, TypeVar

import typer

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

R = TypeVar("R")

_UNBOUNDED = 1 << 20  # columns of a pipe: nobody has to fold there


def printable(text: str, keep: str = "") -> str:
    """The text with control characters, and those that no encoding has, written as escapes: files
    are untrusted.

    Args:
        keep: control characters that stay.
    """
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() or c in keep else c.encode("unicode_escape").decode() for c in text
    )


def in_options(message: str, options: Mapping[str, str]) -> str:
    """A message of the library with options in place of Python's arguments.

    Args:
        options: of the command, by the arguments that they set.
    """
    for name, option in options.items():
        # "name is 3", "name=True", "give name= a path", "leave out name"; other words stay, unless
        # they have an underscore, which no word of English has.
        message = re.sub(rf"^{name}(?=( is|:| names| gives) )", option, message)
        message = re.sub(rf"(?<![\w.(]){name}=(True\b|(?=\W|$))", option, message)
        message = re.sub(rf"(?<=leave out ){name}\b", option, message)
        if "_" in name:
            message = re.sub(rf"(?<![\w./'\"-]){name}(?![\w.(=])", option, message)
    return message


def styled(stream: TextIO) -> bool:
    """Whether colours and moving bars are welcome there."""
    return stream.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"


def dim(text: str, stream: TextIO) -> str:
    """The text, dimmed where the stream is a terminal."""
    return f"\x1b[2m{text}\x1b[22m" if styled(stream) else text


def say_error(message: object) -> None:
    """Prints an error to standard error, red on a terminal."""
    text = "error: " + printable(str(message), keep="\n")
    say(f"\x1b[31m{text}\x1b[39m" if styled(sys.stderr) else text)


def say(text: str) -> None:
    """Prints lines to standard error. If that cannot be written, nobody is there to be told."""
    with suppress(OSError):
        print(text, file=sys.stderr)


def note(text: str) -> None:
    """Prints lines for people to standard error, dimmed on a terminal."""
    say("\n".join(dim(line, sys.stderr) for line in text.split("\n")))


def console() -> Console:
    """Standard output, neither folded nor coloured in a pipe. Texts are made printable."""
    from rich.console import Console

    class Quiet(Console):
        def on_broken_pipe(self) -> None:  # rich would exit with 1; the caller says what it means
            raise BrokenPipeError

        def print(self, *objects: Any, **options: Any) -> None:
            super().print(*(printable(o) if isinstance(o, str) else o for o in objects), **options)

    width = None if sys.stdout.isatty() else _UNBOUNDED
    return Quiet(file=sys.stdout, width=width, highlight=False, markup=False, emoji=False)


def table(
    rows: Sequence[Sequence[str]],
    header: Sequence[str] = (),
    *,
    right: str = "",
    fold: int = -1,
    keep: str = "",
) -> Table:
    """Columns without lines around them.

    Args:
        rows: any text; it is made printable.
        right: digits of the columns that are flushed right.
        fold: the column that is folded where the terminal is narrow; -1 is the last.
        keep: control characters that stay, as in `printable`.
    """
    from rich.table import Table
    from rich.text import Text

    grid = Table(box=None, show_header=bool(header), padding=(0, 2, 0, 0), header_style="dim")
    columns = len(rows[0]) if rows else len(header)
    for i in range(columns):
        title = header[i] if header else ""
        justify = "right" if str(i) in right else "left"
        rigid = i != fold % columns
        grid.add_column(Text(title), justify=justify, overflow="fold", no_wrap=rigid)
    for row in rows:
        grid.add_row(*(Text(printable(cell, keep)) for cell in row))
    return grid


def size(nbytes: int) -> str:
    """Bytes for people: "3.4 MiB"."""
    value, unit = float(nbytes), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{value:.0f} {unit}" if unit == "B" else f"{value:.2f} {unit}"


def count(n: int, what: str) -> str:
    """ "1 token", "2 tokens"."""
    return f"{n} {what}{'s'[: n != 1]}"


def report(as_json: bool, value: Any, show: Callable[[], None], ok: bool = True) -> None:
    """Prints a command's result: `value` as JSON, its numbers that JSON lacks as strings, or for
    people by `show`. Unless it is ok, the exit status is 1."""
    if as_json:
        # ASCII only: metadata may hold bytes that are not UTF-8, as lone surrogates.
        print(json.dumps(_finite(value), indent=2))
    else:
        show()
    if not ok:
        raise typer.Exit(1)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _finite(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(v) for v in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


@contextmanager
def progress_bar(what: str, lines: bool = False) -> Iterator[Callable[..., None]]:
    """A function to call with the share done, and maybe another text than `what`. If stderr is no
    terminal it does nothing.

    Args:
        lines: it prints each new text as a line then.
    """
    if not styled(sys.stderr):
        latest = ""

        def tell(share: float, text: str = "") -> None:
            nonlocal latest
            if lines and text != latest:
                print(printable(f"{what}: {text}"), file=sys.stderr, flush=True)
            latest = text

        yield tell
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn())
    with Progress(*columns, console=Console(stderr=True, markup=False), transient=True) as bar:
        task = bar.add_task(what, total=1.0)
        yield lambda share, text=what: bar.update(task, completed=share, description=text)


def with_progress(results: Iterable[R], names: Sequence[str]) -> list[R]:
    """All results, with a bar that shows the name of the one under way."""
    collected: list[R] = []
    with progress_bar(names[0]) as progress:
        for result in results:
            collected.append(result)
            if len(collected) < len(names):
                progress(len(collected) / len(names), names[len(collected)])
    return collected
