"""Structured output: text that obeys a JSON schema, a regular expression or a grammar.

    grammar = Grammar.json_schema({"type": "object", ...})
    sampling = sampler.begin(prompt, constraint=grammar.begin(tokenizer))

llguidance does the work: it knows the vocabulary as bytes and says which tokens may come next.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any
from weakref import WeakKeyDictionary, ref

import numpy as np

from ...bounds import limits
from ...concurrency import in_a_thread
from ...errors import GrammarError, TokenizerError, Unsupported
from ...imports import install_command
from ...json_schema import COMPACT, closed
from ...tokenizer import Tokenizer
from .grammar_guards import as_lark, check_lark, check_schema, verdict

_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
_END = 1 << 63  # the first integer beyond 64 bits with a sign
_SIZES = ("minItems", "maxItems", "minLength", "maxLength")
_MOST = 1000
_PLAIN = {*_SIZES, *_BOUNDS} | set(
    "type properties required additionalProperties items enum const anyOf title description "
    "default examples".split()
)


def is_plain(schema: Any) -> bool:
    """Whether a schema says nothing that may cost more than its length."""
    todo = [schema]
    while todo:
        part = todo.pop()
        if not isinstance(part, dict):
            continue
        sizes = [part[name] for name in _SIZES if name in part]
        if not part.keys() <= _PLAIN or any(not _is_small(size) for size in sizes):
            return False
        properties, choices = part.get("properties", {}), part.get("anyOf", [])
        if not isinstance(properties, dict) or not isinstance(choices, list):
            return False
        todo += [*properties.values(), *choices]
        todo += [part.get("items"), part.get("additionalProperties")]
    return True


def _is_small(size: Any) -> bool:
    return isinstance(size, int) and size <= _MOST


def check_numbers(schema: Any) -> None:
    """Refuses numbers that llguidance would replace by others, without a word: it computes with
    64-bit floats, and has integers within 64 bits.

    Raises:
        GrammarError: names the number.
    """
    todo = [schema]
    while todo:
        part = todo.pop()
        if isinstance(part, dict):
            todo += part.values()
            kinds = part.get("type")
            whole = "integer" in (kinds if isinstance(kinds, list) else [kinds])
            bounds = [part.get(key) for key in _BOUNDS if whole]
            wrong = [n for n in bounds if isinstance(n, float) and abs(n) >= _END]
        elif isinstance(part, list):
            todo += part
            wrong = []
        else:
            wrong = [part] if type(part) is int and not _is_exact(part) else []
        if wrong:
            raise GrammarError(
                f"this JSON schema cannot be used: {wrong[0]!r:.40} would be rounded; integers in "
                "a schema lie between -2^63 and 2^63, and beyond 2^53 a 64-bit float must hold "
                "them exactly"
            )


def _is_exact(n: int) -> bool:
    """Whether an integer comes back from a 64-bit float. The largest of 64 bits does: the way back
    ends there."""
    return -_END < n < _END and min(int(float(n)), _END - 1) == n


class GrammarState:
    """The position of one request's answer in a grammar."""

    def __init__(self, matcher: Any, tokenizer: Tokenizer):
        self._matcher, self._tokenizer = matcher, tokenizer
        self._size, self._eog = tokenizer.size, tokenizer.eog

    @property
    def finished(self) -> bool:
        """Whether the answer is complete, so that nothing may follow."""
        return self._matcher.is_stopped() and not self._matcher.is_error()

    def allows(self, token: int) -> bool:
        """Whether the token may come next; one that ends generation only if the text is complete.

        Raises:
            GrammarError: the grammar cannot be followed any further.
        """
        if self.finished:
            return token in self._eog
        allowed = token < self._size and self._matcher.validate_tokens([token]) == 1
        self._check()
        return allowed

    def mask(self, size: int) -> np.ndarray:
        """Which tokens may come next, bool [size].

        Raises:
            GrammarError: the grammar cannot be followed any further.
        """
        bits = np.frombuffer(in_a_thread(self._matcher.compute_bitmask, wait=True), np.uint8)
        self._check()
        count = min(size, self._size)
        mask = np.zeros(size, bool)
        mask[:count] = np.unpackbits(bits, count=count, bitorder="little")
        return mask

    def accept(self, token: int) -> None:
        """Notes that the token came.

        Raises:
            GrammarError: it is not allowed.
        """
        self._matcher.consume_token(token)
        self._check()

    def copy(self) -> GrammarState:
        """The same position, to be moved on its own."""
        return GrammarState(self._matcher.deep_copy(), self._tokenizer)

    def _check(self) -> None:
        if self._matcher.is_error():
            raise GrammarError(
                f"the answer cannot go on in its grammar ({reason(self._matcher)}): its next part "
                "cannot be satisfied, is too complex, or has no tokens in this vocabulary"
            )


class _Vocabulary:
    """A tokenizer as llguidance wants to see it; the names are llguidance's."""

    is_tokenizer_wrapper = True

    def __init__(self, tokenizer: Tokenizer):
        ids = range(tokenizer.size)
        self.tokens = [tokenizer.token_bytes(i) for i in ids]
        self.special_token_ids = [i for i in ids if tokenizer.is_special(i)]
        self.bos_token_id, self.eos_token_id = tokenizer.bos, tokenizer.eos
        special = set(self.special_token_ids)
        self._ids = {data: i for i, data in enumerate(self.tokens) if i not in special}
        self._longest = max(map(len, self._ids), default=0)
        # llguidance holds this object, and the cache below must let go of unused tokenizers.
        self._tokenizer = ref(tokenizer)

    def __call__(self, text: str) -> list[int]:
        """Tokens for bytes that the grammar prescribes."""
        data, tokenizer = text.encode(), self._tokenizer()
        if tokenizer is not None:
            ids = tokenizer.encode(text, add_special=False, parse_special=False)
            if b"".join(self.tokens[i] for i in ids) == data:
                return ids
        # SentencePiece puts a space in front, others drop what they cannot spell.
        ids, at = [], 0
        while at < len(data):
            lengths = range(min(self._longest, len(data) - at), 0, -1)
            length = next((n for n in lengths if data[at : at + n] in self._ids), 0)
            if length:
                ids.append(self._ids[data[at : at + length]])
            at += length or 1
        return ids


_vocabularies: WeakKeyDictionary[Tokenizer, Any] = WeakKeyDictionary()
_vocabularies_lock = threading.Lock()


def described(tokenizer: Tokenizer) -> Any:
    """llguidance's tokenizer, built once for each of ours."""
    with _vocabularies_lock:
        built = _vocabularies.get(tokenizer)
        if built is None:
            ends = sorted(tokenizer.eog) or None
            built = llguidance().LLTokenizer(_Vocabulary(tokenizer), eos_token=ends)
            _vocabularies[tokenizer] = built
    return built


def llguidance() -> Any:
    """The package.

    Raises:
        Unsupported: it is not installed.
    """
    try:
        import llguidance as package
    except ImportError:
        raise Unsupported(
            f"structured output needs llguidance: {install_command('structured')}"
        ) from None
    return package


@lru_cache(maxsize=1)
def parser_limits() -> Any:
    """Messages without the whole grammar and the parser's state in them."""
    return llguidance().LLParserLimits(verbose_errors=False)


def reason(matcher: Any) -> str:
    """The reason of a matcher's error."""
    return matcher.get_error().removesuffix("<non-verbose/>").strip()


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
