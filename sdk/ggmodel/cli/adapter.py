"""`ggmodel adapter`: LoRA and DoRA adapters as files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import ConfigError
from .options import File, Force, Json, Out, adapters_of
from .terminal import count, note, printable, progress_bar, report, size

adapter = typer.Typer(no_args_is_help=True, rich_markup_mode=None, add_completion=False)
_Adapter = Annotated[
    str,
    typer.Argument(metavar="ADAPTER", help="A folder of PEFT, or a GGUF file.", show_default=False),
]


@adapter.callback()
def _group() -> None:
    """Show, convert and merge adapters.

    `--adapter` of `ggmodel run`, `chat` and `serve` takes them as they are.
    """


@adapter.command()
def show(path: _Adapter, as_json: Json = False) -> None:
    """Show an adapter.

    Its kind, the ranks and the alpha of its matrices, and which weights it changes, by the ends of
    their names.
    """
    from ..workbench.adapters import described

    about = described(path)

    def lines() -> None:
        for name, value in about.items():
            shown: Any = value
            if isinstance(value, dict):
                shown = ", ".join(f"{end} × {n}" for end, n in value.items())
            elif isinstance(value, list):
                shown = ", ".join(map(str, value))
            print(printable(f"{name}: {shown:,}" if isinstance(value, int) else f"{name}: {shown}"))

    report(as_json, about, lines)


@adapter.command()
def convert(file: File, path: _Adapter, out: Out, force: Force = False) -> None:
    """Write an adapter as a GGUF file.

    llama.cpp reads the file, too, unless the adapter is DoRA. MODEL is the one that it changes: its
    architecture says which tensors the adapter's names stand for.
    """
    from ..names import find
    from ..workbench.adapters import convert_adapter

    about = convert_adapter(find(file), path, out, force=force)
    if about["kind"] == "DoRA":
        note("llama.cpp refuses DoRA; `ggmodel adapter merge` makes a model of it")
    changes = count(sum(about["changes"].values()), "tensor")
    print(printable(f"{out}: changes {changes}, {size(Path(out).stat().st_size)}"))


@adapter.command()
def merge(
    file: File,
    adapters: Annotated[
        list[str],
        typer.Argument(
            metavar="ADAPTER[=STRENGTH]… OUT",
            help="Adapters, and the file to write.",
            show_default=False,
        ),
    ],
    force: Force = False,
) -> None:
    """Write a GGUF file with adapters in its weights.

    Changed weights are F16, or F32 where they were F32 or BF16; `ggmodel quantize` gives them
    another type.
    """
    from ..names import find
    from ..workbench.adapters import merge_adapters

    *paths, out = adapters
    strengths = adapters_of(paths)
    if strengths is None:
        raise ConfigError("give an adapter, and last the file to write")
    with progress_bar("writing") as progress:
        merge_adapters(find(file), strengths, out, force=force, progress=progress)
    print(printable(f"{out}: {size(Path(out).stat().st_size)}"))
