"""`ggmodel convert`, `quantize` and `imatrix`: a model as GGUF, and in smaller types.

An importance matrix is for types below four bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import ConfigError
from .loading import Loading
from .options import (
    File,
    Folder,
    Force,
    Imatrix,
    Models,
    Out,
    Strict,
    Text,
    Type,
    Where,
    expanded,
    option,
    read_text,
)
from .terminal import count, note, printable, progress_bar, size

if TYPE_CHECKING:
    from ..convert.imatrix import ImportanceMatrix
    from ..gguf_file import TensorSource

Program = Annotated[
    str | None,
    typer.Option(
        "--for", metavar="llama.cpp", help="Write a file that this program can load, or refuse."
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
    from ..runner.loading.resolved import ResolvedModel

    if isinstance(folder, ResolvedModel):
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


@dataclass(kw_only=True)
class ByLoss:
    """Types that are chosen by measured loss."""

    target_bits: float | None = option(
        None, "In place of TYPE: types by measured loss, so many bits a weight.", metavar="BITS"
    )
    text: str | None = option(
        None, "Text that loss and importance are measured on.", metavar="FILE"
    )
    recipe: str | None = option(
        None, "In place of TYPE: the types of a file of --target-bits.", metavar="FILE.gguf"
    )

    def check(self, type: str | None) -> None:
        """Raises `ConfigError` unless there is one way to choose the types."""
        if (type, self.target_bits, self.recipe).count(None) != 2:
            raise ConfigError("give one of TYPE, --target-bits and --recipe")
        if (self.text is None) != (type is not None):
            raise ConfigError("--target-bits and --recipe need --text, TYPE has no use for it")

    def write(self, source: TensorSource, out: str, **how: Any) -> None:
        """Writes the file."""
        from ..gguf_file import open_gguf
        from ..workbench.mixture import quantize as by_loss

        text = read_text(self.text or "", "--text ")
        if self.recipe is None:
            by_loss(source, out, text, self.target_bits, **how)
            return
        with open_gguf(self.recipe) as recipe:
            by_loss(source, out, text, recipe=recipe, **how)


@expanded()
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
        str | None,
        typer.Argument(
            metavar="[TYPE]",
            help="Quantisation type: q8_0, q4_K_M, q4_0, …; an unknown one lists all.",
            show_default=False,
        ),
    ] = None,
    imatrix: Imatrix = None,
    allow_requantize: Annotated[
        bool,
        typer.Option(
            "--allow-requantize", help="Quantise tensors that are quantised already; costs quality."
        ),
    ] = False,
    force: Force = False,
    *,
    by_loss: ByLoss,
) -> None:
    """Quantise a GGUF file.

    The mixtures are those of llama-quantize. With --target-bits the loss of each tensor is measured
    on a text, and the types are those of least loss; the file holds the recipe. The file appears
    when it is complete.
    """
    from ..convert.quantize import quantize as quantize_file
    from ..gguf_file import open_gguf
    from ..names import find

    by_loss.check(type)
    how: Any = {"imatrix": imatrix, "allow_requantize": allow_requantize, "force": force}
    with open_gguf(find(file)) as source, progress_bar("writing") as progress:
        if type is not None:
            quantize_file(source, out, type, **how, progress=progress)
        else:
            by_loss.write(source, out, **how, progress=progress)
        before, after = (
            size(sum(Path(p).stat().st_size for p in f)) for f in (source.files, [out])
        )
    print(printable(f"{out}: {after} of {before}"))


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
    from ..storage import check_target
    from ..workbench.text_statistics import importance

    check_target(out, force=force, device=False)
    content = read_text(text, "")
    matrix: ImportanceMatrix | None = None
    model = loading.load(file, context_length=context_length, batch_size=context_length)
    with model, progress_bar("reading") as progress:
        for done, matrix in importance(
            model, content, chunks=chunks, output=process_output, dataset=text
        ):
            progress(done, f"chunk {matrix.chunks}")
    assert matrix is not None  # a text has a chunk
    matrix.write(out, force=force)
    chunk = count(matrix.chunks, "chunk")
    print(printable(f"{out}: {count(len(matrix.entries), 'tensor')}, {chunk} of {context_length}"))
