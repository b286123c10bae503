"""The vocabulary in the metadata of a GGUF, checked, and its merges.

Merges are pairs of pieces that join, in order of rank. Byte pair vocabularies list them.
SentencePiece vocabularies score their tokens instead: neighbours whose union scores best join
first.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import compress, count, repeat
from typing import Any, TypeVar

from ..bounds import limits
from ..errors import ConfigError, TokenizerError
from ..reading import too_large
from .pretokenizers import PRE_TOKENIZERS, Pre

PREFIX = "tokenizer.ggml."
SPACE = "▁"  # a space in a vocabulary of SentencePiece; the start of a word in one of WordPiece
BYTE_NAMES = tuple(f"<0x{value:02X}>" for value in range(256))
MODELS = ("gpt2", "llama", "gemma4", "bert", "t5", "rwkv")

# Ids that mean "no such token": -1, also stored as an unsigned number.
_NONE = (-1, 2**32 - 1)
_REQUIRED: Any = object()
_Items = TypeVar("_Items", bound="Sequence[Any] | None")


class TokenType(IntEnum):
    """The values of `tokenizer.ggml.token_type`."""

    UNDEFINED = 0
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


# Types that plain text never becomes: they stand for something else than their spelling.
NEVER_TEXT = (TokenType.UNKNOWN, TokenType.CONTROL, TokenType.USER_DEFINED, TokenType.BYTE)


@dataclass(frozen=True)
class Vocabulary:
    """A checked vocabulary: tokens unique, arrays of one length, ids in range.

    Attributes:
        model: kind of vocabulary, one of `MODELS`.
        pre: pre-tokenizer of a byte pair vocabulary, else None.
        tokens: text of each id, as spelled in the file.
        ids: id of each text.
        types: `TokenType` of each id.
        scores: score of each id where the file has them (SentencePiece needs them: of byte pairs
            they say which join first, of unigrams they are log-probabilities).
        merges: lines of the file, by rank; see `merge_pairs` (byte pair vocabularies).
        keys: the metadata, for single values.

    Every start of a model reads hundreds of thousands of tokens: loops over all of them belong into
    one comprehension, or into C.
    """

    model: str
    pre: Pre | None
    tokens: list[str]
    ids: dict[str, int]
    types: Sequence[int]
    scores: Sequence[float] | None
    merges: list[str] | None
    keys: Keys

    def of_type(self, kinds: Collection[TokenType]) -> dict[str, int]:
        """Text and id of the tokens of these types, in order."""
        ids = compress(count(), map(frozenset(kinds).__contains__, self.types))
        return {self.tokens[i]: i for i in ids}

    def token_id(self, name: str, default: int | None = None) -> int | None:
        """The id that `tokenizer.ggml.<name>_token_id` gives, or None.

        `default` is used when the key is absent and the id exists."""
        key = f"{PREFIX}{name}_token_id"
        value = self.keys.get(key, int, None)
        if value is None:
            return default if default is not None and default < len(self.tokens) else None
        if value in _NONE:
            return None
        if not 0 <= value < len(self.tokens):
            raise ConfigError(
                f"{key} = {value} lies outside the vocabulary of {len(self.tokens)} tokens; "
                f"correct the key in the file, or pass the metadata with another value"
            )
        return value


class Keys:
    """Typed access to metadata; every error names the key."""

    def __init__(self, metadata: Mapping[str, Any]):
        self._metadata = metadata

    def get(self, key: str, kind: type, default: Any = _REQUIRED) -> Any:
        """The value at `key`, or `default`."""
        value = self._metadata.get(key)
        if value is None:
            if default is _REQUIRED:
                raise ConfigError(
                    f"the metadata has no {key}, which a tokenizer needs; convert the model again "
                    f"with its tokenizer, or add the key to the metadata you pass"
                )
            return default
        if not isinstance(value, kind) and hasattr(value, "item"):
            value = value.item()  # a numpy scalar
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise ConfigError(f"{key} should be {kind.__name__}, but is {value!r:.80}")
        return value

    def array(
        self, key: str, kinds: tuple[type, ...], required: bool, limit: str = "vocabulary_tokens"
    ) -> list[Any] | None:
        """The array at `key` as a list, or None when it is absent and not required.

        Args:
            limit: name of the limit of its length.
        """
        value = self._metadata.get(key)
        if value is None:
            return self.get(key, list) if required else None
        if hasattr(value, "__len__"):
            check_count(key, len(value), limit)
        if hasattr(value, "tolist"):
            value = value.tolist()
        if not isinstance(value, (list, tuple)):
            raise ConfigError(f"{key} should be an array, but is {value!r:.80}")
        for wrong in set(map(type, value)) - set(kinds):
            at = next(i for i, item in enumerate(value) if type(item) is wrong)
            names = " or ".join(kind.__name__ for kind in kinds)
            raise ConfigError(
                f"{key} should hold {names} only, but item {at} is {value[at]!r:.80}; the file "
                f"is damaged or was not written for ggml"
            )
        return list(value)


def check_count(name: str, count: int, limit: str = "vocabulary_tokens") -> None:
    """Checks a number of items, before they are read, against a limit of `ggmodel.limits`.

    Raises:
        TokenizerError: there are more.
    """
    if count > getattr(limits, limit):
        raise TokenizerError(too_large(name, f"{count:,} items", limit))


def check_letters(name: str, tokens: Iterable[str]) -> None:
    """Checks the length of all tokens together: finding merges takes time for each letter.

    Raises:
        TokenizerError: it exceeds the limit `vocabulary_letters`.
    """
    letters = sum(map(len, tokens))
    if letters > limits.vocabulary_letters:
        raise TokenizerError(too_large(name, f"{letters:,} letters", "vocabulary_letters"))


def read_vocabulary(metadata: Mapping[str, Any]) -> Vocabulary:
    """Reads the `tokenizer.ggml.*` keys.

    Raises:
        ConfigError: a key is missing, of the wrong type or of the wrong length.
        TokenizerError: an unknown model or pre-tokenizer, duplicate tokens, broken merges, more of
            them than the limits `vocabulary_tokens`, `vocabulary_letters`, `vocabulary_merges`.
    """
    keys = Keys(metadata)
    model = keys.get(PREFIX + "model", str)
    if model not in MODELS:
        raise TokenizerError(
            f"{PREFIX}model = {model!r} is not supported; supported are: {', '.join(MODELS)}"
        )
    tokens = keys.array(PREFIX + "tokens", (str,), required=True) or []
    if not tokens:
        raise ConfigError(f"{PREFIX}tokens is empty; convert the model again with its tokenizer")
    check_letters(PREFIX + "tokens", tokens)
    # An empty text would match everywhere; its id gets another name.
    if "" in tokens:
        tokens = [text or f"[EMPTY_{i}]" for i, text in enumerate(tokens)]
    ids = dict(zip(tokens, range(len(tokens)), strict=True))
    if len(ids) != len(tokens):
        twice = next(i for i, text in enumerate(tokens) if ids[text] != i)
        raise TokenizerError(
            f"{PREFIX}tokens holds {tokens[twice]!r:.80} twice, as ids {twice} and "
            f"{ids[tokens[twice]]}; the tokens of a vocabulary must differ"
        )
    types = _of_length(keys.array(PREFIX + "token_type", (int,), required=False), "token_type", ids)
    scores = _of_length(_read_scores(keys, required=model in ("llama", "t5")), "scores", ids)
    byte_pairs = model in ("gpt2", "gemma4")
    types = types or _guess_types(tokens, byte_pairs)
    return Vocabulary(
        model=model,
        pre=_read_pre(keys, model) if byte_pairs else None,
        tokens=tokens,
        ids=ids,
        types=_packed(types),
        scores=scores,
        merges=_read_merges(keys, tokens, types) if byte_pairs else None,
        keys=keys,
    )


def _read_scores(keys: Keys, required: bool) -> array[float] | None:
    key = PREFIX + "scores"
    scores = keys.array(key, (float, int), required)
    try:
        return None if scores is None else array("d", scores)
    except OverflowError:
        raise ConfigError(f"{key} holds an integer that no float can hold") from None


def _of_length(items: _Items, name: str, ids: dict[str, int]) -> _Items:
    if items is not None and len(items) != len(ids):
        raise ConfigError(
            f"{PREFIX}{name} has {len(items)} items but {PREFIX}tokens has {len(ids)}; their "
            f"lengths must be equal; convert the model again"
        )
    return items


def _guess_types(tokens: list[str], byte_pairs: bool) -> list[int]:
    """Types for a file without `token_type`: only byte tokens show by their spelling."""
    spelled = set() if byte_pairs else set(BYTE_NAMES)
    return [TokenType.BYTE if text in spelled else TokenType.NORMAL for text in tokens]


def _read_merges(keys: Keys, tokens: list[str], types: Sequence[int]) -> list[str]:
    merges = keys.array(PREFIX + "merges", (str,), False, "vocabulary_merges")
    # A file cannot hold an empty list: without any merges the key is missing.
    if merges is None and longest_plain(tokens, types):
        return keys.get(PREFIX + "merges", list)
    return merges or []


def longest_plain(tokens: Sequence[str], types: Sequence[int]) -> str:
    """The longest of the normal tokens that only merges make: of several characters, or ""."""
    plain = compress(tokens, map(int(TokenType.NORMAL).__eq__, types))
    return max((text for text in plain if len(text) > 1), key=len, default="")


def _packed(types: list[int]) -> Sequence[int]:
    """One byte for each type, unless a file has types beyond 255."""
    try:
        return bytes(types)
    except ValueError:
        return types


def _read_pre(keys: Keys, model: str) -> Pre:
    key = PREFIX + "pre"
    names = ", ".join(sorted(PRE_TOKENIZERS))
    name = "gemma4" if model == "gemma4" else keys.get(key, str, "")
    if not name:
        raise TokenizerError(
            f"the metadata has no {key}, without which the text cannot be split as in training; "
            f"pass the metadata with that key set to one of: {names}"
        )
    if name not in PRE_TOKENIZERS:
        raise TokenizerError(f"{key} = {name!r} is unknown; known are: {names}")
    return PRE_TOKENIZERS[name]


Merge = tuple[str, str]
# Longer pieces take no part in scored merges: no language has them, and finding the pairs takes
# time that grows with the square of the length.
LONGEST = 256


def merge_pairs(lines: list[str]) -> list[Merge]:
    """The pairs in the lines of `tokenizer.ggml.merges`."""
    if set(map(str.count, lines, repeat(" "))) == {1}:
        pieces = " ".join(lines).split(" ")
        if "" not in pieces:
            return list(zip(pieces[::2], pieces[1::2], strict=True))
    merges: list[Any] = [tuple(line.split(" ", 1)) for line in lines]
    for rank in [rank for rank, pair in enumerate(merges) if len(pair) < 2 or "" in pair]:
        # A piece may itself begin with a space; then the separator is behind it.
        at = lines[rank].find(" ", 1)
        merges[rank] = lines[rank][:at], lines[rank][at + 1 :]
        if at < 0 or not merges[rank][1]:
            raise TokenizerError(
                f"{PREFIX}merges[{rank}] = {lines[rank]!r:.80} is no pair; the file is "
                f"damaged or was not written for ggml; convert the model again"
            )
    return merges


def pairs_making(text: str, pieces: Container[str]) -> Iterator[Merge]:
    """The pairs of pieces that make `text`."""
    for at in range(1, len(text)):
        if (left := text[:at]) in pieces and (right := text[at:]) in pieces:
            yield left, right


def merges_by_score(vocab: Vocabulary, pieces: Mapping[str, int]) -> list[Merge]:
    """The merges of a SentencePiece vocabulary among some pieces, given by rising id."""
    scores = vocab.scores
    assert scores is not None
    ids = {t: i for t, i in pieces.items() if len(t) <= LONGEST and may_merge(vocab, i)}
    # Runs of spaces have equal scores and grow from the left, so the longest is first.
    ranked = sorted(ids, key=lambda text: (-scores[ids[text]], -len(text)))
    return [pair for text in ranked for pair in pairs_making(text, ids)]


def merges_by_rank(ranks: Mapping[str, int], pieces: Collection[str]) -> list[Merge]:
    """The merges of a byte pair vocabulary among some pieces.

    Args:
        ranks: rank of each line of `tokenizer.ggml.merges`, which has one space in it.
    """
    ranked = sorted(
        (rank, left, right)
        for text in pieces
        for left, right in pairs_making(text, pieces)
        if (rank := ranks.get(f"{left} {right}")) is not None
    )
    return [(left, right) for _, left, right in ranked]


def has_one_score(vocab: Vocabulary) -> bool:
    """Whether a SentencePiece vocabulary has several merges, and one score for all of them."""
    ids, scores = vocab.ids, vocab.scores
    assert scores is not None
    ranked = (
        scores[i]
        for text, i in ids.items()
        if len(text) <= LONGEST and may_merge(vocab, i)
        for left, right in pairs_making(text, ids)
        if may_merge(vocab, ids[left]) and may_merge(vocab, ids[right])
    )
    first, second = next(ranked, None), next(ranked, None)
    return second is not None and first == second and all(score == first for score in ranked)


def may_merge(vocab: Vocabulary, token: int) -> bool:
    """Whether the token of a SentencePiece vocabulary takes part in merging."""
    return vocab.types[token] not in NEVER_TEXT


def check_merges(vocab: Vocabulary) -> None:
    """Finds the merge that does not fit, once building has failed; it is slow.

    Raises:
        TokenizerError: a merge names a piece that is not in the vocabulary.
    """
    for rank, (left, right) in enumerate(merge_pairs(vocab.merges or [])):
        if not {left, right, left + right} <= vocab.ids.keys():
            raise TokenizerError(
                f"{PREFIX}merges[{rank}] = {f'{left} {right}'!r:.80} names a piece that is not in "
                f"the vocabulary; the merges and the tokens of this file do not belong together; "
                f"convert the model again"
            )
