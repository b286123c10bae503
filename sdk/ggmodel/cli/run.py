"""`ggmodel run`: generate text from a prompt."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from .answering import Answering, print_answer
from .expanded import expanded
from .items import Items
from .loading import Loading
from .options import File, read_prompt
from .terminal import dim, note, styled

if TYPE_CHECKING:
    from ..runner import LoadedModel, Usage


@expanded()
def run(
    file: File,
    prompt: Annotated[
        str,
        typer.Argument(
            metavar="PROMPT",
            help="The prompt; - reads it from standard input, without a final newline.",
            show_default=False,
        ),
    ],
    chat: Annotated[
        bool, typer.Option("--chat", help="Apply the chat template, as `ggmodel chat` does.")
    ] = False,
    echo: Annotated[
        bool,
        typer.Option("--echo/--no-echo", help="Print the prompt before the answer."),
    ] = True,
    *,
    items: Items,
    answering: Answering,
    loading: Loading,
) -> None:
    """Generate text from a prompt.

    The prompt and its continuation stream to standard output, tokens a second go to standard
    error. Ctrl-C ends the answer. A model that was trained for conversations answers with --chat.
    """
    from ..runner import Stream

    text = read_prompt(prompt)
    options, given_items = answering.options(), items.given()
    with loading.load(file) as model:
        if chat:
            question = {"role": "user", "content": text, **given_items}
            given = model.chat_prompt([question])
        else:
            given = model.prompts.with_items(text, given_items)
        request = model.request(given, **options)
        if answering.max_tokens is None and styled(sys.stderr):
            note("Ctrl-C ends the answer, -n N after N tokens")
        said: list[str] = []
        if echo:
            # An answer, unlike a continuation, has a line of its own.
            said.append(text + "\n" * bool(given_items or chat))
            print(dim(said[0], sys.stdout), end="", flush=True)
        try:
            print_answer(Stream(request), said)
        except KeyboardInterrupt:
            _print_usage(request.usage, model.context_length)
            raise
        _print_usage(request.usage, model.context_length)
        if not chat and _looks_like_a_question(model, text):
            note(
                "the model was trained for conversations: `run --chat` or `ggmodel chat` asks it "
                "through its chat template"
            )


def _looks_like_a_question(model: LoadedModel, text: str) -> bool:
    """Whether a model with a chat template was given a text without special tokens."""
    from ..chat.template import KEY

    if model.tokenizer is None or KEY not in model.source.metadata:
        return False
    return not any(map(model.tokenizer.is_special, model.tokenize(text, add_special=False)))


def _print_usage(usage: Usage, context_length: int) -> None:
    if not usage.prompt_seconds:
        return
    prompt_rate = (usage.prompt_tokens - usage.reused_tokens) / usage.prompt_seconds
    line = f"prompt: {usage.prompt_tokens} tokens, {prompt_rate:.1f} tokens/s"
    line += f"; answer: {usage.completion_tokens} tokens, {usage.tokens_per_second:.1f} tokens/s"
    if usage.drafted:
        line += f"; {usage.accepted} of {usage.drafted} draft tokens accepted"
    if usage.prompt_tokens + usage.completion_tokens == context_length:
        line += "; the context is full (see --context-length)"
    note(line)
