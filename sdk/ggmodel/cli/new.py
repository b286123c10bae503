"""`ggmodel new`: begins an architecture."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from .options import Models
from .terminal import printable

if TYPE_CHECKING:
    from ..workbench.scaffold import Scaffold
    from ..workbench.scaffold.names import Proposal

_WIDEST = 200  # characters of a line


def new(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="Name of the architecture.", show_default=False)
    ],
    template: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="ARCH",
            help="Architecture to start from; default: the one that fits --hf best, else llama.",
        ),
    ] = None,
    hf: Annotated[
        str | None,
        typer.Option(metavar="HF_DIR", help="Checkpoint that the architecture is to read."),
    ] = None,
    into: Annotated[str, typer.Option(metavar="DIR", help="The folder to write to.")] = ".",
    models: Models = None,
) -> None:
    """Start a new architecture: a model file, a golden test and a README.

    With --hf only config.json and the names and shapes of the tensors are read. Fields are proposed
    for keys and tensors that the architecture of --from does not read.
    """
    from ..workbench.scaffold import scaffold

    _print(scaffold(name, into, template=template, hf=hf, models=models), into, hf is None)


def _print(begun: Scaffold, into: str, guessed: bool) -> None:
    print(f"{begun.name}, begun from {begun.template}:")
    for path in begun.files:
        print(printable(f"  {path}"))
    put = [p for p in begun.proposals if p.owner is not None]
    loose = [p for p in begun.proposals if p.owner is None]
    for title, lines in (
        ("fields that the checkpoint calls otherwise:", begun.corrections),
        ("fields for tensors that it did not read:", [f"{p.owner}: {p.line}" for p in put]),
        ("modules that it lacks:", begun.added),
        ("tensors that belong to no module of it:", [_tensors(p) for p in loose]),
        ("hyperparameters that it did not read:", begun.keys),
        ("what it has and the checkpoint has not:", begun.missing),
        ("what is left to you:", begun.left),
    ):
        if lines:
            print(title)
            for line in lines:
                print(_cut(f"  {printable(line)}"))
    if guessed:
        print("next: in cases.py, the architectures and the model_type that transformers knows")
    print(f"next: ggmodel golden {begun.name} --models {into} --update (needs torch), then edit")


def _cut(line: str) -> str:
    return line if len(line) <= _WIDEST else f"{line[: _WIDEST - 1]}…"


def _tensors(p: Proposal) -> str:
    of = p.of
    name = f"{of.parent}.{of.name}" if of.parent else of.name
    many = f" and {of.n - 1} more" if of.n > 1 else ""
    return f"{name} {list(of.shape)}{many}; perhaps {p.line}"
