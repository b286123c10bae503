"""The options of commands that generate, and how an answer is printed."""

from __future__ import annotations

from dataclasses import Field, dataclass, fields
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError
from .expanded import Typed, option
from .options import read_text

if TYPE_CHECKING:
    from ..runner import Grammar, RequestOptions, Stream

_OF_GRAMMAR = ("json_schema", "regex", "grammar")


@dataclass(kw_only=True)
class Answering(Typed):
    """How an answer is made: a field an option, named as in `RequestOptions` but for grammars.

    Defaults are those of the library, whose import takes longer than printing the help. A model of
    Ollama has its own, which options that nobody gave leave alone.
    """

    max_tokens: int | None = option(
        None, "Tokens at most; until the context is full by default.", "--max-tokens", "-n"
    )
    temperature: float = option(0.8, "Randomness; 0 always takes the most likely token.")
    top_k: int = option(40, "Keep the k most likely tokens; 0 keeps all.")
    top_p: float = option(0.9, "Keep the most likely tokens up to this sum of probabilities.")
    min_p: float = option(0.0, "Drop tokens less likely than this share of the likeliest one.")
    typical_p: float = option(1.0, "Keep the most typical tokens up to this sum; 1 keeps all.")
    repeat_penalty: float = option(1.0, "Make tokens that were there less likely; 1 does not.")
    repeat_last_n: int = option(64, "Tokens that penalties look back; 0 is none, -1 all.")
    frequency_penalty: float = option(
        0.0, "Subtracted from a logit for each time its token was there."
    )
    presence_penalty: float = option(0.0, "Subtracted from a logit once if its token was there.")
    seed: int = option(-1, "Seed of the random numbers; -1 is a new one each time.")
    stop: list[str] | None = option(  # noqa: RUF009  # a field
        None, "A text that ends the answer; may be given repeatedly.", metavar="TEXT"
    )
    json_schema: str | None = option(
        None, "Answer in JSON of this schema, or that of a file.", metavar="JSON|FILE"
    )
    regex: str | None = option(
        None, "Answer what the regular expression matches.", metavar="PATTERN"
    )
    grammar: str | None = option(None, "Answer in a grammar, written in Lark.", metavar="FILE")
    context_shift: bool = option(
        False, "Forget half of a full context rather than end.", "--context-shift"
    )
    truncate: bool = option(
        False, "Leave out the middle of a prompt that is too long.", "--truncate"
    )
    num_keep: int = option(0, "Tokens at the beginning that are kept by these two.")
    prompt_lookup: bool = option(
        False,
        "Guess ahead what repeats the prompt; the answer is the same, maybe sooner.",
        "--prompt-lookup/--no-prompt-lookup",
    )

    def options(self) -> RequestOptions:
        """For `LoadedModel.request`."""
        given: Any = {f.name: getattr(self, f.name) for f in fields(self) if self._is_said(f)}
        if "stop" in given:
            given["stop"] = tuple(self.stop or ())
        return given | {"grammar": self._grammar()}

    def _is_said(self, option: Field[Any]) -> bool:
        name = option.name
        changed = getattr(self, name) != option.default or name in self.typed
        return changed and name not in _OF_GRAMMAR

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
