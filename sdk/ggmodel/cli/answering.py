"""The options of commands that generate, and how an answer is printed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import ConfigError
from .options import read_text

if TYPE_CHECKING:
    from ..runner import Grammar, RequestOptions, Stream

_OF_GRAMMAR = ("json_schema", "regex", "grammar")
Images = Annotated[
    list[str] | None,
    typer.Option("--image", metavar="FILE", help="An image to look at; may be given repeatedly."),
]


@dataclass(kw_only=True)
class Answering:
    """How an answer is made: a field an option, named as in `RequestOptions` but for grammars.

    Defaults are those of the library, whose import takes longer than printing the help.
    """

    max_tokens: Annotated[
        int | None,
        typer.Option(
            "--max-tokens", "-n", help="Tokens at most; until the context is full by default."
        ),
    ] = None
    temperature: Annotated[
        float, typer.Option(help="Randomness; 0 always takes the most likely token.")
    ] = 0.8
    top_k: Annotated[int, typer.Option(help="Keep the k most likely tokens; 0 keeps all.")] = 40
    top_p: Annotated[
        float, typer.Option(help="Keep the most likely tokens up to this sum of probabilities.")
    ] = 0.9
    min_p: Annotated[
        float, typer.Option(help="Drop tokens less likely than this share of the likeliest one.")
    ] = 0.0
    typical_p: Annotated[
        float, typer.Option(help="Keep the most typical tokens up to this sum; 1 keeps all.")
    ] = 1.0
    repeat_penalty: Annotated[
        float, typer.Option(help="Make tokens that were there less likely; 1 does not.")
    ] = 1.0
    repeat_last_n: Annotated[
        int, typer.Option(help="Tokens that penalties look back; 0 is none, -1 all.")
    ] = 64
    frequency_penalty: Annotated[
        float, typer.Option(help="Subtracted from a logit for each time its token was there.")
    ] = 0.0
    presence_penalty: Annotated[
        float, typer.Option(help="Subtracted from a logit once if its token was there.")
    ] = 0.0
    seed: Annotated[
        int, typer.Option(help="Seed of the random numbers; -1 is a new one each time.")
    ] = -1
    stop: Annotated[
        list[str] | None,
        typer.Option(metavar="TEXT", help="A text that ends the answer; may be given repeatedly."),
    ] = None
    json_schema: Annotated[
        str | None,
        typer.Option(metavar="JSON|FILE", help="Answer in JSON of this schema, or that of a file."),
    ] = None
    regex: Annotated[
        str | None,
        typer.Option(metavar="PATTERN", help="Answer what the regular expression matches."),
    ] = None
    grammar: Annotated[
        str | None, typer.Option(metavar="FILE", help="Answer in a grammar, written in Lark.")
    ] = None
    context_shift: Annotated[
        bool,
        typer.Option("--context-shift", help="Forget half of a full context rather than end."),
    ] = False
    truncate: Annotated[
        bool, typer.Option("--truncate", help="Leave out the middle of a prompt that is too long.")
    ] = False
    num_keep: Annotated[
        int, typer.Option(help="Tokens at the beginning that are kept by these two.")
    ] = 0
    prompt_lookup: Annotated[
        bool,
        typer.Option(
            "--prompt-lookup/--no-prompt-lookup",
            help="Guess ahead what repeats the prompt; the answer is the same, maybe sooner.",
        ),
    ] = False

    def options(self) -> RequestOptions:
        """For `LoadedModel.request`.

        Raises:
            ConfigError: an option that cannot be read.
            GrammarError, Unsupported: the grammar is broken, or llguidance is not installed.
        """
        given: Any = {name: v for name, v in vars(self).items() if name not in _OF_GRAMMAR}
        given |= {"stop": tuple(self.stop or ()), "grammar": self._grammar()}
        return given

    def _grammar(self) -> Grammar | None:
        from ..runner import Grammar

        given = [name for name in _OF_GRAMMAR if getattr(self, name) is not None]
        if len(given) > 1:
            raise ConfigError("give one of --json-schema, --regex and --grammar")
        if self.json_schema is not None:
            is_text = self.json_schema.lstrip().startswith("{")
            schema = self.json_schema if is_text else read_text(self.json_schema, "--json-schema ")
            return Grammar.json_schema(schema)
        if self.grammar is not None:
            return Grammar.lark(read_text(self.grammar, "--grammar "))
        return None if self.regex is None else Grammar.regex(self.regex)


def print_answer(stream: Stream, said: list[str]) -> None:
    """Prints pieces as they come. Their last line is ended, also after an error or Ctrl-C.

    Args:
        said: the text so far; each piece is added.
    """
    try:
        with stream:
            for piece in stream:
                said.append(piece)
                print(piece, end="", flush=True)
    finally:
        if not "".join(said).endswith("\n"):
            print(flush=True)
