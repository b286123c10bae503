"""Fields that chats and completions have in common."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from ....bounds import limits
from ...errors import Refused
from ...requests import GrammarSpec, Tokenize
from ...runner import Runner

_ID_DIGITS = 18  # of a token's id, which has 63 bits at most
# The name of a field here and of the option of a request, where they differ.
_OPTIONS = {
    name: name
    for name in (
        "temperature top_p top_k min_p typical_p seed frequency_penalty presence_penalty "
        "repeat_penalty repeat_last_n context_shift truncate num_keep prompt_lookup"
    ).split()
} | {"repetition_penalty": "repeat_penalty"}


class StreamOptions(Struct):
    include_usage: bool | None = None


class StructuredOutputs(Struct):
    """vLLM's forms of an answer, one of them. A grammar is Lark's, or GBNF where it has `::=`."""

    json: dict[str, Any] | str | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None

    def form(self, param: str) -> GrammarSpec | None:
        """The form.

        Args:
            param: the field, for messages.

        Raises:
            Refused: there are several.
        """
        forms = list[GrammarSpec]()
        if self.json is not None:
            text = self.json if isinstance(self.json, str) else encoded(self.json)
            forms.append(GrammarSpec("json_schema", text))
        if self.regex:
            forms.append(GrammarSpec("regex", self.regex))
        if self.choice:
            forms.append(GrammarSpec("choice", encoded(self.choice)))
        if self.grammar:
            forms.append(GrammarSpec("gbnf" if "::=" in self.grammar else "lark", self.grammar))
        if self.json_object:
            forms.append(GrammarSpec("json"))
        if len(forms) > 1:
            raise Refused(f"{param}: give one form of the answer, not {len(forms)}", param=param)
        return forms[0] if forms else None


class Sampling(Struct, kw_only=True):
    """How to choose tokens, and how to send them. The last lines are no fields of OpenAI's, but
    those of llama-server and vLLM."""

    model: str | None = None
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    logit_bias: dict[str, float | bool] | list[tuple[int | str, float | bool]] | None = None
    stop: str | list[str] | None = None
    n: int | None = None
    max_tokens: int | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None

    top_k: int | None = None
    min_p: float | None = None
    typical_p: float | None = None
    repeat_penalty: float | None = None
    repetition_penalty: float | None = None
    repeat_last_n: int | None = None
    context_shift: bool | None = None
    truncate: bool | None = None
    num_keep: int | None = None
    prompt_lookup: bool | None = None
    ignore_eos: bool | None = None
    grammar: str | None = None
    json_schema: dict[str, Any] | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: dict[str, Any] | str | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    keep_alive: float | None = None

    @property
    def choices(self) -> int:
        """How many answers are wanted.

        Raises:
            Refused: too many, or none.
        """
        n = 1 if self.n is None else self.n
        if not 1 <= n <= limits.serve_choices:
            raise Refused(f"n: {n} is not between 1 and {limits.serve_choices}", param="n")
        return n

    @property
    def wants_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)

    async def options(self, runner: Runner, max_tokens: int | None) -> dict[str, Any]:
        """The options of a request to a runner, those that were given.

        Raises:
            Refused: one is impossible.
        """
        found = {
            option: value
            for name, option in _OPTIONS.items()
            if (value := getattr(self, name)) is not None
        }
        if max_tokens is not None and max_tokens >= 0:
            found["max_tokens"] = max_tokens
        if self.stop:
            found["stop"] = [self.stop] if isinstance(self.stop, str) else self.stop
        bias = await self._bias(runner) if self.logit_bias else {}
        if self.ignore_eos:
            if not runner.state.end_ids:
                raise Refused("ignore_eos: the tokens that end are unknown", param="ignore_eos")
            bias |= dict.fromkeys(runner.state.end_ids, -float("inf"))
        if bias:
            found["logit_bias"] = bias
        return found

    async def _bias(self, runner: Runner) -> dict[int, float]:
        """Token id → what is added to its logit. A text stands for its tokens."""
        given = self.logit_bias
        pairs = given.items() if isinstance(given, dict) else given or ()
        found: dict[int, float] = {}
        for name, value in pairs:
            bias = -float("inf") if value is False else float(value)
            if isinstance(name, int) or name.isdecimal():
                if len(str(name)) > _ID_DIGITS:
                    raise Refused(f"logit_bias: {name!s:.50} is no token", param="logit_bias")
                found[int(name)] = bias
            else:
                tokens = await runner.tokenize(Tokenize(name, add_special=False))
                found |= dict.fromkeys(tokens.ids, bias)
        return found

    def form(self) -> GrammarSpec | None:
        """The form of the answer, by the fields that are not OpenAI's.

        Raises:
            Refused: there are several.
        """
        if self.grammar:
            return GrammarSpec("gbnf", self.grammar)
        if self.json_schema is not None:
            return schema(self.json_schema)
        if self.structured_outputs is not None:
            return self.structured_outputs.form("structured_outputs")
        guided = StructuredOutputs(
            self.guided_json, self.guided_regex, self.guided_choice, self.guided_grammar
        )
        return guided.form("guided_…")


def schema(value: Any) -> GrammarSpec:
    """JSON by a schema."""
    return GrammarSpec("json_schema", encoded(value))


def encoded(value: Any) -> str:
    """JSON text."""
    import msgspec

    return msgspec.json.encode(value).decode()
