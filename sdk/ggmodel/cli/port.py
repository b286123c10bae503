"""`ggmodel port`: writes the model file of a class of transformers, and compares it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from .options import Json, checkpoint_folder, complete_model
from .terminal import console, count, printable, progress_bar, report, table

if TYPE_CHECKING:
    from ..workbench.port import Ported


def port(
    hf_dir: Annotated[
        str,
        typer.Argument(
            callback=checkpoint_folder,
            autocompletion=complete_model,
            metavar="HF_DIR",
            help="A folder with the config.json of a model, or its name, ORG/REPO.",
            show_default=False,
        ),
    ],
    into: Annotated[str, typer.Option(metavar="DIR", help="The folder to write to.")] = ".",
    name: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="Name of the architecture; default: the config's model_type.",
            show_default=False,
        ),
    ] = "",
    as_json: Json = False,
) -> None:
    """Write the model file of a transformers class, and prove it.

    A tiny model of the class, with random weights, is computed in float64. Blocks are recognised by
    what they compute, and written as declarations. The file is then compared with the class, on
    other random weights. The exit status is 1 if a result differs or a block is missing. Needs
    torch and transformers.
    """
    from ..workbench.port import port as write

    with progress_bar("porting") as progress:
        result = write(hf_dir, into, name=name, progress=lambda text: progress(0, text))
    report(as_json, result.as_dict(), lambda: _print(result, into), result.ok)


def _print(result: Ported, into: str) -> None:
    out = console()
    if result.errors:
        rows = [
            (name, f"{error:.1e}", f"{result.bounds[name]:.0e}", _verdict(result, name))
            for name, error in result.errors.items()
        ]
        out.print(table(rows, ("compared", "NMSE", "bound", ""), right="12"))
    if result.missing:
        out.print(printable(f"missing: {result.missing}"), style="bold red")
    if result.file is not None:
        state = "equal to" if result.ok else "not yet"
        print(printable(f"{result.file}: {state} {result.cls}"))
    if result.ok:
        print(f"next: ggmodel run HF_DIR --models {printable(into)}")
    elif result.wrong:
        wrong = count(len(result.wrong), "comparison")
        out.print(f"{wrong} above the bound: ggmodel diff names the module", style="bold red")


def _verdict(result: Ported, name: str) -> str:
    return "DIFFERS" if name in result.wrong else "equal"
