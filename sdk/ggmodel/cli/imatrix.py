"""`ggmodel imatrix`: compute an importance matrix, for types below four bits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from .expanded import expanded
from .loading import Loading
from .options import File, Force, Out, Text, read_text
from .terminal import count, printable, progress_bar

if TYPE_CHECKING:
    from ..convert.imatrix import ImportanceMatrix


@expanded("batch_size", "context_length", "parallel")
def imatrix(
    file: File,
    text: Text,
    out: Out,
    context_length: Annotated[int, typer.Option(help="Context length: tokens of a chunk.")] = 512,
    chunks: Annotated[
        int | None, typer.Option(help="Chunks to compute at most; default: all.")
    ] = None,
    process_output: Annotated[
        bool, typer.Option("--process-output", help="Collect data for the output tensor, too.")
    ] = False,
    force: Force = False,
    *,
    loading: Loading,
) -> None:
    """Compute an importance matrix (imatrix), for `ggmodel quantize --imatrix`.

    As llama-imatrix computes it: the text is computed in chunks, and the squared activations that
    enter each weight are summed up. Some hundred chunks of text like that of the model's use are
    enough.
    """
    from ..atomic import check_target
    from ..workbench.importance import importance

    check_target(out, force=force, device=False)
    content = read_text(text, "")
    found: ImportanceMatrix | None = None
    model = loading.load(file, context_length=context_length, batch_size=context_length)
    with model, progress_bar("reading") as progress:
        for done, found in importance(
            model, content, chunks=chunks, output=process_output, dataset=text
        ):
            progress(done, f"chunk {found.chunks}")
    assert found is not None  # a text has a chunk
    found.write(out, force=force)
    chunk = count(found.chunks, "chunk")
    print(printable(f"{out}: {count(len(found.entries), 'tensor')}, {chunk} of {context_length}"))
