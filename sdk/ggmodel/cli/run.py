"""`ggmodel run`: continue a text."""

from __future__ import annotations

import sys
from contextlib import closing
from typing import TYPE_CHECKING, Annotated

import typer

from .loading import Loading, loads
from .options import (
    ContextLength,
    File,
    MaxTokens,
    MinP,
    PromptLookup,
    Seed,
    Stop,
    Temperature,
    TopK,
    TopP,
)
from .terminal import dim

if TYPE_CHECKING:
    from ..runner import Usage

# Names and defaults of the options are those of `ggmodel.load` and `LoadedModel.generate`; to
# import them from there would take longer than to print the help.


@loads()
def run(
    file: File,
    prompt: Annotated[
        str,
        typer.Argument(
            metavar="PROMPT",
            help="The text to go on with; - reads it from standard input, less a last newline.",
            show_default=False,
        ),
    ],
    max_tokens: MaxTokens = None,
    temperature: Temperature = 0.8,
    top_k: TopK = 40,
    top_p: TopP = 0.9,
    min_p: MinP = 0.0,
    seed: Seed = -1,
    stop: Stop = None,
    prompt_lookup: PromptLookup = False,
    image: Annotated[
        list[str] | None,
        typer.Option(metavar="FILE", help="An image to look at; may be given repeatedly."),
    ] = None,
    echo: Annotated[
        bool,
        typer.Option("--echo/--no-echo", help="Whether to print the prompt before the answer."),
    ] = True,
    context_length: ContextLength = None,
    parallel: Annotated[int, typer.Option(help="Sequences the cache has room for.")] = 1,
    *,
    loading: Loading,
) -> None:
    """Continue a text.

    The prompt and what the model adds to it go to standard output as they come, tokens a second to
    standard error. Ctrl-C ends the answer.
    """
    from ..runner import Sampler

    text = _read_prompt() if prompt == "-" else prompt
    sampler = Sampler(temperature, top_k, top_p, min_p, seed)
    model = loading.load(file, context_length=context_length, parallel=parallel)
    with model:
        request = model.request(
            text,
            images=image or (),
            sampler=sampler,
            max_tokens=max_tokens,
            stop=tuple(stop or ()),
            prompt_lookup=prompt_lookup,
        )
        if echo:
            # What follows an image and a text is an answer, mostly, and no continuation.
            print(dim(text, sys.stdout), end="\n" if image else "", flush=True)
        last = text[-1:] if echo else ""
        interrupt = None
        try:
            with closing(request.pieces()) as pieces:
                for piece in pieces:
                    print(piece, end="", flush=True)
                    last = piece[-1:] or last
        except KeyboardInterrupt as error:
            interrupt = error
        finally:
            # Also after an error: what was said stays, on a line that ends.
            if last != "\n":
                print(flush=True)
        if request.usage.prompt_seconds:
            _print_usage(request.usage, model.context_length)
        if interrupt is not None:
            raise interrupt


def _read_prompt() -> str:
    from ..errors import PromptError

    try:
        text = sys.stdin.buffer.read().decode("utf-8")
    except UnicodeDecodeError as error:
        raise PromptError(
            f"standard input is not UTF-8 (byte {error.start}); convert it, as with iconv"
        ) from None
    return text.removesuffix("\n").removesuffix("\r")


def _print_usage(usage: Usage, context_length: int) -> None:
    prompt_rate = usage.prompt_tokens / usage.prompt_seconds
    line = f"prompt: {usage.prompt_tokens} tokens, {prompt_rate:.1f} tokens/s"
    line += f"; answer: {usage.completion_tokens} tokens, {usage.tokens_per_second:.1f} tokens/s"
    if usage.drafted:
        line += f"; {usage.accepted} of {usage.drafted} guesses were right"
    if usage.prompt_tokens + usage.completion_tokens == context_length:
        line += "; the context is full (see --context-length)"
    print(dim(line, sys.stderr), file=sys.stderr)
