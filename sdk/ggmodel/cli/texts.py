"""`ggmodel embed`, `rerank`, `classify` and `tokenize`: rows of numbers for texts, documents by a
query, labels of texts and of their tokens, ids of tokens."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from .loading import Loading
from .options import File, Json, Models, expanded, read_prompt, read_text
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
            metavar="mean|cls|last|max|weightedmean|rank",
            help="How rows of tokens become one; default: as the file says.",
        ),
    ] = None,
    normalize: Annotated[
        bool, typer.Option("--normalize/--no-normalize", help="Give rows of length 1.")
    ] = True,
    prompt_name: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The prompt of the file to put before each text."),
    ] = None,
    prompt: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Put this before each text instead.")
    ] = None,
    dimensions: Annotated[
        int | None, typer.Option(min=1, help="Keep the first of each row (Matryoshka).")
    ] = None,
    truncate: Annotated[
        bool, typer.Option("--truncate", help="Cut texts that are too long for the model.")
    ] = False,
    kind: Annotated[
        str,
        typer.Option(
            metavar="dense|sparse|tokens",
            help="A row a text, weights of its tokens by id, or a row a token (BGE-M3).",
        ),
    ] = "dense",
    *,
    loading: Loading,
) -> None:
    """Turn texts into vectors.

    Prints a line of JSON for each text: a list of numbers. Similar texts have similar ones.
    """
    if kind not in ("dense", "sparse", "tokens"):
        raise typer.BadParameter(f"{kind!r} is none of dense, sparse, tokens", param_hint="--kind")
    with loading.load(file) as model:
        lines = _lines(texts)
        if kind == "sparse":
            rows: list = model.embed_sparse(lines, truncate=truncate)
        elif kind == "tokens":
            rows = [one.tolist() for one in model.embed_tokens(lines, truncate=truncate)]
        else:
            rows = model.embed(
                lines,
                pooling=pooling,  # type: ignore[arg-type]
                normalize=normalize,
                prompt=prompt,
                prompt_name=prompt_name,
                dimensions=dimensions,
                truncate=truncate,
            ).tolist()
    for row in rows:
        print(json.dumps(row))


@expanded()
def classify(
    file: File,
    texts: Texts,
    aggregation: Annotated[
        str,
        typer.Option(metavar="simple|none", help="Of labels of tokens: join neighbours or not."),
    ] = "simple",
    *,
    loading: Loading,
) -> None:
    """Label texts, or the names in them.

    Prints a line of JSON for each text: the probability of each label, or, of a model that labels
    tokens, a list of entities with their places in the text.
    """
    if aggregation not in ("simple", "none"):
        raise typer.BadParameter(f"{aggregation!r} is no way", param_hint="--aggregation")
    with loading.load(file) as model:
        lines = _lines(texts)
        if model.labels_tokens:
            found: list = model.classify_tokens(lines, aggregation=aggregation)  # type: ignore[arg-type]
        else:
            found = [
                dict(zip(model.labels or map(str, range(len(row))), row, strict=True))
                for row in model.classify(lines).tolist()
            ]
    for one in found:
        print(json.dumps(one, ensure_ascii=False))


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


def tokenize(
    file: File,
    text: Annotated[
        str, typer.Argument(metavar="TEXT", help="The text; - reads it from standard input.")
    ],
    special: Annotated[
        bool,
        typer.Option("--special/--no-special", help="Add the tokens that begin and end a prompt."),
    ] = True,
    ids: Annotated[bool, typer.Option("--ids", help="Print the ids alone, as a list.")] = False,
    models: Models = None,
    as_json: Json = False,
) -> None:
    """Turn a text into tokens.

    Prints the id of each token and its text.
    """
    from ..loading import open_source
    from ..tokenizer import Tokenizer

    with open_source(file, models=models) as source:
        tokenizer = Tokenizer.from_metadata(source.metadata)
    found = tokenizer.encode(read_prompt(text), add_special=special)
    rows = [{"id": id, "text": tokenizer.decode([id])} for id in found]

    def show() -> None:
        for row in rows:
            print(f"{row['id']:>7}  {json.dumps(row['text'], ensure_ascii=False)}")

    report(as_json, rows, (lambda: print(json.dumps(found))) if ids else show)
