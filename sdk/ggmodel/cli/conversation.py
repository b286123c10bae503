"""A conversation on the command line: its turns, the commands that change it, its file."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError, Error, FormatError, PromptError
from .options import read_text
from .requests import print_answer, print_usage
from .terminal import note

if TYPE_CHECKING:
    from ..runner import LoadedModel, RequestOptions, Stream

HELP = """\
/image FILE      attach an image to the next message; also /audio, /video
/regen           answer the last message again
/undo            drop the last message and its answer
/clear           drop the conversation, except the system message
/system TEXT     set the system message; without TEXT remove it
/set NAME VALUE  set an option, such as temperature; /set verbose prints speeds, /set quiet does not
/show            show the model, the options and how full the context is
/save FILE       write the conversation; /load FILE reads it
/help            list these commands
/exit            end, as Ctrl-D does
A text between three quotes (\"\"\") may have several lines, as one whose lines end with \\.
Ctrl-C stops an answer, or clears the line."""

COMMANDS = (
    "/image /audio /video /regen /undo /clear /system /set /show /save /load /help /exit".split()
)
_VALUES = (
    "max_tokens temperature top_k top_p min_p typical_p repeat_penalty repeat_last_n "
    "frequency_penalty presence_penalty seed stop context_shift truncate num_keep prompt_lookup "
    "ignore_eos"
).split()


@dataclass
class Turn:
    """A question with its items, each its kind, its path and its embeddings, and the answer."""

    question: str
    items: list[tuple[str, str, Any]] = field(default_factory=list)
    answer: str = ""

    def messages(self) -> list[dict[str, Any]]:
        """As the chat template takes them."""
        content: Any = self.question
        if self.items:
            items = [{"type": kind, kind: item} for kind, _, item in self.items]
            content = [*items, {"type": "text", "text": self.question}]
        return [
            {"role": "user", "content": content},
            {"role": "assistant", "content": self.answer},
        ]


class Conversation:
    """The turns so far, and the model that answers.

    Attributes:
        verbose: print speeds after each answer.
        write: prints the pieces of an answer. answered: called with one that is complete.
    """

    def __init__(
        self,
        model: LoadedModel,
        options: RequestOptions,
        *,
        template: str | None = None,
        system: str | None = None,
        verbose: bool = False,
    ):
        self.system, self.turns, self.verbose = system, list[Turn](), verbose
        self.write: Callable[[Stream, list[str]], None] = print_answer
        self.answered: Callable[[Stream], None] = lambda stream: None
        self._items: list[tuple[str, str, Any]] = []  # that go with the next question
        self._model, self._template = model, template
        self._options: Any = options

    def attach(self, kind: str, path: str) -> None:
        """Has a file go with the next question."""
        if not path:
            raise PromptError(f"which one? give /{kind} FILE")
        self._items.append((kind, path, self._model.embeddings(path, kind)))

    def answer(self, question: str) -> None:
        """Prints the answer as it comes. The turn is kept, but not one to which nothing was said
        because of an error or Ctrl-C."""
        turn = Turn(question, self._items)
        prompt = self._prompt(turn)
        pieces: list[str] = []
        stream = self._model.stream(prompt, **self._options)
        try:
            self.write(stream, pieces)
        except (Error, KeyboardInterrupt) as error:
            if pieces:
                self._keep(turn, pieces)
            if isinstance(error, KeyboardInterrupt):
                self._tell(stream)
            raise
        self._keep(turn, pieces)
        self.answered(stream)
        self._tell(stream)
        full = self._model.length(prompt) + len(pieces) >= self._model.context_length
        if full and not (self._options.get("context_shift") or self.verbose):
            note("the context is full (see --context-length)")

    def _keep(self, turn: Turn, pieces: list[str]) -> None:
        turn.answer, self._items = "".join(pieces), []
        self.turns.append(turn)

    def _tell(self, stream: Stream) -> None:
        if self.verbose:
            print_usage(stream.usage, self._model.context_length)

    def _prompt(self, turn: Turn) -> list[Any]:
        begin = [] if self.system is None else [{"role": "system", "content": self.system}]
        turns = [message for one in self.turns for message in one.messages()]
        messages = [*begin, *turns, turn.messages()[0]]
        kept = self._model.fitting(messages, template=self._template, **self._options)
        prompt = self._model.chat_prompt(kept, template=self._template)
        # Not for a question that is too long by itself.
        if len(kept) < len(messages) and self._model.length(prompt) <= self._model.context_length:
            del self.turns[: (len(messages) - len(kept)) // 2]
            note("the conversation no longer fits the context: its oldest turns are dropped")
        return prompt

    def command(self, word: str, rest: str) -> bool:
        """Carries a command out, if it is one."""
        commands: dict[str, Callable[[], None]] = {
            "/clear": self._clear,
            "/help": lambda: note(HELP),
            "/load": lambda: self._load(rest),
            "/regen": self._regenerate,
            "/save": lambda: self._save(rest),
            "/set": lambda: self._set(rest),
            "/show": self._show,
            "/system": lambda: self._set(f"system {rest}"),
            "/undo": lambda: note(f"dropped: {self._last().question}"),
        }
        commands |= {"/?": commands["/help"]}
        for kind in ("image", "audio", "video"):
            commands[f"/{kind}"] = lambda kind=kind: self.attach(kind, rest)
        if word in commands:
            commands[word]()
        elif word.startswith("/") and word[1:].isalpha() and not rest:
            note(f"there is no {word}; /help lists commands")
        else:
            return False
        return True

    def _clear(self) -> None:
        self.turns, self._items = [], []

    def _last(self) -> Turn:
        if not self.turns:
            raise PromptError("nothing was said yet")
        return self.turns.pop()

    def _regenerate(self) -> None:
        turn, items, count = self._last(), self._items, len(self.turns)
        self._items = turn.items
        try:
            self.answer(turn.question)
        finally:
            self._items = items
            if len(self.turns) <= count:  # no answer came: the old one stays
                self.turns.append(turn)

    def _set(self, rest: str) -> None:
        name, _, text = rest.partition(" ")
        if name == "parameter":  # as Ollama's program has it
            name, _, text = text.partition(" ")
        name, text = name.replace("-", "_"), text.strip()
        if name == "system":
            self.system = text.removeprefix('"').removesuffix('"') or None
        elif name in ("verbose", "quiet"):
            self.verbose = name == "verbose"
        elif name not in _VALUES or not text:
            raise ConfigError(f"give /set NAME VALUE; names are system, {', '.join(_VALUES)}")
        else:
            self._take({name: _value(text)})

    def _take(self, options: dict[str, Any]) -> None:
        from ..runner.request_options import split_options

        changed: Any = {**self._options, **options}
        split_options(changed)
        self._options = changed

    def _show(self) -> None:
        turns = [message for one in self.turns for message in one.messages()]
        prompt = self._model.chat_prompt(turns, template=self._template) if turns else []
        taken, whole = self._model.length(prompt) if prompt else 0, self._model.context_length
        set_by_user = {k: v for k, v in self._options.items() if k in _VALUES}
        lines = [
            f"model    {self._model.source.name}",
            f"context  {taken:,} of {whole:,} tokens, {len(self.turns)} turns",
            f"options  {json.dumps({**self._model.defaults.options, **set_by_user})}",
        ]
        note("\n".join(lines + ([] if self.system is None else [f"system   {self.system}"])))

    def _save(self, path: str) -> None:
        from ..storage import write_text

        if not path:
            raise PromptError("which one? give /save FILE")
        said: list[dict[str, Any]] = []
        for turn in self.turns:
            question: dict[str, Any] = {"role": "user", "content": turn.question}
            if turn.items:
                question["items"] = [[kind, str(Path(at).resolve())] for kind, at, _ in turn.items]
            said += [question, turn.messages()[1]]
        options = {k: v for k, v in self._options.items() if k in _VALUES}
        text = json.dumps(
            {"system": self.system, "options": options, "messages": said},
            indent=1,
            ensure_ascii=False,
        )
        write_text(path, text + "\n")
        note(f"{len(self.turns)} turns are in {path}")

    def _load(self, path: str) -> None:
        if not path:
            raise PromptError("which one? give /load FILE")
        try:
            read = json.loads(read_text(path, "/load "))
            system, options, said = read["system"], read["options"], read["messages"]
            turns = [self._turn(*said[i : i + 2]) for i in range(0, len(said), 2)]
        except Error:
            raise
        except (ValueError, LookupError, TypeError, AttributeError):
            raise FormatError(f"{path} is no conversation that /save wrote") from None
        if not isinstance(system, str | None):
            raise FormatError(f"{path}: its system message is no text")
        self._take({name: value for name, value in options.items() if name in _VALUES})
        self.system, self.turns = system, turns
        note(f"{len(turns)} turns were read")

    def _turn(self, question: dict[str, Any], answer: dict[str, Any]) -> Turn:
        texts = question["content"], answer["content"]
        if (question["role"], answer["role"]) != ("user", "assistant") or not all(
            isinstance(one, str) for one in texts
        ):
            raise ValueError
        items = [
            (kind, at, self._model.embeddings(at, kind)) for kind, at in question.get("items", ())
        ]
        return Turn(texts[0], items, texts[1])


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
