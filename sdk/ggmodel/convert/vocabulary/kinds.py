"""The kinds of vocabularies in GGUF's spelling: byte pairs, SentencePiece, WordPiece."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...errors import TokenizerError
from ...tokenizer.merges import LONGEST, pairs_making
from ...tokenizer.vocabulary import BYTE_NAMES, PREFIX, SPACE, TokenType, longest_plain
from .files import Files
from .pretokenizer import pre_of
from .sentencepiece_model import BPE, UNIGRAM, SentencePieceModel, read_sentencepiece
from .special_tokens import special_tokens
from .tokenizer_json import TokenizerJson, looks_special

# Families whose `add_space_prefix` follows tokenizer_config.json.
_LLAMA = {"llama", "mistral", "mixtral", "granite", "smollm3"}
_ADDED_SCORE = -1000.0
_NO_SCORE = -10000.0


def byte_pairs(files: Files, source: TokenizerJson, pre: str | None) -> dict[str, Any]:
    """Merges in order of rank, of bytes in GPT-2's alphabet or of characters."""
    tokens, types = source.tokens()
    # A space within a piece would look like the separator.
    merges = [f"{a.replace(' ', 'Ġ')} {b.replace(' ', 'Ġ')}" for a, b in source.merges()]
    keys = _keys("gpt2", pre or pre_of(source, files.families), tokens, types)
    if merges:
        keys[PREFIX + "merges"] = merges
    elif longest := longest_plain(tokens, types):
        raise TokenizerError(
            f"tokenizer.json has no merges, but tokens of several characters, such as "
            f"{longest!r:.80}, which nothing makes; get the file again"
        )
    if "roberta" in files.families:
        keys[PREFIX + "token_type_count"] = _token_types(files)
    return {**_space_prefix(files), **keys, **_special(files, tokens)}


def ranked_pairs(files: Files, source: TokenizerJson) -> dict[str, Any]:
    """A SentencePiece model known only by its tokenizer.json: the ranks of merges are its scores.

    Raises:
        TokenizerError: the merges do not come from scores.
    """
    tokens, types = source.tokens()
    types = [_spelled(text, kind) for text, kind in zip(tokens, types, strict=True)]
    scores = _scores(source, types)
    keys = _keys("llama", "default", tokens, types, scores)
    puts_space_first = source.cut_normalized("a")[0].startswith(SPACE)
    prefix = {} if puts_space_first else {PREFIX + "add_space_prefix": False}
    return {**keys, **prefix, **_space_prefix(files), **_special(files, tokens)}


def _spelled(text: str, kind: int) -> int:
    is_byte = text.startswith("<0x") and text in BYTE_NAMES
    return int(TokenType.BYTE) if is_byte and kind == TokenType.NORMAL else kind


def _scores(source: TokenizerJson, types: list[int]) -> list[float]:
    """SentencePiece joins any two pieces whose union is one; so must the merges."""
    scores = [_ADDED_SCORE] * len(types)
    merges = source.merges()
    normal = {text for text, id in source.ids.items() if types[id] == TokenType.NORMAL}
    for rank, (left, right) in reversed(list(enumerate(merges))):
        id = source.ids.get(left + right)
        if id is None:
            raise source.wrong(f"merge {rank} gives {left + right!r:.80}, which is no token")
        scores[id] = -float(rank)
    known = set(merges)
    for text in normal:
        for pair in pairs_making(text, normal) if len(text) <= LONGEST else ():
            if pair not in known:
                raise TokenizerError(
                    f"tokenizer.json has <0xXX> tokens as a SentencePiece model does, but its "
                    f"merges are not those of one: {pair} do not join though {text!r} is a token; "
                    f"add the tokenizer.model it was made from"
                )
    return scores


def sentencepiece(files: Files, name: str) -> dict[str, Any]:
    """A SentencePiece model of byte pairs (llama) or of unigrams (t5)."""
    model = read_sentencepiece(files.bytes(name) or b"", str(files.folder / name))
    if model.kind not in (BPE, UNIGRAM):
        raise TokenizerError(f"{files.folder / name} is of words or characters, not of pieces")
    unigram = model.kind == UNIGRAM
    tokens, scores, types = _pieces(files, model, unigram)
    keys = _keys("t5" if unigram else "llama", "default", tokens, types, scores)
    if unigram:
        keys[PREFIX + "add_space_prefix"] = model.add_dummy_prefix
        keys[PREFIX + "remove_extra_whitespaces"] = model.remove_extra_whitespaces
        if model.charsmap:
            keys[PREFIX + "precompiled_charsmap"] = np.frombuffer(model.charsmap, np.uint8)
    elif not model.add_dummy_prefix:
        keys[PREFIX + "add_space_prefix"] = False
    keys |= {**_space_prefix(files), **_special(files, tokens)}
    if "gemma" in files.families:
        keys[PREFIX + "eot_token_id"] = 107
    if any(family.startswith("gemma") for family in files.families):
        keys[PREFIX + "add_space_prefix"] = False
    return keys


