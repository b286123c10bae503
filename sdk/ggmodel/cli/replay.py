"""`ggmodel replay`: compute the bits of an answer again."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import typer

from .options import Json
from .terminal import note, printable, progress_bar, report


def replay(
    receipt: Annotated[
        str,
        typer.Argument(metavar="RECEIPT", help="A file of `run --receipt`.", show_default=False),
    ],
    model: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="The model. Default: the file that the receipt names."),
    ] = None,
    threads: Annotated[
        int | None, typer.Option(metavar="N", help="CPU threads; they change no bit.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Compute the logits of an answer again, and compare their bits.

    Prints what differs: the first token whose logits have other bits, and which of the model, the
    libraries and the instructions are others than in the receipt. The exit status is 1 if a bit
    differs.
    """
    from ..loading import load
    from ..names import find
    from ..runner.requests.receipt import Receipt

    read = Receipt.read(receipt)
    # A receipt may come from anybody: what it names is looked up here, and never downloaded.
    file: Any = find(read.name, download=False) if model is None else find(model)
    options = {name: read.options.get(name) for name in ("kv_type", "context_length")}
    with progress_bar("loading") as progress:
        given: Any = {**options, "threads": threads, "deterministic": True, "progress": progress}
        loaded = load(file, **given)
    with loaded:
        outcome = loaded.replay(read)

    def show() -> None:
        for name, then, now in outcome.differences:
            note(printable(f"another {name}: {then} in the receipt, {now} here"))
        print(_told(outcome, len(read.tokens)))

    report(as_json, {**asdict(outcome), "same": outcome.same}, show, outcome.same)


def _told(outcome: Any, tokens: int) -> str:
    if outcome.first is not None:
        return f"the logits of token {outcome.first} of {tokens} have other bits"
    if outcome.drawn is not None:
        return f"all logits have the same bits, but token {outcome.drawn} is drawn otherwise"
    return f"the same bits: {tokens} tokens"
