"""Encodes a few texts without building the whole vocabulary.

A merge only makes pieces that occur in the text, or in the text without the characters that have no
token. An encoder that knows just these tokens, and the merges among them, gives the same ids as one
that knows all. It is built in a millisecond; one of 262,144 tokens takes a second and 120 MB.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from itertools import repeat
from operator import add
from threading import Lock
from typing import TYPE_CHECKING

from ..errors import ConfigError
from ..interrupts import in_a_thread
from ..shortage import need_room
from .build import assemble, build, in_byte_alphabet, is_text, kept_apart, stand_ins
from .long_numbers import cut
from .merges import has_one_score, may_merge, merges_by_rank, merges_by_score
from .vocabulary import Vocabulary

if TYPE_CHECKING:
    import tokenizers

# Cost of building in lookups: of the whole for each token, and of a part besides its texts'.
_LOOKUPS_A_TOKEN = 8
_LOOKUPS_A_PART = 2_000
# Bytes that the package takes at most.
_PACKAGE, _A_TOKEN, _A_CHARACTER = 24 << 20, 1 << 10, 1 << 8
# Longest token, since the time for a text grows with the square of its tokens' lengths.
_LONGEST = 1024
_LONG = 1 << 17  # characters that take the package some tenths of a second


class Encoder:
    """Encodes by parts, and by `build(vocab)` once parts have cost as much; thread-safe."""

    def __init__(self, vocab: Vocabulary):
        need_room(0 if "tokenizers" in sys.modules else _PACKAGE, "the package tokenizers")
        self._parts = _parts_of(vocab)
        self._whole = None if self._parts else _built(vocab)
        if self._parts:
            self._parts.build(())  # imports the package and compiles the expressions
        self._left = _LOOKUPS_A_TOKEN * len(vocab.ids)
        self._lock = Lock()
        self._splits = vocab.pre.splits if vocab.pre is not None else ()

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text, whose spaces are spelled as in the vocabulary."""
        if not texts:
            return []
        size = sum(map(len, texts))
        need_room(_A_CHARACTER * size, "the tokens of a text")
        if size > _LONG:
            return in_a_thread(lambda: self._encode(texts))
        return self._encode(texts)

    def _encode(self, texts: Sequence[str]) -> list[list[int]]:
        encoder, splits = self._encoder_for(texts), self._splits

        def ids(text: str) -> Iterator[int]:
            for part in cut(text, splits):
                if len(part) > _LONG:  # only a batch is encoded without Python's lock
                    yield from encoder.encode_batch([part], add_special_tokens=False)[0].ids
                else:
                    yield from encoder.encode(part, add_special_tokens=False).ids

        return [list(ids(text)) for text in texts]

    def _encoder_for(self, texts: Sequence[str]) -> tokenizers.Tokenizer:
        with self._lock:
            if self._parts is not None:
                self._left -= self._parts.lookups(texts)
                if self._left >= 0:
                    return self._parts.build(texts)
                self._whole, self._parts = _built(self._parts.vocab), None
            assert self._whole is not None
            return self._whole


def _built(vocab: Vocabulary) -> tokenizers.Tokenizer:
    need_room(_A_TOKEN * len(vocab.ids), "a vocabulary")
    return build(vocab)


class _Parts:
    """Makes encoders of the tokens that occur in some texts (SentencePiece, byte pairs).

    Args:
        apart: `kept_apart` of the vocabulary.
        lengths: of its tokens, rising.
    """

    def __init__(self, vocab: Vocabulary, apart: frozenset[int], lengths: Sequence[int]):
        self.vocab = vocab
        self._apart = apart
        self._lengths = lengths
        self._ranks = {line: rank for rank, line in enumerate(vocab.merges or ())}
        self._named = stand_ins(vocab)

    def lookups(self, texts: Sequence[str]) -> int:
        """Cost of `build` in lookups."""
        letters = sum(map(len, texts))
        return _LOOKUPS_A_PART + letters * len(self._lengths)

    def build(self, texts: Sequence[str]) -> tokenizers.Tokenizer:
        """The encoder of these texts."""
        vocab, found = self.vocab, set[int | None](self._named)
        for text in texts:
            for spelled in self._spellings(text):
                for n in self._lengths:
                    within = [spelled[i : i + n] for i in range(len(spelled) - n + 1)]
                    found.update(map(vocab.ids.get, within))
        known = sorted(i for i in found - self._apart if i is not None)
        pieces = {vocab.tokens[i]: i for i in known}
        if vocab.model == "llama":
            return assemble(vocab, pieces, merges_by_score(vocab, pieces))
        return assemble(vocab, pieces, merges_by_rank(self._ranks, pieces))

    def _spellings(self, text: str) -> Iterator[str]:
        """The text, also without characters that have no token: their neighbours may merge."""
        ids, apart = self.vocab.ids, self._apart
        if self.vocab.pre is not None and self.vocab.pre.byte_level:
            text = in_byte_alphabet(text)
        yield text
        missing = [ord(char) for char in set(text) if ids.get(char) is None or ids[char] in apart]
        if missing:
            yield text.translate(dict.fromkeys(missing))


def _parts_of(vocab: Vocabulary) -> _Parts | None:
    """None if parts would not be exact, or if an error is to be raised by building the whole."""
    lengths = sorted(set(map(len, vocab.ids)))
    if vocab.model == "bert" or lengths[-1] > _LONGEST or not is_text("".join(vocab.ids)):
        return None
    try:
        if vocab.model == "llama":
            apart = kept_apart(vocab)
            merge = any(may_merge(vocab, i) for i in stand_ins(vocab))
            return None if merge or has_one_score(vocab) else _Parts(vocab, apart, lengths)
        return _parts_by_rank(vocab, lengths)
    except ConfigError:
        return None


def _parts_by_rank(vocab: Vocabulary, lengths: Sequence[int]) -> _Parts | None:
    lines = vocab.merges or []
    if set(map(str.count, lines, repeat(" "))) != {1}:
        return None
    halves = " ".join(lines).split(" ")
    made = list(map(add, halves[::2], halves[1::2]))
    apart = kept_apart(vocab, made)
    joined = set(map(vocab.ids.get, set(halves)))
    unfit = apart | stand_ins(vocab) | {None}
    if not joined.isdisjoint(unfit) or None in map(vocab.ids.get, made):
        return None
    return _Parts(vocab, apart, lengths)
