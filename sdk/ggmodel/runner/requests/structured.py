"""Structured output: text that obeys a JSON schema, a regular expression or a grammar.

    grammar = Grammar.json_schema({"type": "object", ...})
    sampling = sampler.begin(prompt, constraint=grammar.begin(tokenizer))

llguidance does the work: it knows the vocabulary as bytes and says which tokens may come next.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, ref

import numpy as np

from ...errors import ComputeError, GrammarError, Unsupported

if TYPE_CHECKING:
    from ...tokenizer import Tokenizer

_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
_END = 1 << 63  # the first integer beyond 64 bits with a sign
# Without a limit a small model may go on with spaces for ever, which every schema allows.
_SPACE = {"whitespace_pattern": r"\x20|\n[\x20\t]{0,20}"}


class Grammar:
    """The form that an answer must have; made by a class method, for any number of requests.

    All of them raise `Unsupported` if llguidance is not installed, and `GrammarError`, with
    llguidance's reason, for a form that is broken, unsupported, or seen to allow no text at all.
    """

    def __init__(self, kind: str, maker: str, text: str, **options: Any):
        """Use one of the class methods."""
        self._kind = kind
        matcher = _llguidance().LLMatcher
        try:
            self._definition = getattr(matcher, maker)(text, **options)
        except (TypeError, ValueError) as error:
            self._refuse(str(error))
        self._refuse(matcher.validate_grammar(self._definition, limits=_limits()))
        self._compiled: WeakKeyDictionary[Tokenizer, Any] = WeakKeyDictionary()
        self._lock = threading.Lock()

    @classmethod
    def json_schema(cls, schema: dict[str, Any] | str) -> Grammar:
        """JSON that a schema, a dict or JSON text, describes.

        Between its parts stands at most one space, or a line break and at most 20 spaces and tabs;
        the schema's "x-guidance" may say otherwise (see llguidance). Integers in the schema must
        lie within 64 bits and be exact as 64-bit floats, as all up to 2^53 are.
        """
        try:
            text = schema if isinstance(schema, str) else json.dumps(schema)
            read = json.loads(text)
        except (TypeError, ValueError, RecursionError) as error:
            raise GrammarError(f"the JSON schema is no JSON: {error}") from None
        if not isinstance(read, dict):
            raise GrammarError(f"a JSON schema is an object, not {text:.80}")
        _check_numbers(read)
        return cls("JSON schema", "grammar_from_json_schema", text, defaults=_SPACE)

    @classmethod
    def regex(cls, pattern: str) -> Grammar:
        """Text that a regular expression, in Rust's syntax, matches as a whole."""
        return cls("regular expression", "grammar_from_regex", pattern)

    @classmethod
    def lark(cls, grammar: str) -> Grammar:
        """Text that a context-free grammar in llguidance's variant of Lark derives from `start`."""
        return cls("grammar", "grammar_from_lark", grammar)

    @classmethod
    def choice(cls, texts: Sequence[str]) -> Grammar:
        """One of several texts."""
        if isinstance(texts, str) or not texts or not all(isinstance(t, str) for t in texts):
            raise GrammarError(f"a choice needs a list of texts, not {texts!r:.80}")
        return cls("choice", "grammar_from_lark", "start: " + " | ".join(map(json.dumps, texts)))

    def begin(self, tokenizer: Tokenizer) -> GrammarState:
        """The state of one request, a `Constraint` for `Sampler.begin`.

        The first call for a tokenizer describes its vocabulary to llguidance, which takes about
        a second for 128,000 tokens; the first for a grammar compiles it.

        Raises:
            GrammarError: no text that the vocabulary can spell obeys the grammar.
        """
        with self._lock:
            compiled = self._compiled.get(tokenizer)
            if compiled is None:
                compiled = self._compiled[tokenizer] = self._compile(tokenizer)
        return GrammarState(compiled.deep_copy(), tokenizer)

    def _compile(self, tokenizer: Tokenizer) -> Any:
        vocabulary = _described(tokenizer)
        matcher = _llguidance().LLMatcher(
            vocabulary, self._definition, log_level=0, limits=_limits()
        )
        self._refuse(matcher.get_error())
        first = matcher.deep_copy()
        first.compute_bitmask()
        if first.is_error():
            self._refuse(f"no text of this vocabulary obeys it ({_reason(first)})")
        return matcher

    def _refuse(self, reason: str) -> None:
        if reason:
            raise GrammarError(f"this {self._kind} cannot be used: {reason.strip()}")


def _check_numbers(schema: Any) -> None:
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
        self._matcher, self._size, self._eog = matcher, tokenizer.size, tokenizer.eog

    @property
    def finished(self) -> bool:
        """Whether the answer is complete, so that nothing may follow."""
        return self._matcher.is_stopped() and not self._matcher.is_error()

    def allows(self, token: int) -> bool:
        """Whether the token may come next; one that ends generation only if the text is complete.

        Raises:
            ComputeError: the grammar cannot be followed any further.
        """
        if self.finished:
            return token in self._eog
        allowed = token < self._size and self._matcher.validate_tokens([token]) == 1
        self._check()
        return allowed

    def mask(self, size: int) -> np.ndarray:
        """Which tokens may come next, bool [size].

        Raises:
            ComputeError: the grammar cannot be followed any further.
        """
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        self._check()
        count = min(size, self._size)
        mask = np.zeros(size, bool)
        mask[:count] = np.unpackbits(bits, count=count, bitorder="little")
        return mask

    def accept(self, token: int) -> None:
        """Notes that the token came.

        Raises:
            ComputeError: it is not allowed.
        """
        self._matcher.consume_token(token)
        self._check()

    def _check(self) -> None:
        if self._matcher.is_error():
            raise ComputeError(
                f"the answer cannot go on in its grammar ({_reason(self._matcher)}): its next part "
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


def _described(tokenizer: Tokenizer) -> Any:
    """llguidance's tokenizer, built once for each of ours."""
    with _vocabularies_lock:
        built = _vocabularies.get(tokenizer)
        if built is None:
            ends = sorted(tokenizer.eog) or None
            built = _llguidance().LLTokenizer(_Vocabulary(tokenizer), eos_token=ends)
            _vocabularies[tokenizer] = built
    return built


def _llguidance() -> Any:
    try:
        import llguidance
    except ImportError:
        raise Unsupported(
            "structured output needs llguidance: pip install 'ggmodel[structured]'"
        ) from None
    return llguidance


@lru_cache(maxsize=1)
def _limits() -> Any:
    """Messages without the whole grammar and the parser's state in them."""
    return _llguidance().LLParserLimits(verbose_errors=False)


def _reason(matcher: Any) -> str:
    return matcher.get_error().removesuffix("<non-verbose/>").strip()