def _pieces(
    files: Files, model: SentencePieceModel, unigram: bool
) -> tuple[list[str], list[float], list[int]]:
    """The model's pieces up to the rows of the embedding, then the added tokens over them."""
    added = _added(files, unigram)
    size = files.size_for(max((id for id, _, _ in added), default=0), len(model.pieces))
    missing = range(min(len(model.pieces), size), size)
    tokens = model.pieces[:size] + [f"[PAD{id}]" for id in missing]
    scores = model.scores[:size] + [_NO_SCORE] * len(missing)
    user = int(TokenType.USER_DEFINED)
    # User-defined pieces of the model are normal in the format, unless they are added tokens, too.
    types = [int(TokenType.NORMAL) if kind == user else kind for kind in model.types[:size]]
    types += [int(TokenType.UNUSED)] * len(missing)
    for id, text, kind in added:
        if 0 <= id < size:
            tokens[id], scores[id], types[id] = text, _ADDED_SCORE, int(kind)
    return tokens, scores, types


def _added(files: Files, unigram: bool) -> list[tuple[int, str, TokenType]]:
    """Added tokens, those of later files over those of earlier ones."""
    found = []
    for text, id in (files.json("added_tokens.json") or {}).items():
        if type(id) is not int:
            raise files.damaged("added_tokens.json", f"{text!r:.80} has the id {id!r:.80}")
        found.append((id, text, TokenType.USER_DEFINED))
    if unigram:
        return found
    phi = "phi3" in files.families
    decoder = (files.settings or {}).get("added_tokens_decoder") or {}
    listed = (files.tokenizer or {}).get("added_tokens") or [] if phi else []
    if not isinstance(decoder, dict) or not isinstance(listed, list):
        raise files.damaged("tokenizer_config.json", "added_tokens_decoder is no table")
    own = ((item.get("id") if isinstance(item, dict) else None, item) for item in listed)
    for id, item in [*decoder.items(), *own]:
        text = item.get("content") if isinstance(item, dict) else None
        if not isinstance(text, str) or not str(id).isdecimal():
            raise files.damaged("tokenizer_config.json", f"an added token is {item!r:.80}")
        kind = TokenType.CONTROL
        if not item.get("special") and (phi or not looks_special(text)):
            text, kind = text if phi else text.replace(SPACE, " "), TokenType.USER_DEFINED
        found.append((int(str(id)[:20]), text, kind))
    return found


def wordpiece(files: Files, source: TokenizerJson) -> dict[str, Any]:
    """In a GGUF "▁" marks a word's first piece; WordPiece marks the others, with "##"."""
    tokens, types = source.tokens()
    tokens = [
        text if kind == TokenType.CONTROL else text[2:] if text.startswith("##") else SPACE + text
        for text, kind in zip(tokens, types, strict=True)
    ]
    # All of them are cut alike; the name is that of most files.
    keys = _keys("bert", "jina-v2-en", tokens, types)
    keys[PREFIX + "token_type_count"] = _token_types(files)
    return {**keys, **_special(files, tokens)}


def _keys(
    model: str, pre: str, tokens: list[str], types: list[int], scores: list[float] | None = None
) -> dict[str, Any]:
    keys: dict[str, Any] = {
        PREFIX + "model": model,
        PREFIX + "pre": pre,
        PREFIX + "tokens": tokens,
        PREFIX + "token_type": np.array(types, np.int32),
    }
    if scores is not None:
        keys[PREFIX + "scores"] = np.array(scores, np.float32)
    return keys


def _special(files: Files, tokens: list[str]) -> dict[str, Any]:
    keys = special_tokens(files, tokens)
    size = files.vocab_size
    if "llama" in files.families and size == 32016:  # CodeLlama
        keys[PREFIX + "eot_token_id"] = 32010
    if files.families & _LLAMA and size == 49152:  # Granite and SmolLM
        keys[PREFIX + "add_bos_token"] = False
    return keys


def _space_prefix(files: Files) -> dict[str, Any]:
    adds = (files.settings or {}).get("add_prefix_space")
    said = isinstance(adds, bool) and files.families & _LLAMA
    return {PREFIX + "add_space_prefix": adds} if said else {}


def _token_types(files: Files) -> int:
    count = files.config.get("type_vocab_size", 1)
    return count if isinstance(count, int) and count > 0 else 1
