"""`ggmodel pull`: download a model."""

from __future__ import annotations

from typing import Annotated

import typer

from .options import complete_model
from .terminal import printable


def pull(
    name: Annotated[
        str,
        typer.Argument(
            autocompletion=complete_model,
            metavar="NAME",
            help="ORG/REPO, ORG/REPO:Q4_K_M, ORG/REPO@REVISION or ORG/REPO/FILE.gguf of the hub.",
            show_default=False,
        ),
    ],
) -> None:
    """Download a model from the Hugging Face hub.

    It goes into the hub's cache, which other programs share. Only new and changed files are
    downloaded, and an interrupted download resumes.
    """
    from ..names import pull as download

    print(printable(download(name).where))
