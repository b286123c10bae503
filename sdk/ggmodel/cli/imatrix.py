"""`ggmodel imatrix`: which inputs of the weights matter, for types below four bits."""

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
    context_length: Annotated[int, typer.Option(help="Tokens of a chunk.")] = 512,
    chunks: Annotated[
        int | None, typer.Option(help="The most chunks that are read; all by default.")
    ] = None,
    process_output: Annotated[
        bool, typer.Option("--process-output", help="The model's output counts, too.")
    ] = False,
    force: Force = False,
    *,
    loading: Loading,
) -> None:
    """Write an importance matrix, for `ggmodel quantize --imatrix`.

    As llama-imatrix computes it: the text is read in chunks, and the squares of the inputs of each
    weight are summed up. Some hundred chunks of text like that of the model's use are enough.
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
