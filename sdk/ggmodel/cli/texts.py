"""`ggmodel embed` and `ggmodel rerank`: rows of numbers for texts, documents by a query."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from .loading import Loading
from .options import File, Json, expanded, read_text
from .terminal import printable, report

if TYPE_CHECKING:
    import numpy as np

Texts = Annotated[
    list[str],
    typer.Argument(metavar="TEXT...", help="Texts; - is the lines of standard input."),
]


def _lines(texts: list[str]) -> list[str]:
    """The texts, those of standard input in the place of "-"."""
    read = ([text] if text != "-" else read_text("-", "").splitlines() for text in texts)
    return [line for lines in read for line in lines if line]


@expanded()
def embed(
    file: File,
    texts: Texts,
    pooling: Annotated[
        str | None,
        typer.Option(
            metavar="mean|cls|last|rank",
            help="How rows of tokens become one; default: as the file says.",
        ),
    ] = None,
    normalize: Annotated[
        bool, typer.Option("--normalize/--no-normalize", help="Give rows of length 1.")
    ] = True,
    *,
    loading: Loading,
) -> None:
    """Turn texts into vectors.

    Prints a line of JSON for each text: a list of numbers. Similar texts have similar ones.
    """
    with loading.load(file) as model:
        rows = model.embed(_lines(texts), pooling=pooling, normalize=normalize)  # type: ignore[arg-type]
    for row in rows.tolist():
        print(json.dumps(row))


@expanded()
def rerank(
    file: File,
    query: Annotated[str, typer.Argument(metavar="QUERY", help="The question.")],
    documents: Texts,
    top: Annotated[
        int | None, typer.Option("--top", "-n", min=1, help="Print so many documents at most.")
    ] = None,
    normalize: Annotated[
        bool, typer.Option("--normalize", help="Give scores from 0 to 1 (a sigmoid).")
    ] = False,
    as_json: Json = False,
    *,
    loading: Loading,
) -> None:
    """Order documents by how well they answer a query.

    The model is a reranker: a checkpoint with a head of one label or two. The best comes first.
    """
    texts = _lines(documents)
    with loading.load(file) as model:
        scores = model.rerank(query, texts, normalize=normalize)
    order = scores.argsort(kind="stable")[::-1][:top].tolist()
    ranked = [{"index": i, "score": float(scores[i]), "document": texts[i]} for i in order]
    report(as_json, ranked, lambda: _print(scores, texts, order))


def _print(scores: np.ndarray, texts: list[str], order: list[int]) -> None:
    for i in order:
        print(f"{scores[i]:9.4f}  {printable(texts[i])}")
