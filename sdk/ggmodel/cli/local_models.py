"""`ggmodel list`, `pull` and `rm`: the models on this machine."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import Annotated

import typer

from ..errors import ConfigError
from .options import Json, Models, complete_model
from .terminal import console, note, printable, report, size, table


def list_models(models: Models = None, as_json: Json = False) -> None:
    """List the models on this machine.

    Models in Hugging Face's cache, LM Studio's folders, Ollama's store and other packages' stores,
    under the names that the other commands take, and whether this version runs them.
    """
    from ..names.inventory import overview

    rows = overview(models)

    def show() -> None:
        cells = [
            (
                row.name,
                row.store,
                size(row.nbytes),
                row.type or "?",
                row.architecture or "?",
                "yes" if row.runs else f"no: {row.reason}",
            )
            for row in rows
        ]
        if cells:
            header = ("name", "where", "size", "type", "architecture", "runs")
            console().print(table(cells, header, right="2"))
        else:
            note("no models here; `ggmodel pull ORG/REPO` downloads one")

    report(as_json, [asdict(row) for row in rows], show)


def pull(
    name: Annotated[
        str,
        typer.Argument(
            autocompletion=complete_model,
            metavar="NAME",
            help="ORG/REPO, ORG/REPO:Q4_K_M, ORG/REPO@REVISION or ORG/REPO/FILE.gguf of the hub; "
            "NAME[:TAG] or ollama://NAMESPACE/NAME[:TAG] of Ollama's registry.",
            show_default=False,
        ),
    ],
) -> None:
    """Download a model from the Hugging Face hub, or from Ollama's registry.

    A model of the hub goes into its cache, which other programs share, one of Ollama into
    ggmodel's own store. Only new and changed files are downloaded, and an interrupted download
    resumes.
    """
    from ..names import pull as download

    print(printable(download(name).where))


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
