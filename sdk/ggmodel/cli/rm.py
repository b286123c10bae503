"""`ggmodel rm`: remove a model from this machine."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from ..errors import ConfigError
from .options import complete_model
from .terminal import printable, size


def rm(
    name: Annotated[
        str,
        typer.Argument(
            autocompletion=complete_model,
            metavar="NAME",
            help="Name of the model, as `ggmodel list` shows it.",
            show_default=False,
        ),
    ],
    yes: Annotated[
        bool,
        typer.Option("--yes", "-y", help="Remove models of other programs without a question."),
    ] = False,
) -> None:
    """Remove a model from this machine.

    A model that `ggmodel pull` downloaded is removed at once, another program's after a
    confirmation, or with --yes. Ollama's store is only read.
    """
    from ..names import removable, remove

    model = removable(name)
    if not (model.own or yes):
        if not sys.stdin.isatty():
            raise ConfigError(
                f"{model.name} in {model.store} was put there by another program; --yes removes it"
            )
        question = f"Another program put {model.name} into {model.store}. Remove it?"
        typer.confirm(printable(question), abort=True)
    print(printable(f"{model.name}: {size(remove(model))} freed"))
