"""Vocabularies rebuilt for the `tokenizers` package, and the bytes their tokens stand for.

What is built here maps plain text to ids. Special tokens, the space SentencePiece puts in front
and the tokens added around a text are the business of `Tokenizer`.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

from ggmodel.errors import TokenizerError
from ggmodel.tokenizer.vocabulary import TokenType, Vocabulary, check_merges

if TYPE_CHECKING:
    import tokenizers

SPACE = "▁"
# Types that plain text never becomes: they stand for something else than their spelling.
_NEVER_TEXT = (TokenType.UNKNOWN, TokenType.CONTROL, TokenType.USER_DEFINED, TokenType.BYTE)
# Longer pieces take no part in merging: no language has them, and a hostile file must not cost
# time that grows with the square of its tokens.
_LONGEST = 256


def build(vocab: Vocabulary) -> tokenizers.Tokenizer:
    """The encoder of plain text for `vocab`.

    Raises:
        TokenizerError: the vocabulary contradicts itself.
    """
    builders = {"llama": _sentencepiece, "bert": _wordpiece}
    try:
        return builders.get(vocab.model, _byte_pairs)(vocab)
    except TokenizerError:
        raise
    except Exception as error:  # the package raises bare Exception
        check_merges(vocab)
        raise TokenizerError(
            f"the vocabulary cannot be built: {error}; its tokens and merges do not belong "
            f"together; convert the model again"
        ) from error


def _byte_pairs(vocab: Vocabulary) -> tokenizers.Tokenizer:
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers

    assert vocab.pre is not None
    assert vocab.merges is not None
    ids = _spellable(vocab.ids)
    if vocab.pre.ignore_merges:
        # Whole words are looked up, and "<s>" in a text must not become the control token.
        hidden = {text for text in vocab.of_type(_NEVER_TEXT) if len(text) > 1}
        begins = {text[0] for text in hidden}
        hidden -= {left + right for left, right in vocab.merges if left[0] in begins}
        ids = ids.copy()
        for text in hidden & ids.keys():
            del ids[text]
    model = models.BPE(
        vocab=ids,
        merges=vocab.merges,
        ignore_merges=vocab.pre.ignore_merges,
        byte_fallback=not vocab.pre.byte_level,
        **({} if vocab.pre.byte_level else _unknown(vocab)),
    )
    steps: list[Any] = [pre_tokenizers.Split(Regex(s), "isolated") for s in vocab.pre.splits]
    if vocab.pre.byte_level:
        steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
    built = Tokenizer(model)
    built.pre_tokenizer = pre_tokenizers.Sequence(steps)  # type: ignore[assignment]
    return built


def _sentencepiece(vocab: Vocabulary) -> tokenizers.Tokenizer:
    """SentencePiece joins the neighbours whose union scores best; as ranks that is plain BPE."""
    from tokenizers import Tokenizer, models

    scores = vocab.scores
    assert scores is not None
    ids = _spellable(vocab.ids)
    text_ids = {text: i for text, i in ids.items() if vocab.types[i] not in _NEVER_TEXT}
    # Equal scores occur for runs of spaces, which grow from the left: so the longest is first.
    ranked = sorted(
        (text for text in text_ids if 1 < len(text) <= _LONGEST),
        key=lambda text: (-scores[text_ids[text]], -len(text)),
    )
    merges = [
        (left, right)
        for text in ranked
        for at in range(1, len(text))
        if (left := text[:at]) in text_ids and (right := text[at:]) in text_ids
    ]
    first = scores[text_ids["".join(merges[0])]] if len(merges) > 1 else None
    if first is not None and all(scores[text_ids[left + right]] == first for left, right in merges):
        raise TokenizerError(
            "tokenizer.ggml.scores holds one and the same score for all tokens, so the order in "
            "which pieces join is lost; convert the model again from its tokenizer.model"
        )
    # Bytes and unknown are named when a character is missing; text never spells them, because
    # nothing merges into them.
    named = {t: i for t, i in ids.items() if vocab.types[i] == TokenType.BYTE}
    unknown = _unknown(vocab)
    if unknown:
        named[unknown["unk_token"]] = vocab.ids[unknown["unk_token"]]
    model = models.BPE(
        vocab={**text_ids, **named},
        merges=merges,
        byte_fallback=True,
        **unknown,
    )
    return Tokenizer(model)


def _unknown(vocab: Vocabulary) -> dict:
    """How to spell what no token spells; successive unknown characters become one token."""
    unknown = vocab.token_id("unknown", 0 if vocab.model == "llama" else None)
    return {} if unknown is None else {"unk_token": vocab.tokens[unknown], "fuse_unk": True}


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
    return ids if _is_text("".join(ids)) else {t: i for t, i in ids.items() if _is_text(t)}


def _is_text(text: str) -> bool:
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


@lru_cache(maxsize=1)
def _byte_alphabet() -> dict[str, bytes]:
    """GPT-2 spells a byte by its Latin-1 character, if that is visible, else by one above 255."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [value for value in range(256) if value not in set(visible)]
    alphabet = {chr(value): bytes([value]) for value in visible}
    alphabet.update({chr(256 + n): bytes([value]) for n, value in enumerate(hidden)})
    return alphabet
