"""Encoders of the `tokenizers` package, for a whole vocabulary or a few texts' part of it.

An encoder maps plain text to ids. `Tokenizer` handles special tokens, the space that SentencePiece
puts in front of a text, and the tokens added around it.

A merge only makes pieces that occur in the text, or in the text without the characters that have no
token. An encoder that knows just these tokens, and the merges among them, gives the same ids as one
that knows all. It is built in a millisecond; one of 262,144 tokens takes a second and 120 MB.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import repeat
from operator import add
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np

from ..concurrency import in_a_thread
from ..errors import ConfigError, TokenizerError
from ..resources import need_room
from .pretokenizers import Pre, cut
from .vocabulary import (
    BYTE_NAMES,
    NEVER_TEXT,
    SPACE,
    Merge,
    TokenType,
    Vocabulary,
    check_merges,
    has_one_score,
    may_merge,
    merge_pairs,
    merges_by_rank,
    merges_by_score,
)

if TYPE_CHECKING:
    import tokenizers


def build(vocab: Vocabulary) -> tokenizers.Tokenizer:
    """The encoder of the whole vocabulary."""
    try:
        return {"bert": _wordpiece, "t5": unigram}.get(vocab.model, _whole)(vocab)
    except TokenizerError:
        raise
    except Exception as error:  # the package raises bare Exception
        check_merges(vocab)
        raise TokenizerError(
            f"the vocabulary cannot be built: {error}; its tokens and merges do not belong "
            f"together; convert the model again"
        ) from error


def _whole(vocab: Vocabulary) -> tokenizers.Tokenizer:
    pairs = merge_pairs(vocab.merges or [])
    apart = kept_apart(vocab, map("".join, pairs))
    pieces = {text: i for text, i in _spellable(vocab.ids).items() if i not in apart}
    if vocab.model == "llama":
        if has_one_score(vocab):
            raise TokenizerError(
                "tokenizer.ggml.scores holds one and the same score for all tokens, so the order "
                "in which pieces join is lost; convert the model again from its tokenizer.model"
            )
        pairs = merges_by_score(vocab, pieces)
    return assemble(vocab, pieces, pairs)


def kept_apart(vocab: Vocabulary, made: Iterable[str] = ()) -> frozenset[int]:
    """Tokens that an encoder must not know, since plain text never becomes them.

    It has to know the byte tokens and the unknown one, which replace characters without a token.

    Args:
        made: results of the merges.
    """
    if vocab.model == "llama":
        apart = vocab.of_type((TokenType.UNKNOWN, TokenType.CONTROL, TokenType.USER_DEFINED))
        return frozenset(apart.values()) - {vocab.token_id("unknown", 0)}
    if vocab.pre is None or not vocab.pre.ignore_merges:
        return frozenset()
    # A whole word is looked up first, and "<s>" in a text must not become the control token.
    hidden = {text: i for text, i in vocab.of_type(NEVER_TEXT).items() if len(text) > 1}
    for text in filter(hidden.__contains__, made):
        del hidden[text]
    return frozenset(hidden.values())


def assemble(
    vocab: Vocabulary, pieces: dict[str, int], merges: list[Merge]
) -> tokenizers.Tokenizer:
    """The encoder that knows only these pieces of a SentencePiece or byte pair vocabulary."""
    from tokenizers import Tokenizer, models

    unknown = _unknown(vocab) if _names_bytes(vocab) else None
    # Successive unknown characters become one token.
    fused = {} if unknown is None else {"unk_token": vocab.tokens[unknown], "fuse_unk": True}
    model = models.BPE(
        vocab=pieces,
        merges=merges,
        ignore_merges=vocab.pre is not None and vocab.pre.ignore_merges,
        byte_fallback=_names_bytes(vocab),
        **fused,
    )
    built = Tokenizer(model)
    if vocab.pre is not None:
        built.pre_tokenizer = _pre_tokenizer(vocab.pre)  # type: ignore[assignment]
    return built


@lru_cache
def _pre_tokenizer(pre: Pre) -> Any:
    from tokenizers import Regex, pre_tokenizers

    steps: list[Any] = [pre_tokenizers.Split(Regex(s), "isolated") for s in pre.splits]
    if pre.byte_level:
        steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
    return pre_tokenizers.Sequence(steps)


def _names_bytes(vocab: Vocabulary) -> bool:
    # A byte-level vocabulary spells bytes as characters.
    return vocab.pre is None or not vocab.pre.byte_level


def _unknown(vocab: Vocabulary) -> int | None:
    return vocab.token_id("unknown", {"llama": 0, "t5": 2}.get(vocab.model))


def stand_ins(vocab: Vocabulary) -> set[int]:
    """Tokens that replace a character without a token: of its bytes ("<0xE2>"), or unknown."""
    if not _names_bytes(vocab):
        return set()
    tokens = {*map(vocab.ids.get, BYTE_NAMES), _unknown(vocab)}
    return {i for i in tokens if i is not None}


def _wordpiece(vocab: Vocabulary) -> tokenizers.Tokenizer:
    """In a GGUF "▁" marks a word's first piece; WordPiece marks the others, with "##"."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

    unknown = vocab.token_id("unknown", 100)
    if unknown is None:
        raise TokenizerError(
            "a bert vocabulary needs tokenizer.ggml.unknown_token_id; convert the model again"
        )
    pieces = {}
    for text, i in _spellable(vocab.ids).items():
        if vocab.types[i] not in NEVER_TEXT:
            pieces[text[1:] if text.startswith(SPACE) else "##" + text] = i
    pieces[vocab.tokens[unknown]] = unknown
    lowercase = vocab.keys.get("tokenizer.ggml.normalizer.lowercase", bool, True)
    strip = vocab.keys.get("tokenizer.ggml.normalizer.strip_accents", bool, lowercase)
    built = Tokenizer(models.WordPiece(pieces, unk_token=vocab.tokens[unknown]))
    built.normalizer = normalizers.BertNormalizer(  # type: ignore[assignment]
        lowercase=lowercase, strip_accents=strip
    )
    built.pre_tokenizer = pre_tokenizers.BertPreTokenizer()  # type: ignore[assignment]
    return built


