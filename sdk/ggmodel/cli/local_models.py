"""`ggmodel list`, `pull` and `rm`: the models on this machine."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from ..errors import ConfigError
from .options import Json, Models, complete_model, read_text
from .terminal import console, note, printable, progress_bar, report, size, table


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


def create(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="Name of the new model.", show_default=False)
    ],
    file: Annotated[
        str,
        typer.Option(
            "--file", "-f", metavar="FILE", help="The Modelfile; - reads it from standard input."
        ),
    ] = "Modelfile",
    type: Annotated[
        str | None,
        typer.Option(
            "--quantize",
            "-q",
            metavar="TYPE",
            help="Type that the weights get: q8_0, q4_K_M, …; they are in F32, F16 or BF16.",
        ),
    ] = None,
) -> None:
    """Create a model from a Modelfile, as Ollama does.

    FROM names another model, or GGUF files relative to the Modelfile, which are shared where the
    disk allows it. A model of the same name is replaced.
    """
    from ..names import derived, modelfile

    made = modelfile.read(read_text(file, "--file "))
    folder = Path(file).parent if file != "-" else Path()
    if made.ignored:
        note(f"without effect here: {', '.join(made.ignored)}")
    with progress_bar("creating") as progress:
        model = derived.create(
            name,
            modelfile.derived_model(made, folder, type or ""),
            lambda step: progress(step.completed / max(step.total, 1), step.status),
        )
    print(printable(model.where))


def cp(
    source: Annotated[
        str,
        typer.Argument(
            autocompletion=complete_model,
            metavar="SOURCE",
            help="A model of this machine, or the path of a GGUF file.",
            show_default=False,
        ),
    ],
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="The other name.", show_default=False)
    ],
) -> None:
    """Give a model of this machine another name.

    Files are shared where the disk allows it.
    """
    from ..names import derived, find

    print(printable(derived.copy(find(source, download=False), name).where))


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
