"""`ggmodel chat`: questions from a terminal or a pipe, and answers."""

from __future__ import annotations

import glob
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import ConfigError, Error, PromptError
from .conversation import COMMANDS, Conversation
from .ending import Terminated
from .loading import LoadingToGenerate
from .options import File, expanded, read_line, read_prompt, read_text, utf8
from .requests import Answering, MediaFiles, print_answer
from .terminal import note, say_error, styled

if TYPE_CHECKING:
    from ..runner import LoadedModel, RequestOptions, Stream

_QUOTES = '"""'
_RECALLED = 1000  # lines of the history

System = Annotated[str | None, typer.Option(metavar="TEXT", help="System message.")]
Template = Annotated[
    str | None,
    typer.Option(metavar="FILE", help="Jinja chat template to use instead of the model's own."),
]
Verbose = Annotated[bool, typer.Option("--verbose", help="Print speeds after each answer.")]


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
    system: System = None,
    template: Template = None,
    verbose: Verbose = False,
    *,
    items: MediaFiles,
    answering: Answering,
    loading: LoadingToGenerate,
) -> None:
    """Chat with a model.

    Messages come from the terminal, where /help lists commands and Ctrl-C stops an answer, or from
    a pipe: then each line is one, and nothing but the answers is printed.
    """
    source = None if template is None else read_text(template, "--template ")
    options = answering.options()
    text = None if question is None else read_prompt(question)
    with loading.load(file) as model:
        talk(conversation_with(model, options, items, source, system, verbose), text)


def conversation_with(
    model: LoadedModel,
    options: RequestOptions,
    items: MediaFiles,
    template: str | None,
    system: str | None,
    verbose: bool,
) -> Conversation:
    """A conversation that begins, its items with the first question."""
    from ..chat import ChatTemplate

    ChatTemplate.from_metadata(model.source.metadata, model.tokenizer, template)
    conversation = Conversation(model, options, template=template, system=system, verbose=verbose)
    for kind, path in items.each():
        conversation.attach(kind, path)
    return conversation


def talk(conversation: Conversation, question: str | None) -> None:
    """Answers one question, or those of the terminal or the pipe."""
    if question is not None:
        return conversation.answer(question)
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return _converse(conversation, interactive=False)
    if styled(sys.stdout):
        conversation.write = _print_wrapped
    # Bytes that are no UTF-8 are told about as those of a pipe are.
    sys.stdin.reconfigure(errors="surrogateescape")  # type: ignore[union-attr]
    note("/help lists commands, Ctrl-C stops an answer, Ctrl-D ends")
    with _lines_edited():
        _converse(conversation, interactive=True)


def _converse(conversation: Conversation, interactive: bool) -> None:
    while (question := _read_question(interactive)) is not None:
        word, _, rest = question.strip().partition(" ")
        if word in ("/exit", "/bye"):
            return
        try:
            if not conversation.command(word, rest.strip()) and word:
                conversation.answer(question)
        except KeyboardInterrupt as error:
            if not interactive or isinstance(error, Terminated):
                raise
        except Error as error:
            if not interactive:
                raise
            say_error(error)


def _read_question(interactive: bool) -> str | None:
    """The next one, or None at the end. It goes on behind a \\, and between three quotes."""
    lines, quoted = list[str](), False
    while True:
        try:
            line = _ask("... " if lines or quoted else "> ") if interactive else _next_line()
        except EOFError:
            if interactive:
                print()
            return "\n".join(lines) if lines and not interactive else None
        except PromptError as error:
            if not interactive:
                raise
            say_error(error)
            continue
        except KeyboardInterrupt as error:
            if not interactive or isinstance(error, Terminated):
                raise
            print()
            lines, quoted = [], False
            continue
        if not lines and not quoted and line.lstrip().startswith(_QUOTES):
            line, quoted = line.lstrip().removeprefix(_QUOTES), True
            if not line.strip():
                continue
        if quoted and line.rstrip().endswith(_QUOTES):
            lines.append(line.rstrip().removesuffix(_QUOTES))
            return "\n".join(lines).strip("\n")
        if not quoted and not line.endswith("\\"):
            return "\n".join([*lines, line])
        lines.append(line if quoted else line[:-1])


def _ask(prompt: str) -> str:
    return utf8(input(prompt).encode("utf-8", "surrogateescape"), " of a line")


def _next_line() -> str:
    line = read_line()
    if not line:
        raise EOFError
    return utf8(line, " of a line").removesuffix("\n").removesuffix("\r")


# terminals


@contextmanager
def _lines_edited() -> Iterator[None]:
    """While it lasts, input() edits lines, completes commands and paths, and recalls the lines of
    earlier chats; they are kept unless GGMODEL_NO_HISTORY is set."""
    try:
        readline: Any = import_module("readline")  # Windows has none
    except ImportError:
        yield
        return
    readline.set_completer_delims(" \t\n")
    readline.set_completer(lambda text, state: _completed(readline.get_line_buffer(), text, state))
    libedit = "libedit" in (readline.__doc__ or "")
    readline.parse_and_bind("bind ^I rl_complete" if libedit else "tab: complete")
    history = _history()
    if history is not None:
        with suppress(OSError):
            readline.read_history_file(history)
    try:
        yield
    finally:
        if history is not None:
            readline.set_history_length(_RECALLED)
            with suppress(OSError):
                history.parent.mkdir(parents=True, exist_ok=True)
                history.touch(mode=0o600)
                readline.write_history_file(history)


def _history() -> Path | None:
    from ..storage import data_folder

    if os.environ.get("GGMODEL_NO_HISTORY"):
        return None
    with suppress(ConfigError):
        return data_folder() / "chat_history"
    return None


def _completed(line: str, text: str, state: int) -> str | None:
    """The completion of that number: commands at the beginning, paths behind them."""
    if line == text:
        found = [one for one in COMMANDS if one.startswith(text)] if text else []
    elif line.startswith("/"):
        paths = glob.glob(glob.escape(os.path.expanduser(text)) + "*")
        found = sorted(path + os.sep * os.path.isdir(path) for path in paths)
    else:
        found = []
    return found[state] if state < len(found) else None


def _print_wrapped(stream: Stream, pieces: list[str]) -> None:
    width = shutil.get_terminal_size((0, 0)).columns
    print_answer(stream, pieces, Wrapping(width).add if width > 1 else str)


class Wrapping:
    """Breaks lines between words, as pieces of a text come.

    Args:
        width: columns of the terminal.
    """

    def __init__(self, width: int):
        self._width, self._column, self._word = width, 0, ""

    def add(self, piece: str) -> str:
        """The characters to print: a word that reaches the edge is taken back, and begins the next
        line."""
        from rich.cells import cell_len

        printed = list[str]()
        for letter in str(piece):
            size = cell_len(letter)
            if letter in " \n":
                self._word = ""
            else:
                self._word += letter
            if letter == "\n":
                self._column = 0
            elif self._column + size < self._width:
                self._column += size
            else:
                before = self._word[:-1]
                taken = cell_len(before)
                if letter == " ":
                    self._column = 0
                    letter = "\n"
                elif 0 < taken < self._column:
                    letter = f"\x1b[{taken}D\x1b[K\n{self._word}"
                    self._column = taken + size
                else:
                    letter, self._word = f"\n{letter}", letter
                    self._column = size
            printed.append(letter)
        return "".join(printed)