def unigram(vocab: Vocabulary) -> tokenizers.Tokenizer:
    """The likeliest pieces of each word, of all texts that spell it (SentencePiece's unigrams)."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

    unknown, keys = _unknown(vocab), vocab.keys
    if unknown is None:
        raise TokenizerError(
            "a t5 vocabulary needs tokenizer.ggml.unknown_token_id; convert the model again"
        )
    assert vocab.scores is not None
    has_bytes = all(
        name in vocab.ids and vocab.types[vocab.ids[name]] == TokenType.BYTE for name in BYTE_NAMES
    )
    # Others keep their ids under names that no text has, since its spaces are spelled otherwise.
    pieces = list(zip(vocab.tokens, vocab.scores, strict=True))
    bytes_too = (TokenType.BYTE,) if has_bytes else ()
    apart = vocab.of_type(set(TokenType) - {TokenType.NORMAL, *bytes_too})
    unfit = (
        {}
        if is_text("".join(vocab.ids))
        else {t: i for t, i in vocab.ids.items() if not is_text(t)}
    )
    for i in (*apart.values(), *unfit.values()):
        pieces[i] = f" {i}", 0.0
    built = Tokenizer(models.Unigram(pieces, unknown, has_bytes))
    if charsmap := keys.array(CHARSMAP, (int,), False, "vocabulary_letters"):
        data = bytes(charsmap)
        check_charsmap(data)
        built.normalizer = normalizers.Precompiled(data)  # type: ignore[assignment]
    if keys.get("tokenizer.ggml.remove_extra_whitespaces", bool, True):
        words = [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(SPACE, "always")]
        built.pre_tokenizer = pre_tokenizers.Sequence(words)  # type: ignore[assignment]
    else:
        prefix = "always" if keys.get("tokenizer.ggml.add_space_prefix", bool, True) else "never"
        built.pre_tokenizer = pre_tokenizers.Metaspace(SPACE, prefix, split=False)  # type: ignore[assignment]
    return built


CHARSMAP = "tokenizer.ggml.precompiled_charsmap"
_LABEL = (1 << 31) | 0xFF  # of a unit in the trie of a charsmap


def check_charsmap(data: bytes) -> None:
    """Walks SentencePiece's compiled normalization of characters: its length, a trie (darts-clone's
    double array) and the texts that replace what it finds.

    Raises:
        TokenizerError: it leads out of its bounds.
    """
    size = int.from_bytes(data[:4], "little")
    fits = 0 < size < len(data) - 4 and size % 4 == 0 and data[-1] == 0
    units, texts = np.frombuffer(data[4 : 4 + size] if fits else b"", "<u4"), data[4 + size :]
    try:
        texts.decode()
    except UnicodeDecodeError:
        fits = False
    seen, last = np.zeros(len(units), bool), np.zeros(1, np.int64)
    while fits and len(last):
        found = units[last].astype(np.int64)
        below = last ^ ((found >> 10) << ((found & 0x200) >> 6))
        leaves = below[(found & 0x100) > 0]
        children = (below[:, None] ^ np.arange(1, 256)).ravel()
        fits = bool((leaves < len(units)).all() and (children < len(units)).all())
        if fits:
            values = units[leaves].astype(np.int64) & 0x7FFFFFFF
            starts = np.frombuffer(texts, np.uint8)
            fits = bool((values < len(texts)).all() and ((starts[values] & 0xC0) != 0x80).all())
            labels = np.tile(np.arange(1, 256), len(last))
            last = np.unique(children[(units[children] & _LABEL) == labels])
            last = last[~seen[last]]
            seen[last] = True
    if not fits:
        raise TokenizerError(
            f"{CHARSMAP} is damaged: it leads out of its bounds; convert the model again"
        )


def _spellable(ids: dict[str, int]) -> dict[str, int]:
    """The tokens that are text; the reader escapes bytes that are no UTF-8 as surrogates."""
    return ids if is_text("".join(ids)) else {t: i for t, i in ids.items() if is_text(t)}


def is_text(text: str) -> bool:
    """Whether a text has no lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def in_byte_alphabet(text: str) -> str:
    """Spells a text in the alphabet of byte-level vocabularies."""
    return bytes_in_alphabet(text.encode())


