"""`ggmodel port`: writes the model file of a class of transformers, and compares it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import ConfigError
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
    prove: Annotated[
        bool, typer.Option("--prove", help="Compare the file that is in DIR; write none.")
    ] = False,
    seed: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=0, help="Seed of the random weights of --prove.", show_default=False
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Write the model file of a transformers class, and prove it.

    A tiny model of the class, with random weights, is computed in float64. Blocks are recognised by
    what they compute, and written as declarations. The file is then compared with the class, on
    other random weights. A file that was mended by hand is compared likewise with --prove. The exit
    status is 1 if a result differs or a block is missing. Needs torch and transformers.
    """
    from ..workbench import port as ported

    if seed is not None and not prove:
        raise ConfigError("--seed is for --prove; leave it out, or give both")
    if name and prove:
        raise ConfigError("--name is for a new file; leave it out with --prove")
    with progress_bar("porting") as progress:
        options: dict[str, Any] = {"progress": lambda text: progress(0, text)}
        if not prove:
            result = ported.port(hf_dir, into, name=name, **options)
        else:
            options |= {} if seed is None else {"seed": seed}
            result = ported.prove(hf_dir, into, **options)
    report(as_json, result.as_dict(), lambda: _print(result, into), result.ok)


def _print(result: Ported, into: str) -> None:
    out = console()
    if result.errors:
        rows = [
            (name, f"{error:.1e}", f"{result.bounds[name]:.0e}", _verdict(result, name))
            for name, error in result.errors.items()
        ]
        out.print(table(rows, ("compared", "NMSE", "bound", ""), right="12"))
    for what, source in result.mended.items():
        print(printable(f"mended: {what} is {source}, of several keys with its number"))
    if result.missing:
        out.print(printable(f"missing: {result.missing}"), style="bold red")
    if result.file is not None:
        state = "equal to" if result.ok else "not yet"
        print(printable(f"{result.file}: {state} {result.cls}"))
    if result.ok:
        print(f"next: ggmodel run HF_DIR --models {printable(into)}")
    elif result.wrong:
        wrong = count(len(result.wrong), "comparison")
        where = f"; {result.first} is the first module that diverges" if result.first else ""
        out.print(printable(f"{wrong} above the bound{where}"), style="bold red")


def _verdict(result: Ported, name: str) -> str:
    return "DIFFERS" if name in result.wrong else "equal"
