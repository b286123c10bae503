"""`ggmodel run`: an answer, a chat, or a text that goes on."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import ConfigError, PromptError, Unsupported
from .chat import System, Template, conversation_with, talk
from .loading import LoadingToGenerate
from .options import File, expanded, read_prompt, read_text
from .requests import Answering, MediaFiles, print_answer, print_usage
from .terminal import dim, note, styled

if TYPE_CHECKING:
    from ..runner import LoadedModel, RequestOptions, Stream

ReceiptFile = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        help="Write a receipt of the answer, for `ggmodel replay`; with --deterministic.",
    ),
]


@expanded()
def run(
    file: File,
    prompt: Annotated[
        str | None,
        typer.Argument(
            metavar="[PROMPT]",
            help="The prompt; - reads it from standard input, without a final newline. Default: a "
            "chat on a terminal, else standard input.",
            show_default=False,
        ),
    ] = None,
    chat: Annotated[
        bool | None,
        typer.Option(
            "--chat/--raw",
            help="Apply the chat template, or continue the text as it stands; default: apply it "
            "where the model has one and the prompt no special tokens.",
            show_default=False,
        ),
    ] = None,
    echo: Annotated[
        bool, typer.Option("--echo/--no-echo", help="Print a text before it goes on.")
    ] = True,
    system: System = None,
    template: Template = None,
    receipt: ReceiptFile = None,
    *,
    items: MediaFiles,
    answering: Answering,
    loading: LoadingToGenerate,
) -> None:
    """Answer a prompt, or open a chat without one.

    A model without a chat template continues the text, as --raw has any model do. The answer
    streams to standard output, tokens a second go to standard error. Ctrl-C ends the answer.
    """
    _check_receipt(receipt, loading)
    source = None if template is None else read_text(template, "--template ")
    options = answering.options()
    talks = prompt is None and sys.stdin.isatty()
    text = None if talks else read_prompt("-" if prompt is None else prompt)
    with loading.load(file) as model:
        if answering.max_tokens is None and text is not None and styled(sys.stderr):
            note("Ctrl-C ends the answer, -n N after N tokens")
        chats = _answers(model, text) if chat is None else chat
        if chats or source is not None or system is not None:
            told = text is not None
            conversation = conversation_with(model, options, items, source, system, verbose=told)
            conversation.answered = lambda stream: _write_receipt(stream, receipt)
            talk(conversation, text)
        elif text is None:
            raise PromptError("give a PROMPT: without a chat template the model only continues one")
        else:
            _continue(model, text, options, items, echo, receipt)


def _answers(model: LoadedModel, text: str | None) -> bool:
    """Whether a model has a chat template, and the text none of what it would add."""
    from ..chat.template import KEY

    if model.tokenizer is None or KEY not in model.source.metadata:
        return False
    ids = model.tokenize(text or "", add_special=False)
    return not any(map(model.tokenizer.is_special, ids))


def _check_receipt(path: str | None, loading: LoadingToGenerate) -> None:
    if path is not None and not loading.deterministic:
        raise ConfigError("--receipt goes with --deterministic: other sums vary")


def _write_receipt(stream: Stream, path: str | None) -> None:
    if path is None:
        return
    written = stream.completion(()).receipt
    if written is None:
        raise Unsupported(
            "there are no receipts of prompts with pictures or other items, nor of steered answers"
        )
    written.save(path)
    note(f"receipt: {path}")


def _continue(
    model: LoadedModel,
    text: str,
    options: RequestOptions,
    items: MediaFiles,
    echo: bool,
    receipt: str | None,
) -> None:
    from ..runner import Stream

    given = items.by_option()
    request = model.request(model.prompts.with_items(text, given), **options)
    pieces: list[str] = []
    if echo:
        # An answer about an item, unlike a continuation, has a line of its own.
        pieces.append(text + "\n" * bool(given))
        print(dim(pieces[0], sys.stdout), end="", flush=True)
    try:
        stream = Stream(request)
        print_answer(stream, pieces)
        _write_receipt(stream, receipt)
    except KeyboardInterrupt:
        print_usage(request.usage, model.context_length)
        raise
    print_usage(request.usage, model.context_length)
