"""`ggmodel perplexity`: the perplexity of a model on a text."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from .expanded import expanded
from .loading import Loading
from .options import File, Json, Text, read_text
from .terminal import count, progress_bar, report

if TYPE_CHECKING:
    from ..workbench.perplexity import Perplexity


@expanded("context_length", "parallel")
def perplexity(
    file: File,
    text: Text,
    context_length: Annotated[int, typer.Option(help="Context length: tokens of a chunk.")] = 512,
    as_json: Json = False,
    *,
    loading: Loading,
) -> None:
    """Measure the perplexity of a model on a text.

    As llama.cpp defines it: the text is cut into chunks of the context length, and the tokens of
    each one's second half are scored. The result is the exponential of the mean negative
    log-probability, with its standard error.
    """
    from ..workbench.perplexity import perplexity as score

    content = read_text(text, "")
    model = loading.load(file, context_length=context_length)
    result: Perplexity | None = None
    with model, progress_bar("scoring") as progress:
        for result in score(model, content, context_length):
            progress(result.chunks / result.of_chunks, f"perplexity {result.value:.4f}")
    assert result is not None  # a text has a chunk
    scored = result
    report(as_json, asdict(scored), lambda: _print(scored, context_length))


def _print(result: Perplexity, wanted: int) -> None:
    chunks, tokens = count(result.chunks, "chunk"), count(result.tokens, "token")
    if result.context < wanted:
        scored = "all scored but the first" if result.whole else f"two chunks of {result.context}"
        shorter = "one context" if result.whole else "two contexts"
        print(f"the text has {result.of_tokens} tokens, less than {shorter} of {wanted}: {scored}")
    print(f"perplexity {result.value:.4f} ± {result.error:.4f} over {tokens} ({chunks})")
