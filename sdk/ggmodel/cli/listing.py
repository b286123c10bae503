"""`ggmodel list`: the models on this machine."""

from __future__ import annotations

from dataclasses import asdict

from .options import Json, Models
from .terminal import console, note, report, size, table


def list_models(models: Models = None, as_json: Json = False) -> None:
    """List the models on this machine.

    Models in Hugging Face's cache, LM Studio's folders, Ollama's store and other packages' stores,
    under the names that the other commands take, and whether this version runs them.
    """
    from ..workbench.stored import overview

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
