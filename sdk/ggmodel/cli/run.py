"""`ggmodel run` and `ggmodel chat`: text from a prompt, and a conversation."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import Error, PromptError
from .ending import Terminated
from .loading import Loading
from .options import File, expanded, read_line, read_prompt, read_text, utf8
from .requests import Answering, MediaFiles, print_answer
from .terminal import dim, note, printable, say, styled

if TYPE_CHECKING:
    from ..runner import LoadedModel, RequestOptions, Usage


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
        bool, typer.Option("--echo/--no-echo", help="Print the prompt before the answer.")
    ] = True,
    *,
    items: MediaFiles,
    answering: Answering,
    loading: Loading,
) -> None:
    """Generate text from a prompt.

    The prompt and its continuation stream to standard output, tokens a second go to standard
    error. Ctrl-C ends the answer. A model that was trained for conversations answers with --chat.
    """
    from ..runner import Stream

    text = read_prompt(prompt)
    options, given_items = answering.options(), items.by_option()
    with loading.load(file) as model:
        if chat:
            question = {"role": "user", "content": text, **given_items}
            inputs = model.chat_prompt([question])
        else:
            inputs = model.prompts.with_items(text, given_items)
        request = model.request(inputs, **options)
        if answering.max_tokens is None and styled(sys.stderr):
            note("Ctrl-C ends the answer, -n N after N tokens")
        pieces: list[str] = []
        if echo:
            # An answer, unlike a continuation, has a line of its own.
            pieces.append(text + "\n" * bool(given_items or chat))
            print(dim(pieces[0], sys.stdout), end="", flush=True)
        try:
            print_answer(Stream(request), pieces)
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


_HELP = """\
/image FILE   attach an image to the next message
/audio FILE   attach audio
/video FILE   attach a video
/clear        drop the conversation, except the system message
/system TEXT  set the system message; without TEXT remove it
/help         list these commands
/exit         end, as Ctrl-D does
A line that ends with \\ goes on in the next one. Ctrl-C stops an answer, or clears the line."""


@expanded("parallel")
def chat(
    file: File,
    question: Annotated[
        str | None,
        typer.Argument(
            metavar="[QUESTION]",
            help="Message to answer, then exit; - reads standard input. Default: interactive.",
            show_default=False,
        ),
    ] = None,
    system: Annotated[str | None, typer.Option(metavar="TEXT", help="System message.")] = None,
    template: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Jinja chat template to use instead of the model's own."),
    ] = None,
    *,
    items: MediaFiles,
    answering: Answering,
    loading: Loading,
) -> None:
    """Chat with a model.

    Messages come from the terminal, where /help lists commands and Ctrl-C stops an answer, or from
    a pipe: then each line is one, and nothing but the answers is printed.
    """
    from ..chat import ChatTemplate

    source = None if template is None else read_text(template, "--template ")
    options = answering.options()
    text = None if question is None else read_prompt(question)
    with loading.load(file) as model:
        ChatTemplate.from_metadata(model.source.metadata, model.tokenizer, source)
        conversation = _Conversation(model, source, system, options)
        for kind, path in items.each():
            conversation.show(kind, path)
        if text is None:
            _talk(conversation)
        else:
            conversation.answer(text)


class _Conversation:
    """The messages so far, and the model that answers."""

    def __init__(
        self, model: LoadedModel, template: str | None, system: str | None, options: RequestOptions
    ):
        self.system, self.history = system, list[dict[str, Any]]()
        self._items: list[tuple[str, Any]] = []  # that go with the next question
        self._model, self._template, self._options = model, template, options

    def show(self, kind: str, path: str) -> None:
        if not path:
            raise PromptError(f"which one? give /{kind} FILE")
        self._items.append((kind, self._model.embeddings(path, kind)))

    def forget(self) -> None:
        """Forgets all but the system's message."""
        self.history, self._items = [], []

    def answer(self, question: str) -> None:
        """Prints the answer as it comes; the history keeps both, but not a question to which
        nothing was said because of an error or Ctrl-C."""
        message: dict[str, Any] = {"role": "user", "content": question}
        if self._items:
            items = [{"type": kind, kind: item} for kind, item in self._items]
            message["content"] = [*items, {"type": "text", "text": question}]
        prompt = self._prompt(message)
        pieces: list[str] = []
        try:
            print_answer(self._model.stream(prompt, **self._options), pieces)
        except (Error, KeyboardInterrupt):
            if pieces:
                self._keep(message, pieces)
            raise
        self._keep(message, pieces)
        full = self._model.length(prompt) + len(pieces) >= self._model.context_length
        if full and not self._options.get("context_shift"):
            note("the context is full (see --context-length)")

    def _keep(self, question: dict[str, Any], pieces: list[str]) -> None:
        self.history += [question, {"role": "assistant", "content": "".join(pieces)}]
        self._items = []

    def _prompt(self, question: dict[str, Any]) -> list[Any]:
        begin = [] if self.system is None else [{"role": "system", "content": self.system}]
        messages = [*begin, *self.history, question]
        kept = self._model.fitting(messages, template=self._template, **self._options)
        prompt = self._model.chat_prompt(kept, template=self._template)
        # Not for a question that is too long by itself.
        if len(kept) < len(messages) and self._model.length(prompt) <= self._model.context_length:
            self.history = [*kept[len(begin) : -1]]
            note("the conversation no longer fits the context: its oldest turns are dropped")
        return prompt


