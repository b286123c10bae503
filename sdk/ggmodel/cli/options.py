"""Arguments and options that several commands have."""

from __future__ import annotations

from typing import Annotated

import typer

File = Annotated[
    str,
    typer.Argument(
        metavar="FILE", help="A GGUF file; of a split one the first.", show_default=False
    ),
]
Models = Annotated[
    str | None,
    typer.Option(metavar="DIR", help="A folder with architectures, looked in first."),
]
Strict = Annotated[
    bool, typer.Option("--strict/--no-strict", help="Whether unused tensors are errors.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
