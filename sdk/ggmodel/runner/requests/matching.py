"""The position of an answer in a grammar, and a vocabulary as llguidance wants to see it."""

from __future__ import annotations

import threading
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, ref

import numpy as np

from ...errors import GrammarError, Unsupported
from ...extras import install_command
from ...interrupts import in_a_thread

if TYPE_CHECKING:
    from ...tokenizer import Tokenizer


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
