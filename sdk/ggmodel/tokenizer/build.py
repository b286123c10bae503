"""Vocabularies rebuilt for the `tokenizers` package, and the bytes their tokens stand for.

What is built here maps plain text to ids. Special tokens, the space SentencePiece puts in front
and the tokens added around a text are the business of `Tokenizer`.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from ..errors import TokenizerError
from .pretokenizers import Pre
from .vocabulary import TokenType, Vocabulary, check_merges, merge_pairs

if TYPE_CHECKING:
    import tokenizers

SPACE = "▁"
_BYTE_NAMES = tuple(f"<0x{value:02X}>" for value in range(256))
# Types that plain text never becomes: they stand for something else than their spelling.
_NEVER_TEXT = (TokenType.UNKNOWN, TokenType.CONTROL, TokenType.USER_DEFINED, TokenType.BYTE)
# Longer pieces take no part in merging: no language has them, and a hostile file must not cost
# time that grows with the square of its tokens.
_LONGEST = 256


def build(vocab: Vocabulary) -> tokenizers.Tokenizer:
    """The encoder of plain text for all of `vocab`.

    Raises:
        TokenizerError: the vocabulary contradicts itself.
    """
    try:
        return _wordpiece(vocab) if vocab.model == "bert" else _whole(vocab)
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
    """Tokens that an encoder must not know, for plain text never becomes them. (It has to know
    bytes and the unknown token, which stand where a character is missing.)

    Args:
        made: the texts that merges make.
    """
    if vocab.model == "llama":
        apart = vocab.of_type((TokenType.UNKNOWN, TokenType.CONTROL, TokenType.USER_DEFINED))
        return frozenset(apart.values()) - {vocab.token_id("unknown", 0)}
    if vocab.pre is None or not vocab.pre.ignore_merges:
        return frozenset()
    # Whole words are looked up, and "<s>" in a text must not become the control token.
    hidden = {text: i for text, i in vocab.of_type(_NEVER_TEXT).items() if len(text) > 1}
    for text in filter(hidden.__contains__, made):
        del hidden[text]
    return frozenset(hidden.values())


def pairs_making(text: str, pieces: Container[str]) -> Iterator[tuple[str, str]]:
    """The pairs of pieces that make `text`."""
    for at in range(1, len(text)):
        if (left := text[:at]) in pieces and (right := text[at:]) in pieces:
            yield left, right


def merges_by_score(vocab: Vocabulary, pieces: Mapping[str, int]) -> list[tuple[str, str]]:
    """SentencePiece joins the neighbours whose union scores best; as ranks that is plain BPE.

    Args:
        pieces: tokens, by rising id.
    """
    scores = vocab.scores
    assert scores is not None
    ids = {t: i for t, i in pieces.items() if len(t) <= _LONGEST and may_merge(vocab, i)}
    # Equal scores occur for runs of spaces, which grow from the left: so the longest is first.
    ranked = sorted(ids, key=lambda text: (-scores[ids[text]], -len(text)))
    return [pair for text in ranked for pair in pairs_making(text, ids)]


def has_one_score(vocab: Vocabulary) -> bool:
    """Whether a SentencePiece vocabulary has several merges, and one score for all of them."""
    ids, scores = vocab.ids, vocab.scores
    assert scores is not None
    found = (
        scores[i]
        for text, i in ids.items()
        if len(text) <= _LONGEST and may_merge(vocab, i)
        for left, right in pairs_making(text, ids)
        if may_merge(vocab, ids[left]) and may_merge(vocab, ids[right])
    )
    first, second = next(found, None), next(found, None)
    return second is not None and first == second and all(score == first for score in found)


def may_merge(vocab: Vocabulary, token: int) -> bool:
    """Whether the token of a SentencePiece vocabulary takes part in merging."""
    return vocab.types[token] not in _NEVER_TEXT


def assemble(
    vocab: Vocabulary, pieces: dict[str, int], merges: list[tuple[str, str]]
) -> tokenizers.Tokenizer:
    """The encoder of a SentencePiece or byte pair vocabulary that knows these tokens only."""
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
    # To a byte-level vocabulary bytes are characters.
    return vocab.pre is None or not vocab.pre.byte_level


def _unknown(vocab: Vocabulary) -> int | None:
    return vocab.token_id("unknown", 0 if vocab.model == "llama" else None)


def stand_ins(vocab: Vocabulary) -> set[int]:
    """What stands for a character that has no token: those of its bytes, "<0xE2>", or else the
    unknown one."""
    if not _names_bytes(vocab):
        return set()
    found = {*map(vocab.ids.get, _BYTE_NAMES), _unknown(vocab)}
    return {i for i in found if i is not None}


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
        if vocab.types[i] not in _NEVER_TEXT:
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


def _spellable(ids: dict[str, int]) -> dict[str, int]:
    """The tokens that are text: the reader escapes bytes that are no UTF-8 as surrogates."""
    return ids if is_text("".join(ids)) else {t: i for t, i in ids.items() if is_text(t)}


def is_text(text: str) -> bool:
    """Whether it has no lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def token_bytes(vocab: Vocabulary, token: int) -> bytes:
    """The bytes that `token` stands for; special tokens stand for their own text."""
    text, kind = vocab.tokens[token], vocab.types[token]
    if kind in (TokenType.UNKNOWN, TokenType.CONTROL, TokenType.USER_DEFINED):
        return _raw(text)
    if kind == TokenType.BYTE:
        try:
            return bytes([int(text[3:5], 16)])
        except ValueError:
            raise TokenizerError(
                f"token {token} is a byte token but is spelled {text!r:.80}, not like <0x0A>; "
                f"convert the model again"
            ) from None
    if vocab.pre is not None and vocab.pre.byte_level:
        alphabet = _byte_alphabet()
        return b"".join(alphabet.get(char) or _raw(char) for char in text)
    return _raw(text.replace(SPACE, " "))


def _raw(text: str) -> bytes:
    # The first handler gives back bytes that the reader escaped, the second any other surrogate.
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass")


def in_byte_alphabet(text: str) -> str:
    """A text as byte-level vocabularies spell it."""
    return text.encode().decode("latin-1").translate(_letters())


@lru_cache(maxsize=1)
def _letters() -> dict[int, str]:
    return {byte[0]: char for char, byte in _byte_alphabet().items()}


@lru_cache(maxsize=1)
def _byte_alphabet() -> dict[str, bytes]:
    """GPT-2 spells a byte by its Latin-1 character, if that is visible, else by one above 255."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [value for value in range(256) if value not in set(visible)]
    alphabet = {chr(value): bytes([value]) for value in visible}
    alphabet.update({chr(256 + n): bytes([value]) for n, value in enumerate(hidden)})
    return alphabet
