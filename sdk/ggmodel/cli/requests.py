"""The options of a request, its media among them, and how an answer is printed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import Field, dataclass, fields
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError
from .options import Typed, option, read_text
from .terminal import note

if TYPE_CHECKING:
    from ..runner import Grammar, RequestOptions, Stream, Usage


@dataclass(kw_only=True)
class MediaFiles:
    """Files that go with a prompt."""

    image: list[str] | None = option(  # noqa: RUF009  # a field
        None, "Image for the prompt; may be repeated.", "--image", metavar="FILE"
    )
    audio: list[str] | None = option(  # noqa: RUF009  # a field
        None, "Audio for the prompt; may be repeated.", "--audio", metavar="FILE"
    )
    video: list[str] | None = option(  # noqa: RUF009  # a field
        None, "Video for the prompt, or a folder of its frames; may be repeated.", metavar="FILE"
    )

    def by_option(self) -> dict[str, list[str]]:
        """By option of a request, such as "images"; those that were not given left out."""
        from ..chat.messages import OPTIONS

        return {OPTIONS[kind]: paths for kind, paths in vars(self).items() if paths}

    def each(self) -> list[tuple[str, str]]:
        """Kind and path of each."""
        return [(kind, path) for kind, paths in vars(self).items() for path in paths or ()]


@dataclass(kw_only=True)
class MediaFile:
    """A file that goes with a prompt."""

    image: str | None = option(None, "Image for the prompt.", metavar="FILE")
    audio: str | None = option(None, "Audio for the prompt.", metavar="FILE")
    video: str | None = option(
        None, "Video for the prompt, or a folder of its frames.", metavar="FILE"
    )

    def one(self, tokens: Any) -> tuple[str, str] | None:
        """Its kind and path; None if there is none.

        Args:
            tokens: value of --tokens, which does not go with it.

        Raises:
            ConfigError: there are several.
        """
        files = [(kind, path) for kind, path in vars(self).items() if path is not None]
        if len(files) > 1:
            raise ConfigError("give one of --image, --audio and --video")
        if files and tokens is not None:
            raise ConfigError(f"--{files[0][0]} goes with --prompt: the model lays out its tokens")
        return files[0] if files else None


_OF_GRAMMAR = ("json_schema", "regex", "grammar")


@dataclass(kw_only=True)
class Answering(Typed):
    """How an answer is generated: a field an option, named as in `RequestOptions` but for grammars.

    Defaults are those of the library, whose import takes longer than printing the help. A model of
    Ollama has its own, which options that nobody gave leave alone.
    """

    max_tokens: int | None = option(
        None,
        "Tokens to generate at most; default: until the context is full.",
        "--max-tokens",
        "-n",
    )
    temperature: float = option(0.8, "Sampling temperature; 0 is greedy decoding.")
    top_k: int = option(40, "Sample from the K most likely tokens (0 = all).")
    top_p: float = option(
        0.9, "Sample from the smallest set of tokens whose probabilities add up to P (1 = off)."
    )
    min_p: float = option(
        0.0, "Drop tokens less probable than P times the most probable one (0 = off)."
    )
    typical_p: float = option(1.0, "Locally typical sampling with probability mass P (1 = off).")
    repeat_penalty: float = option(1.0, "Penalise tokens that already occurred (1 = off).")
    repeat_last_n: int = option(64, "Last N tokens that penalties consider (0 = none, -1 = all).")
    frequency_penalty: float = option(
        0.0, "Subtract this from a token's logit each time it occurred (0 = off)."
    )
    presence_penalty: float = option(
        0.0, "Subtract this from a token's logit once if it occurred (0 = off)."
    )
    seed: int = option(-1, "Random seed (-1 = a new one each time).")
    stop: list[str] | None = option(  # noqa: RUF009  # a field
        None, "Stop string, which ends the answer; may be repeated.", metavar="TEXT"
    )
    json_schema: str | None = option(
        None, "Constrain the answer to JSON of this schema.", metavar="JSON|FILE"
    )
    regex: str | None = option(
        None, "Constrain the answer to a regular expression.", metavar="PATTERN"
    )
    grammar: str | None = option(
        None, "Constrain the answer to a grammar in Lark's syntax.", metavar="FILE"
    )
    context_shift: bool = option(
        False,
        "When the context is full, drop the older half of it and go on (context shift).",
        "--context-shift",
    )
    truncate: bool = option(
        False, "Cut the middle out of a prompt longer than the context.", "--truncate"
    )
    num_keep: int = option(
        0, "Tokens at the start of the context that context shift and --truncate never drop."
    )
    ignore_eos: bool = option(False, "Go on where the model would end its answer.", "--ignore-eos")
    prompt_lookup: bool = option(
        False,
        "Speculative decoding by prompt lookup. The answer stays the same but for rounding.",
        "--prompt-lookup/--no-prompt-lookup",
    )

    def options(self) -> RequestOptions:
        """For `LoadedModel.request`."""
        values: Any = {f.name: getattr(self, f.name) for f in fields(self) if self._is_set(f)}
        if "stop" in values:
            values["stop"] = tuple(self.stop or ())
        return values | {"grammar": self._grammar()}

    def _is_set(self, option: Field[Any]) -> bool:
        name = option.name
        changed = getattr(self, name) != option.default or name in self.typed
        return changed and name not in _OF_GRAMMAR

    def _grammar(self) -> Grammar | None:
        from ..runner import Grammar

        names = [name for name in _OF_GRAMMAR if getattr(self, name) is not None]
        if len(names) > 1:
            raise ConfigError("give one of --json-schema, --regex and --grammar")
        if self.json_schema is not None:
            is_text = self.json_schema.lstrip().startswith("{")
            schema = self.json_schema if is_text else read_text(self.json_schema, "--json-schema ")
            return Grammar.json_schema(schema)
        if self.grammar is not None:
            return Grammar.lark(read_text(self.grammar, "--grammar "))
        return None if self.regex is None else Grammar.regex(self.regex)


def print_answer(stream: Stream, pieces: list[str], shown: Callable[[str], str] = str) -> None:
    """Prints pieces as they come. Their last line is ended, also after an error or Ctrl-C.

    Args:
        pieces: the text so far; each piece is added.
        shown: the characters to print for a piece.
    """
    try:
        with stream:
            for piece in stream:
                print(shown(piece), end="", flush=True)
                pieces.append(piece)  # after Ctrl-C the last line is that on the screen
    finally:
        if not "".join(pieces).endswith("\n"):
            print(flush=True)


def print_usage(usage: Usage, context_length: int) -> None:
    """Prints counts and speeds of a request to standard error."""
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
