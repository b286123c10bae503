"""Marian's vocabulary: a SentencePiece model of the source and one of the target, and one list of
ids for the pieces of both, vocab.json."""

from __future__ import annotations

from typing import Any

from ...errors import TokenizerError
from ...tokenizer.vocabulary import PREFIX, TokenType, check_count
from .files import UNIGRAM, Files, SentencePieceModel, read_sentencepiece, special_tokens
from .kinds import charsmap_of, keys_of

SOURCE, IDS = "source.spm", "vocab.json"
_NAMES = {"eos_token_id": "</s>", "padding_token_id": "<pad>", "unknown_token_id": "<unk>"}
_NO_SCORE = -10000.0


def is_marian(files: Files) -> bool:
    """Whether a folder has these files."""
    return all(files.path(name) for name in (SOURCE, IDS))


def marian(files: Files) -> dict[str, Any]:
    """The metadata. A text is cut into pieces of the source; those of the target alone are unused,
    so that only answers have them. Codes of languages such as ">>deu<<" are user-defined.

    Pieces of the source without an id are left out, where transformers makes "<unk>" of them.
    Punctuation stays as it is: transformers' tokenizer normalizes it by sacremoses where a caller
    asks for `normalize`, and not when it makes ids.

    Raises:
        FormatError: a file is damaged.
        TokenizerError: the pieces are no unigrams.
    """
    name = str(files.folder / SOURCE)
    model = read_sentencepiece(files.bytes(SOURCE) or b"", name)
    if model.kind != UNIGRAM:
        raise TokenizerError(f"{name} is no model of unigrams; get the tokenizer's files again")
    tokens = _by_id(files)
    scores, types = _pieces(model, tokens)
    keys = keys_of("t5", "default", tokens, types, scores)
    keys[PREFIX + "add_space_prefix"] = model.add_dummy_prefix
    keys[PREFIX + "remove_extra_whitespaces"] = model.remove_extra_whitespaces
    keys |= {**charsmap_of(model.charsmap), **special_tokens(files, tokens)}
    for key, text in _NAMES.items():
        if text in tokens:
            keys.setdefault(PREFIX + key, tokens.index(text))
    return {**keys, PREFIX + "add_bos_token": False, PREFIX + "add_eos_token": True}


def _by_id(files: Files) -> list[str]:
    """The text of each id; ids that no text has get a name that none spells."""
    ids = files.json(IDS) or {}
    wrong = [text for text, id in ids.items() if type(id) is not int or id < 0]
    if wrong or not ids:
        raise files.damaged(IDS, f"the id of {wrong[0]!r:.40}" if wrong else "there are no tokens")
    size = max(files.vocab_size or 0, max(ids.values()) + 1)
    check_count(str(files.folder / IDS), size)
    tokens = [f"[PAD{id}]" for id in range(size)]
    for text, id in ids.items():
        tokens[id] = text
    return tokens


def _pieces(model: SentencePieceModel, tokens: list[str]) -> tuple[list[float], list[int]]:
    """The score and the type of each token."""
    normal = {
        piece: score
        for piece, score, kind in zip(model.pieces, model.scores, model.types, strict=True)
        if kind == TokenType.NORMAL
    }
    kinds = {"<unk>": TokenType.UNKNOWN, **dict.fromkeys(("</s>", "<pad>"), TokenType.CONTROL)}
    types = [_type(text, kinds, text in normal) for text in tokens]
    return [normal.get(text, _NO_SCORE) for text in tokens], types


def _type(text: str, kinds: dict[str, TokenType], normal: bool) -> int:
    if text.startswith(">>") and text.endswith("<<"):
        return int(TokenType.USER_DEFINED)
    return int(kinds.get(text, TokenType.NORMAL if normal else TokenType.UNUSED))