def _talk(conversation: _Conversation) -> None:
    interactive = sys.stdin.isatty() and sys.stdout.isatty()
    if interactive:
        with suppress(ImportError):
            import readline  # noqa: F401  # from now on input() edits lines and recalls them
        # Bytes that are no UTF-8 are told about as those of a pipe are.
        sys.stdin.reconfigure(errors="surrogateescape")  # type: ignore[union-attr]
        note("/help lists commands, Ctrl-C stops an answer, Ctrl-D ends")
    while (question := _read_question(interactive)) is not None:
        word, _, rest = question.strip().partition(" ")
        if word == "/exit":
            return
        try:
            if not _command(conversation, word, rest.strip()) and word:
                conversation.answer(question)
        except KeyboardInterrupt as error:
            if not interactive or isinstance(error, Terminated):
                raise
        except Error as error:
            if not interactive:
                raise
            say("error: " + printable(str(error), keep="\n"))


def _command(conversation: _Conversation, word: str, rest: str) -> bool:
    """Carries a command out, if it is one."""
    if word == "/clear":
        conversation.forget()
    elif word in ("/image", "/audio", "/video"):
        conversation.show(word[1:], rest)
    elif word == "/system":
        conversation.system = rest or None
    elif word == "/help":
        note(_HELP)
    elif word.startswith("/") and word[1:].isalpha() and not rest:
        note(f"there is no {word}; /help lists commands")
    else:
        return False
    return True


def _read_question(interactive: bool) -> str | None:
    """The next one, or None at the end."""
    lines: list[str] = []
    while True:
        try:
            line = _ask("... " if lines else "> ") if interactive else _next_line()
        except EOFError:
            if interactive:
                print()
            return "\n".join(lines) if lines and not interactive else None
        except PromptError as error:
            if not interactive:
                raise
            say(f"error: {error}")
            continue
        except KeyboardInterrupt as error:
            if not interactive or isinstance(error, Terminated):
                raise
            print()
            lines = []
            continue
        if not line.endswith("\\"):
            return "\n".join([*lines, line])
        lines.append(line[:-1])


def _ask(prompt: str) -> str:
    return utf8(input(prompt).encode("utf-8", "surrogateescape"), " of a line")


def _next_line() -> str:
    line = read_line()
    if not line:
        raise EOFError
    return utf8(line, " of a line").removesuffix("\n").removesuffix("\r")
