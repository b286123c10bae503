"""`ggmodel convert`: a Hugging Face model as GGUF."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .options import Folder, Force, Imatrix, Models, Out, Strict, Type, Where
from .terminal import note, printable, progress_bar, size

Program = Annotated[
    str | None,
    typer.Option(
        "--for",
        metavar="llama.cpp",
        help="Write a file that this program can load, or refuse.",
    ),
]


def convert(
    folder: Folder,
    out: Out,
    type: Type = None,
    mmproj: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Write the multimodal projector into a file of its own, as llama.cpp needs it.",
        ),
    ] = None,
    imatrix: Imatrix = None,
    models: Models = None,
    pre: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Name of the pre-tokenizer, if it cannot be inferred from the tokenizer.",
        ),
    ] = None,
    strict: Strict = True,
    program: Program = None,
    force: Force = False,
    where: Where = False,
) -> None:
    """Convert a Hugging Face model to GGUF.

    Any architecture that has a declaration can be converted. The file appears when it is complete.
    """
    from ..convert.export import convert as convert_folder
    from ..names.found import Found

    if isinstance(folder, Found):
        with progress_bar("checking digests") as progress:
            folder.verify(progress)
    with progress_bar("writing") as progress:
        notes = convert_folder(
            folder,
            out,
            type,
            mmproj=mmproj,
            imatrix=imatrix,
            models=models,
            pre=pre,
            strict=strict,
            program=program,
            force=force,
            progress=progress,
        )
    for path in filter(None, (out, mmproj)):
        print(printable(f"{path}: {size(Path(path).stat().st_size)}"))
    for text in notes:
        note(printable(text))
