"""`ggmodel steer`: steering vectors, made of prompts and looked at."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..errors import PromptError
from .loading import Loading
from .options import File, Force, Json, Out, expanded, read_text
from .terminal import console, count, note, report, table

steer = typer.Typer(no_args_is_help=True, rich_markup_mode=None, add_completion=False)

Prompts = Annotated[str, typer.Option(metavar="FILE", help="Prompts, one a line.")]


@steer.callback()
def _group() -> None:
    """Make steering vectors of prompts, and show what a file has.

    Files are llama.cpp's control vectors. `--steer FILE:STRENGTH` of `run`, `chat`, `serve` and
    `batch` applies one.
    """


@steer.command()
@expanded("where")
def make(
    file: File,
    out: Out,
    positive: Prompts = "",
    negative: Prompts = "",
    force: Force = False,
    *,
    loading: Loading,
) -> None:
    """Make a steering vector of two lists of prompts.

    It is the difference of what each layer gives, on average, after the last token of the positive
    prompts and of the negative ones.
    """
    from ..storage import check_target
    from ..workbench.inside import save_steering, steering_vector

    check_target(out, force=force, device=False)
    lists = [_lines(positive, "--positive "), _lines(negative, "--negative ")]
    with loading.load(file) as model:
        made = steering_vector(model, *lists)
        save_steering(out, made, model.report.architecture, force=force)
    note(f"{out}: {count(len(made.directions), 'direction')}; apply it by --steer {out}:1.0")


def _lines(path: str, option: str) -> list[str]:
    if not path:
        raise PromptError(f"give {option}FILE, a file of prompts, one a line")
    lines = [line for line in read_text(path, option).splitlines() if line]
    if not lines:
        raise PromptError(f"{option}{path}: it has no prompts; give one a line")
    return lines


@steer.command()
def show(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="A control vector.", show_default=False)
    ],
    as_json: Json = False,
) -> None:
    """Show the directions of a steering vector: their layers and norms."""
    import numpy as np

    from ..runner import Steering

    directions = Steering.load(file).directions
    norms = {i: float(np.linalg.norm(d)) for i, d in sorted(directions.items())}
    widths = sorted({len(d) for d in directions.values()})

    def printed() -> None:
        rows = [(str(i), f"{norm:.4g}") for i, norm in norms.items()]
        console().print(table(rows, ("layer", "norm"), right="01"))

    report(as_json, {"widths": widths, "norms": norms}, printed)
