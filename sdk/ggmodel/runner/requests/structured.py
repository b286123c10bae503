"""Structured output: text that obeys a JSON schema, a regular expression or a grammar.

    grammar = Grammar.json_schema({"type": "object", ...})
    sampling = sampler.begin(prompt, constraint=grammar.begin(tokenizer))

llguidance does the work: it knows the vocabulary as bytes and says which tokens may come next.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

from ...bounds import limits
from ...errors import GrammarError, TokenizerError
from ...interrupts import in_a_thread
from ...json_schema import COMPACT, closed
from ...tokenizer import Tokenizer
from .grammar_joins import check_lark, check_schema
from .grammar_trial import as_lark, verdict
from .grammar_values import check_numbers, is_plain
from .matching import GrammarState, described, llguidance, parser_limits, reason

_BETWEEN = len('"" | ')  # characters besides those of each text of a choice
_SHORT = 4096  # characters of a schema that needs no trial


class Grammar:
    """The form that an answer must have; made by a class method, for any number of requests.

    All of them raise `Unsupported` if llguidance is not installed, and `GrammarError`, with
    llguidance's reason, for a form that is broken, unsupported, or seen to allow no text at all.
    """

    def __init__(
        self, kind: str, maker: str, text: str, check: Callable[[str], str], **options: Any
    ):
        """Use one of the class methods."""
        self._kind = kind
        try:
            self._definition: str = getattr(llguidance().LLMatcher, maker)(text, **options)
        except (TypeError, ValueError) as error:
            self._refuse(str(error))
        self._refuse(check(self._definition))
        self._compiled: WeakKeyDictionary[Tokenizer, Any] = WeakKeyDictionary()
        self._lock = threading.Lock()

    @classmethod
    def json_schema(cls, schema: dict[str, Any] | str) -> Grammar:
        """JSON that a schema, a dict or JSON text, describes.

        Objects take the keys that the schema lists and no others, unless `additionalProperties`
        says otherwise; an object without `properties` takes any, one with empty ones none. The JSON
        is one line, with a space at most, after a colon or a comma; the schema's "x-guidance" may
        say otherwise (see llguidance). Integers in the schema must lie within 64 bits and be exact
        as 64-bit floats, as all up to 2^53 are.
        """
        try:
            text = schema if isinstance(schema, str) else json.dumps(schema, ensure_ascii=False)
            _check_length("JSON schema", len(text))
            read = json.loads(text)
        except (TypeError, ValueError, RecursionError) as error:
            raise GrammarError(f"the JSON schema is no JSON: {error}") from None
        if not isinstance(read, dict):
            raise GrammarError(f"a JSON schema is an object, not {text:.80}")
        check_numbers(read)
        schema = closed(read)
        check_schema(schema)
        text = json.dumps(schema, ensure_ascii=False)
        return cls(
            "JSON schema",
            "grammar_from_json_schema",
            text,
            _valid if len(text) <= _SHORT and is_plain(schema) else _tried,
            defaults=COMPACT,
        )

    @classmethod
    def regex(cls, pattern: str) -> Grammar:
        """Text that a regular expression, in Rust's syntax, matches as a whole."""
        _check_text("regular expression", pattern)
        return cls("regular expression", "grammar_from_regex", pattern, _tried)

    @classmethod
    def lark(cls, grammar: str) -> Grammar:
        """Text that a context-free grammar in llguidance's variant of Lark derives from `start`."""
        _check_text("grammar", grammar)
        check_lark(grammar)
        return cls("grammar", "grammar_from_lark", grammar, _tried)

    @classmethod
    def gbnf(cls, grammar: str) -> Grammar:
        """Text that a context-free grammar in llama.cpp's form derives from `root`.

        A grammar with tokens, which llama.cpp puts in angle brackets, is unsupported.
        """
        _check_text("grammar", grammar)
        llguidance()
        try:
            return cls.lark(as_lark(grammar))
        except OSError as error:
            raise GrammarError(f"this GBNF cannot be read: no process starts: {error}") from None

    @classmethod
    def choice(cls, texts: Sequence[str]) -> Grammar:
        """One of several texts."""
        listed = isinstance(texts, Sequence) and not isinstance(texts, str)
        if not listed or not texts or not all(isinstance(t, str) for t in texts):
            raise GrammarError(f"a choice needs a list of texts, not {texts!r:.80}")
        # As one terminal they take a time that grows with their length alone.
        _check_length("choice", sum(map(len, texts)) + _BETWEEN * len(texts))
        grammar = "start: TEXT\nTEXT: " + " | ".join(map(json.dumps, texts))
        return cls("choice", "grammar_from_lark", grammar, lambda _: "")

    def begin(self, tokenizer: Tokenizer) -> GrammarState:
        """The state of one request, a `Constraint` for `Sampler.begin`.

        The first call for a tokenizer describes its vocabulary to llguidance, which takes about
        a second for 128,000 tokens; the first for a grammar compiles it.

        Raises:
            GrammarError: no text that the vocabulary can spell obeys the grammar.
            TokenizerError: it is no tokenizer.
        """
        if not isinstance(tokenizer, Tokenizer):
            raise TokenizerError(f"a grammar needs a Tokenizer, not {type(tokenizer).__name__}")
        with self._lock:
            compiled = self._compiled.get(tokenizer)
            if compiled is None:
                try:
                    compiled = in_a_thread(lambda: self._compile(tokenizer))
                except GrammarError as error:
                    compiled = str(error)
                self._compiled[tokenizer] = compiled
        if isinstance(compiled, str):
            raise GrammarError(compiled)
        return GrammarState(compiled.deep_copy(), tokenizer)

    def _compile(self, tokenizer: Tokenizer) -> Any:
        matcher = llguidance().LLMatcher(
            described(tokenizer), self._definition, log_level=0, limits=parser_limits()
        )
        self._refuse(matcher.get_error())
        first = matcher.deep_copy()
        first.compute_bitmask()
        if first.is_error():
            self._refuse(f"no text of this vocabulary obeys it ({reason(first)})")
        return matcher

    def _refuse(self, reason: str) -> None:
        if reason:
            raise GrammarError(f"this {self._kind} cannot be used: {reason.strip()}")


def _tried(definition: str) -> str:
    """The reason against a grammar, found in another process within limits, or ""."""
    try:
        return verdict(definition)
    except OSError:  # no process can be started: llguidance's own limits have to do
        return _valid(definition)


def _valid(definition: str) -> str:
    """The reason against a grammar that costs little, or ""."""
    validate = llguidance().LLMatcher.validate_grammar
    return in_a_thread(lambda: validate(definition, limits=parser_limits()))


def _check_text(kind: str, text: object) -> None:
    if not isinstance(text, str):
        raise GrammarError(f"a {kind} is a text, not {type(text).__name__}")
    _check_length(kind, len(text))


def _check_length(kind: str, length: int) -> None:
    if length > limits.grammar_characters:
        raise GrammarError(
            f"this {kind} cannot be used: it has more than {limits.grammar_characters:,} "
            "characters (limits.grammar_characters)"
        )
