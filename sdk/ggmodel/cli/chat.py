"""`ggmodel chat`: talk with a model."""

from __future__ import annotations

import sys
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import ConfigError, Error, PromptError
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
from .terminal import dim, printable

if TYPE_CHECKING:
    from ..runner import LoadedModel

_HELP = """\
/image FILE   show the model a picture, together with the next question
/clear        forget what was said, but for the system's message
/system TEXT  tell the model who it is; without TEXT tell it nothing
/help         list these commands
/exit         end, as Ctrl-D does
A line that ends with \\ goes on in the next one. Ctrl-C stops an answer, or clears the line."""


@loads()
def chat(
    file: File,
    system: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Tells the model who it is.")
    ] = None,
    template: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A Jinja chat template instead of the model's own."),
    ] = None,
    max_tokens: MaxTokens = None,
    temperature: Temperature = 0.8,
    top_k: TopK = 40,
    top_p: TopP = 0.9,
    min_p: MinP = 0.0,
    seed: Seed = -1,
    stop: Stop = None,
    prompt_lookup: PromptLookup = False,
    context_length: ContextLength = None,
    *,
    loading: Loading,
) -> None:
    """Talk with a model.

    Questions come from the terminal, where /help lists commands and Ctrl-C stops an answer, or from
    a pipe: then each line is one, and nothing but the answers is printed.
    """
    from ..chat import ChatTemplate

    source = None if template is None else _read_template(template)
    model = loading.load(file, context_length=context_length)
    with model:
        ChatTemplate.from_metadata(model.source.metadata, model.tokenizer, source)
        options = {
            "max_tokens": max_tokens,
            "temperature": temperature,
            "top_k": top_k,
            "top_p": top_p,
            "min_p": min_p,
            "seed": seed,
            "stop": tuple(stop or ()),
            "prompt_lookup": prompt_lookup,
        }
        _talk(_Conversation(model, source, system, options))


def _read_template(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--template {path}: {error}; give a file with Jinja text") from None


class _Conversation:
    """What was said so far, and who answers."""

    def __init__(
        self,
        model: LoadedModel,
        template: str | None,
        system: str | None,
        options: dict[str, Any],
    ):
        self.system, self.history = system, list[dict[str, Any]]()
        self._images: list[Any] = []  # that go with the next question
        self._model, self._template, self._options = model, template, options
        # Kept free for the answer.
        self._room = model.context_length // 4
        if options["max_tokens"] is not None:
            self._room = min(self._room, options["max_tokens"])

    def show(self, path: str) -> None:
        """Adds an image to the next question."""
        if not path:
            raise PromptError("which one? give /image FILE")
        self._images.append(self._model.embeddings(path))

    def forget(self) -> None:
        """All but the system's message."""
        self.history, self._images = [], []

    def answer(self, question: str) -> None:
        """Prints the answer as it comes; the history keeps both, but not a question to which
        nothing was said because of an error or Ctrl-C."""
        asked: dict[str, Any] = {"role": "user", "content": question}
        if self._images:
            asked["images"] = self._images
        prompt = self._prompt(asked)
        said: list[str] = []
        try:
            self._say(prompt, said)
        except (Error, KeyboardInterrupt):
            if said:
                self._keep(asked, said)
            raise
        self._keep(asked, said)
        if self._model.length(prompt) + len(said) >= self._model.context_length:
            _note("the context is full (see --context-length)")

    def _keep(self, asked: dict[str, Any], said: list[str]) -> None:
        self.history += [asked, {"role": "assistant", "content": "".join(said)}]
        self._images = []

    def _prompt(self, asked: dict[str, Any]) -> list[Any]:
        from ..chat import fitting

        begin = [] if self.system is None else [{"role": "system", "content": self.system}]
        messages = [*begin, *self.history, asked]
        kept = fitting(messages, self._fits)
        prompt = self._encoded(kept)
        # Not for a question that is too long by itself.
        if len(kept) < len(messages) and self._model.length(prompt) <= self._model.context_length:
            self.history = kept[len(begin) : -1]
            _note("the conversation no longer fits the context: its oldest part is forgotten")
        return prompt

    def _encoded(self, messages: list[dict[str, Any]]) -> list[Any]:
        return self._model.chat_prompt(messages, template=self._template)

    def _fits(self, messages: list[dict[str, Any]]) -> bool:
        length = self._model.length(self._encoded(messages))
        return length + self._room <= self._model.context_length

    def _say(self, prompt: list[Any], said: list[str]) -> None:
        try:
            with closing(self._model.stream(prompt, **self._options)) as pieces:
                for piece in pieces:
                    said.append(piece)
                    print(piece, end="", flush=True)
        finally:
            if not "".join(said).endswith("\n"):
                print(flush=True)


def _talk(conversation: _Conversation) -> None:
    interactive = sys.stdin.isatty() and sys.stdout.isatty()
    if interactive:
        with suppress(ImportError):
            import readline  # noqa: F401  # from now on input() edits lines and recalls them

        _note("/help lists commands, Ctrl-D ends")
    while (question := _read_question(interactive)) is not None:
        word, _, rest = question.strip().partition(" ")
        if word == "/exit":
            return
        try:
            if not _command(conversation, word, rest.strip()) and word:
                conversation.answer(question)
        except KeyboardInterrupt:
            if not interactive:
                raise
        except Error as error:
            if not interactive:
                raise
            print("error:", printable(str(error), keep="\n"), file=sys.stderr)


def _command(conversation: _Conversation, word: str, rest: str) -> bool:
    """Carries a command out, if it is one."""
    if word == "/clear":
        conversation.forget()
    elif word == "/image":
        conversation.show(rest)
    elif word == "/system":
        conversation.system = rest or None
    elif word == "/help":
        _note(_HELP)
    elif word.startswith("/") and word[1:].isalpha() and not rest:
        _note(f"there is no {word}; /help lists commands")
    else:
        return False
    return True


def _read_question(interactive: bool) -> str | None:
    """The next one, or None at the end."""
    lines: list[str] = []
    while True:
        try:
            line = input("... " if lines else "> ") if interactive else _read_line()
        except EOFError:
            if interactive:
                print()
            return "\n".join(lines) if lines and not interactive else None
        except KeyboardInterrupt:
            if not interactive:
                raise
            print()
            lines = []
            continue
        if not line.endswith("\\"):
            return "\n".join([*lines, line])
        lines.append(line[:-1])


def _read_line() -> str:
    line = sys.stdin.buffer.readline()
    if not line:
        raise EOFError
    try:
        return line.decode("utf-8").removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError as error:
        raise PromptError(
            f"standard input is not UTF-8 (byte {error.start} of a line); convert it, as with iconv"
        ) from None


def _note(text: str) -> None:
    print("\n".join(dim(line, sys.stderr) for line in text.split("\n")), file=sys.stderr)