def bytes_in_alphabet(data: bytes) -> str:
    """Spells bytes in the alphabet of byte-level vocabularies, one letter each."""
    return data.decode("latin-1").translate(_letters())


@lru_cache(maxsize=1)
def _letters() -> dict[int, str]:
    return {byte[0]: char for char, byte in byte_alphabet().items()}


@lru_cache(maxsize=1)
def byte_alphabet() -> dict[str, bytes]:
    """GPT-2 spells a byte by its Latin-1 character, if that is visible, else by one above 255."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [value for value in range(256) if value not in set(visible)]
    alphabet = {chr(value): bytes([value]) for value in visible}
    alphabet.update({chr(256 + n): bytes([value]) for n, value in enumerate(hidden)})
    return alphabet


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

    def spans(self, text: str) -> list[tuple[int, int, int]]:
        """The ids of a text, whose spaces are spelled as in the vocabulary, each with its place in
        characters: (id, start, end)."""
        need_room(_A_CHARACTER * len(text), "the tokens of a text")
        encoder, found, at = self._encoder_for([text]), list[tuple[int, int, int]](), 0
        for part in cut(text, self._splits):
            encoded = encoder.encode(part, add_special_tokens=False)
            places = zip(encoded.ids, encoded.offsets, strict=True)
            found += [(id, at + start, at + end) for id, (start, end) in places]
            at += len(part)
        return found

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


class _PartBuilder:
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
        vocab, tokens = self.vocab, set[int | None](self._named)
        for text in texts:
            for spelled in self._spellings(text):
                for n in self._lengths:
                    within = [spelled[i : i + n] for i in range(len(spelled) - n + 1)]
                    tokens.update(map(vocab.ids.get, within))
        ids = sorted(i for i in tokens - self._apart if i is not None)
        pieces = {vocab.tokens[i]: i for i in ids}
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


def _parts_of(vocab: Vocabulary) -> _PartBuilder | None:
    """None if parts would not be exact, or if an error is to be raised by building the whole."""
    lengths = sorted(set(map(len, vocab.ids)))
    if vocab.model in ("bert", "t5") or lengths[-1] > _LONGEST or not is_text("".join(vocab.ids)):
        return None
    try:
        if vocab.model == "llama":
            apart = kept_apart(vocab)
            merge = any(may_merge(vocab, i) for i in stand_ins(vocab))
            return None if merge or has_one_score(vocab) else _PartBuilder(vocab, apart, lengths)
        return _parts_by_rank(vocab, lengths)
    except ConfigError:
        return None


def _parts_by_rank(vocab: Vocabulary, lengths: Sequence[int]) -> _PartBuilder | None:
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
    return _PartBuilder(vocab, apart, lengths)
