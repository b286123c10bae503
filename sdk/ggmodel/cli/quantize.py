"""`ggmodel quantize`: quantise a GGUF file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .options import Force, Imatrix, Out
from .terminal import printable, progress_bar, size


def quantize(
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE",
            help="A GGUF file (the first of a split one), or a name, such as ORG/REPO:F16.",
            show_default=False,
        ),
    ],
    out: Out,
    type: Annotated[
        str,
        typer.Argument(
            metavar="TYPE",
            help="Quantisation type: q8_0, q4_K_M, q4_0, …; an unknown one lists all.",
            show_default=False,
        ),
    ],
    imatrix: Imatrix = None,
    allow_requantize: Annotated[
        bool,
        typer.Option(
            "--allow-requantize",
            help="Quantise tensors that are quantised already; costs quality.",
        ),
    ] = False,
    force: Force = False,
) -> None:
    """Quantise a GGUF file.

    The mixtures are those of llama-quantize. The file appears when it is complete.
    """
    from ..convert.quantize import quantize as quantize_file
    from ..gguf_file import open_gguf
    from ..names import find

    with open_gguf(find(file)) as source, progress_bar("writing") as progress:
        quantize_file(
            source,
            out,
            type,
            imatrix=imatrix,
            allow_requantize=allow_requantize,
            force=force,
            progress=progress,
        )
        before, after = (
            size(sum(Path(p).stat().st_size for p in f)) for f in (source.files, [out])
        )
    print(printable(f"{out}: {after} of {before}"))
